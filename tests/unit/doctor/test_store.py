"""`warmstart doctor` on a store: what tests/node/test_mistakes.py cannot plant; and what its path leads through."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import pytest

from tests.lib.command_line import installed
from warmstart.doctor import permissions, prefixes, probe, store
from warmstart.doctor.finding import Result, run
from warmstart.doctor.permissions import Place, Seen
from warmstart.doctor.probe import Look
from warmstart.doctor.store import Store
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.host.worker import Worker
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy

OWNER = 4711
P = ParamSpec("P")
R = TypeVar("R")
LOOK = Look(OWNER, size=1000, free=500, inside=(OWNER,))
GOOD: dict[str, Any] = {
    # Of `permissions`: who can change the store.
    "look_at": Seen([], []),
    "hold_lock": None,
    "lock_is_free": False,
    "link": 2,
    "clock_ahead": 0.0,
    "can_list": False,
    "show_a_user": None,
    "last_maintained": 60.0,
    "in_use_for": 600.0,
}
DENIED = OSError(errno.ENOLCK, "No locks available", "x")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    found = current_policy(installed(tmp_path / "prefix")).policy
    return found._replace(store_user=Identity("w", OWNER, OWNER))


def statuses(policy: Policy, *, place: str = "/p", as_root: bool = True, **answers: Any) -> dict[str, str]:  # noqa: ANN401
    """Return each check's status for given answers of the probe, and for `code`, `kind` and `known`."""
    return {result.check: result.status for result in results(policy, place=place, as_root=as_root, **answers)}


class Telling(NamedTuple):
    """A worker whose answers are given, by the names of functions."""

    told: dict[str, Any]

    def run(self, _: Deadline, function: Callable[P, R], /, *__: P.args, **___: P.kwargs) -> R:
        value = self.told["look_at" if function is permissions.look else function.__name__]
        if isinstance(value, (OSError, WarmstartError)):
            raise value
        answer: R = value
        return answer

    @contextmanager
    def begin(
        self, _: Deadline, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[Callable[[Deadline], R]]:
        yield lambda until: self.run(until, function, *args, **kwargs)


def results(policy: Policy, *, place: str = "/p", as_root: bool = True, **answers: Any) -> list[Result]:  # noqa: ANN401
    told = {**GOOD, **answers}
    mount = Mount(told.get("kind", "nfs4"), "/shared")
    as_owner = store.RunAs(cast(Worker, Telling(told)))
    root, seen, code = as_owner if as_root else None, told.get("seen", LOOK), told.get("code", 0)
    installation = Installation("/usr")
    subject = Store(policy, installation, as_owner, root, mount, seen, place, code)
    return run(store.possible(subject), subject)


def test_a_good_store_is_ok(policy: Policy) -> None:
    assert set(statuses(policy).values()) == {"ok"}


@pytest.mark.parametrize(
    ("name", "status", "answers"),
    [
        ("store.features", "wrong", {"lock_is_free": True}),
        ("store.features", "wrong", {"hold_lock": DENIED}),
        ("store.features", "wrong", {"link": DENIED}),
        ("store.features", "wrong", {"link": 1}),
        ("store.features", "advice", {"show_a_user": OSError(errno.EOPNOTSUPP, "Operation not supported")}),
        ("store.clock", "ok", {"clock_ahead": 4.0}),
        ("store.clock", "wrong", {"clock_ahead": 6.0}),
        ("store.clock", "wrong", {"clock_ahead": -6.0}),
        ("store.root", "advice", {"can_list": True}),
        ("store.root", "unknown", {"as_root": False}),
        ("store.space", "advice", {"seen": LOOK._replace(free=100)}),
        ("store.mount", "critical", {"place": "", "code": errno.EDQUOT}),
        ("store.mount", "critical", {"place": "", "code": errno.EACCES}),
        ("store.mount", "advice", {"kind": "ext4"}),
    ],
)
def test_a_fault_that_only_a_file_system_has_is_told(
    policy: Policy, name: str, status: str, answers: dict[str, Any]
) -> None:
    assert statuses(policy, **answers)[name] == status


def test_an_unmounted_store_is_to_be_mounted_and_not_given_away(policy: Policy) -> None:
    """What the owner of a mount point should be is no question: nothing but `mount it` is advised."""
    (found,) = results(policy, place="", code=errno.EACCES, kind="ext4", seen=LOOK._replace(uid=0, inside=()))
    assert (found.status, found.change.partition(" (")[0]) == ("critical", "mount it")


def test_what_a_killed_doctor_left_goes(tmp_path: Path) -> None:
    """An old directory is removed; one that may be in use stays."""
    old = Path(probe.make_directory(str(tmp_path), "old"))
    (old / "lock").touch()
    os.utime(old, (0, 0))
    new = Path(probe.make_directory(str(tmp_path), "new"))
    assert not old.exists()
    probe.make_directory(str(tmp_path), "newer")
    assert new.exists()


def test_a_clock_that_is_wrong_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    assert probe.clock_ahead(str(tmp_path)) == pytest.approx(0.0, abs=5)
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    assert probe.clock_ahead(str(tmp_path)) == pytest.approx(-60, abs=5)
    monkeypatch.setattr(time, "time", lambda: real() - 60)
    assert probe.clock_ahead(str(tmp_path)) == pytest.approx(60, abs=5)


# What a store's path leads through, in real directories and links.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "real/inner/store").mkdir(parents=True)
    return tmp_path


def through(tree: Path, path: str) -> list[str]:
    """Return the names of what a path below `tree` leads through."""
    return [entry[len(str(tree)) + 1 :] for entry, _ in permissions.resolved(str(tree / path)) if f"{tree}/" in entry]


@pytest.mark.parametrize("target", ["real", "{tree}/real", "./real/inner/..", "further"])
def test_links_are_resolved_step_by_step(tree: Path, target: str) -> None:
    """Each link and each directory that they lead through."""
    (tree / "further").symlink_to("real")
    (tree / "link").symlink_to(target.format(tree=tree))
    found = through(tree, "link/inner/store")
    assert (found[0], found[-2:]) == ("link", ["real/inner", "real/inner/store"])
    assert "real" in found


def test_the_last_may_be_a_link_or_missing(tree: Path) -> None:
    (tree / "store").symlink_to("real/inner/store")
    assert through(tree, "store") == ["store", "real", "real/inner", "real/inner/store"]
    assert through(tree, "real/gone/store") == ["real"]


def test_links_without_end(tree: Path) -> None:
    (tree / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        permissions.look(Place("", "wrong", [str(tree / "loop/store")]))


def test_a_links_own_mode_says_nothing(tree: Path) -> None:
    """It is 0777; what counts is who owns it, and the directories that it leads through."""
    owners = (0, os.getuid())
    (tree / "link").symlink_to("real")
    place = Place("", "wrong", [str(tree / "link/inner/store")], owners=owners, below=2)
    assert permissions.look(place) == Seen([], [])
    (tree / "real").chmod(0o777)
    (tree / "real/inner").chmod(0o1777)
    for name in "abc":
        (tree / "real/inner/store" / name).touch()
        (tree / "real/inner/store" / name).chmod(0o666)
    seen = permissions.look(place)
    assert [(each.path[len(str(tree)) :], each.excess) for each in seen.there] == [("/real", 0o022)]
    assert len(seen.below) == 2  # as many files are looked at


# What doctor says of the directories below which jobs may name what they read from copies.


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))
    return tmp_path


def found(*paths: object) -> list[tuple[str, str]]:
    return [(finding.status, finding.found) for finding in prefixes.faults("wing", [*map(str, paths)])]


def test_what_gives_nobody_a_copy(prefix: Path) -> None:
    (prefix / "link").symlink_to(prefix)
    nothing = "no job gets a copy of anything there"
    assert found(prefix, prefix / "link", prefix / "gone") == [
        ("wrong", f"wing.prefixes: {prefix}/link leads to {prefix}: {nothing}"),
        ("wrong", f"wing.prefixes: {prefix}/gone: No such file or directory: {nothing}"),
    ]


def test_a_disk_of_the_nodes_own(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("xfs", "/"))
    ((status, text),) = found(prefix)
    assert (status, "is on xfs (/)" in text) == ("advice", True)


@pytest.mark.parametrize(
    ("error", "status"), [(WorkerSilent(what="it", problem="no answer"), ["unknown"]), (PermissionError(1, "no"), [])]
)
def test_what_root_cannot_see(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, error: WarmstartError | OSError, status: list[str]
) -> None:
    """Root may be nobody there: that is fine; a file system that hangs is not."""

    def run(*_: object) -> str:
        raise error

    monkeypatch.setattr(Worker, "run", run)
    assert [finding[0] for finding in found(prefix)] == status
