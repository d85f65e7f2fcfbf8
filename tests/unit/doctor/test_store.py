"""`warmstart doctor` on a store: what tests/node/test_mistakes.py cannot plant, and the probe."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import pytest

from tests.lib.command_line import installed
from warmstart.doctor import probe, store
from warmstart.doctor.finding import Result, run
from warmstart.doctor.probe import Look, Owned, Weak
from warmstart.doctor.store import Store
from warmstart.errors import WarmstartError
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy
from warmstart.store.maintenance import Indexes, Unreadable

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
    "look_at_indexes": Indexes(1, [], is_all=True),
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
    """Without advice."""
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
        *(
            ("store.indexes", "wrong", {"look_at_indexes": Indexes(1, [Unreadable("/x", "bad", cold)], is_all=False)})
            for cold in (True, False)
        ),
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
    """By the store's time stamps."""
    real = time.time
    assert probe.clock_ahead(str(tmp_path)) == pytest.approx(0.0, abs=5)
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    assert probe.clock_ahead(str(tmp_path)) == pytest.approx(-60, abs=5)
    monkeypatch.setattr(time, "time", lambda: real() - 60)
    assert probe.clock_ahead(str(tmp_path)) == pytest.approx(60, abs=5)
