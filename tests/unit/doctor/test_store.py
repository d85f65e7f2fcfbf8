"""`warmstart doctor` on a store: what tests/node/test_mistakes.py cannot plant; and what its path leads through."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import pytest

from tests.lib.command_line import installed
from warmstart.doctor import prefixes, probe, store
from warmstart.doctor.finding import Result, run
from warmstart.doctor.probe import Look, Owned, Weak
from warmstart.doctor.store import Store
from warmstart.errors import WarmstartError
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.host.worker import Worker
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy

OWNER = 4711
P = ParamSpec("P")
R = TypeVar("R")
LOOK = Look(OWNER, 0o755, size=1000, free=500, inside=(OWNER,))
GOOD: dict[str, Any] = {
    "look": LOOK,
    "writable_by_others": Weak(3, [], is_all=True),
    "above": [Owned("/s", 0, 0o755)],
    "hold_lock": None,
    "lock_is_free": False,
    "link": 2,
    "clock_ahead": 0.0,
    "can_list": False,
    "show_a_user": None,
    "last_maintained": 60.0,
    "in_use_for": 600.0,
    "identity": "abcdef0123",
}
DENIED = OSError(errno.ENOLCK, "No locks available", "x")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    found = current_policy(installed(tmp_path / "prefix")).policy
    return found._replace(store_user=Identity("w", OWNER, OWNER))


def statuses(policy: Policy, *, place: str = "/p", as_root: bool = True, **answers: Any) -> dict[str, str]:  # noqa: ANN401
    """Return each check's status for given answers of the probe, and for `code`, `kind` and `known`."""
    return {result.check: result.status for result in results(policy, place=place, as_root=as_root, **answers)}


def results(policy: Policy, *, place: str = "/p", as_root: bool = True, **answers: Any) -> list[Result]:  # noqa: ANN401
    told = {**GOOD, **answers}

    def ask(function: Callable[P, R], /, *_: P.args, **__: P.kwargs) -> R:
        value = told[function.__name__]
        if isinstance(value, (OSError, WarmstartError)):
            raise value
        answer: R = value
        return answer

    mount = Mount(told.get("kind", "nfs4"), "/shared")
    problem, known = os.strerror(told.get("code", 0)), told.get("known", "abcdef0123")
    as_owner = cast("store.RunAs", ask)
    root = as_owner if as_root else None
    return run(store.CHECKS, Store(policy, as_owner, as_owner, root, place, problem, told.get("code", 0), mount, known))


def test_a_good_store_is_ok(policy: Policy) -> None:
    assert set(statuses(policy).values()) == {"ok"}


@pytest.mark.parametrize(
    ("name", "status", "answers"),
    [
        ("store.reachable", "wrong", {"look": WorkerSilent(what="look", problem="no answer")}),
        ("store.locks", "wrong", {"lock_is_free": True}),
        ("store.locks", "wrong", {"hold_lock": DENIED}),
        ("store.links", "wrong", {"link": DENIED}),
        ("store.links", "wrong", {"link": 1}),
        ("store.reports", "advice", {"show_a_user": OSError(errno.EOPNOTSUPP, "Operation not supported")}),
        ("store.clock", "ok", {"clock_ahead": 4.0}),
        ("store.clock", "wrong", {"clock_ahead": 6.0}),
        ("store.clock", "wrong", {"clock_ahead": -6.0}),
        ("store.root", "advice", {"can_list": True}),
        ("store.root", "unknown", {"as_root": False}),
        ("store.space", "advice", {"look": LOOK._replace(free=100)}),
        ("store.writable", "critical", {"place": "", "code": errno.EDQUOT}),
        ("store.writable", "critical", {"place": "", "code": errno.EACCES}),
        ("store.mount", "advice", {"kind": "ext4"}),
    ],
)
def test_a_fault_that_only_a_file_system_has_is_told(
    policy: Policy, name: str, status: str, answers: dict[str, Any]
) -> None:
    assert statuses(policy, **answers)[name] == status


def test_an_unmounted_store_is_to_be_mounted_and_not_given_away(policy: Policy) -> None:
    """What the owner of a mount point should be is no question: nothing but `mount it` is advised."""
    found = results(policy, place="", code=errno.EACCES, kind="ext4", look=LOOK._replace(uid=0, inside=()), identity="")
    bad = {result.check: result.change for result in found if result.status not in ("ok", "advice")}
    assert bad["store.mount"].startswith("mount it")
    assert not [change for change in bad.values() if "chown" in change]


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


def through(tree: Path, path: str) -> list[tuple[str, int]]:
    """Return the names and modes of what a path below `tree` leads through."""
    found = probe.above(str(tree / path))
    return [(place.path[len(str(tree)) + 1 :], place.mode) for place in found if place.path.startswith(f"{tree}/")]


def test_directories(tree: Path) -> None:
    (tree / "real").chmod(0o750)
    (tree / "real/inner").chmod(0o777)
    assert through(tree, "real/inner/store") == [("real", 0o750), ("real/inner", 0o777)]
    assert {place.uid for place in probe.above(str(tree / "real/inner/store"))} <= {0, os.getuid()}


@pytest.mark.parametrize("target", ["real", "{tree}/real", "./real/inner/..", "further"])
def test_links_are_resolved_step_by_step(tree: Path, target: str) -> None:
    """A link's own mode, 0777, is not told; the directories that it leads through are."""
    (tree / "further").symlink_to("real")
    (tree / "link").symlink_to(target.format(tree=tree))
    (tree / "real").chmod(0o700)
    found = through(tree, "link/inner/store")
    assert found[0] == ("link", 0)
    assert {("real", 0o700), ("real/inner", (tree / "real/inner").stat().st_mode & 0o7777)} <= {*found}
    assert ("real/inner/store", 0o755) not in found


def test_the_last_may_be_a_link(tree: Path) -> None:
    (tree / "store").symlink_to("real/inner/store")
    assert [path for path, _ in through(tree, "store")] == ["store", "real", "real/inner"]


def test_links_without_end(tree: Path) -> None:
    (tree / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        probe.above(str(tree / "loop/store"))


# What doctor says of the directories below which jobs may name what they read from copies.


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))
    return tmp_path


def found(*paths: object) -> list[tuple[str, str]]:
    return [(finding.status, finding.found) for finding in prefixes.check("wing", [*map(str, paths)])]


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
