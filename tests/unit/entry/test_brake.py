"""Several node faults or crashes within an hour: the node does nothing more, and drains no more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest

from tests.support.entry_site import EntrySite
from warmstart import record
from warmstart.doctor import policy as doctor
from warmstart.doctor.finding import Finding
from warmstart.entry import brake
from warmstart.entry.hook import DRAINS, Hook, run_hook
from warmstart.errors import NodeError, ResourceError
from warmstart.slurm import commands

pytestmark = pytest.mark.threat(37)


class SampleMisread(NodeError):
    """A fault that is none."""

    code = "sample-misread"
    template = "the disk looks broken"


class SampleShort(ResourceError):
    """An error that drains nothing."""

    code = "sample-short"
    template = "no room"


def node_fault(_hook: Hook) -> None:
    """Fail as if the node were broken."""
    raise SampleMisread


def crash(_hook: Hook) -> None:
    """Fail by a bug."""
    raise ZeroDivisionError


def crash_in(module: str) -> Callable[[Hook], None]:
    """Return what fails by a bug in a module of warmstart's, below which a worker's process was asked."""

    def ask(_hook: Hook) -> None:
        below(_hook)

    below = FunctionType(crash.__code__, {"__name__": "warmstart.host.worker"})
    return FunctionType(ask.__code__, {"__name__": f"warmstart.{module}"}, closure=ask.__closure__)


def shortage(_hook: Hook) -> None:
    """Fail as jobs make hooks fail."""
    raise SampleShort


@pytest.fixture(autouse=True)
def drained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the nodes that were drained."""
    told: list[str] = []

    def drain(_scontrol: str, node: str, _reason: str, _conf: str) -> bool:
        told.append(node)
        return True

    monkeypatch.setattr(commands, "drain_node", drain)
    return told


def hooks(site: EntrySite, work: Callable[[Hook], None], *users: int) -> list[int]:
    """Run a hook of a job of each user; return the exit statuses."""
    statuses = []
    for uid in users:
        site.environ(SLURM_JOB_UID=str(uid))
        statuses.append(run_hook("prolog", site.installation.prefix, work))
    return statuses


def is_idle(site: EntrySite) -> bool:
    """Tell whether hooks do nothing."""
    worked: list[Hook] = []
    run_hook("prolog", site.installation.prefix, worked.append)
    return not worked


def test_the_third_node_fault_within_an_hour_drains_no_more(entry_site: EntrySite, drained: list[str]) -> None:
    """It switches the node off, says so, and from then on every job runs as if warmstart were not there."""
    assert hooks(entry_site, node_fault, 7, 7, 7, 7) == [DRAINS, DRAINS, 0, 0]
    assert drained == ["n1", "n1"]
    assert is_idle(entry_site)
    (event,) = entry_site.events("node.braked")
    assert event["faults"] == ["sample-misread"] * 3
    assert event["file"] == entry_site.installation.brake
    assert f"rm {entry_site.installation.brake}" in Path(entry_site.installation.brake).read_text()


def test_crashes_of_three_causes_switch_the_node_off(entry_site: EntrySite) -> None:
    """Of different users; it says where they were."""
    for uid, module in ((7, "record"), (8, "steps.seed")):
        assert hooks(entry_site, crash_in(module), uid) == [0]
    assert not is_idle(entry_site)
    assert hooks(entry_site, crash_in("view"), 9) == [0]
    assert is_idle(entry_site)
    places = ["record:ask", "steps.seed:ask", "view:ask"]
    assert entry_site.events("node.braked")[0]["faults"] == [f"hook.crashed in {place}" for place in places]
    assert all(place in Path(entry_site.installation.brake).read_text() for place in places)


@pytest.mark.parametrize("module", ["record", "store.client"])
def test_one_cause_is_one_for_however_many_users(entry_site: EntrySite, module: str) -> None:
    """One damaged file, one store that answers nonsense: jobs run cold, and nobody else's service stops."""
    hooks(entry_site, crash_in(module), *range(7, 20))
    assert not is_idle(entry_site)


def test_a_store_is_one_cause_whatever_it_is_asked() -> None:
    """Its client's methods are many places, and one process answers."""
    causes = set()
    for name in ("offers", "fetch"):
        method = FunctionType(crash.__code__.replace(co_name=name), {"__name__": "warmstart.store.client"})
        with pytest.raises(ZeroDivisionError) as raised:
            method(None)
        causes.add(brake._cause(raised.value))
    assert causes == {"store.client"}


def test_drains_and_crashes_count_together(entry_site: EntrySite) -> None:
    """Each drain is one, of whatever cause: the node has left the service."""
    hooks(entry_site, node_fault, 7, 7)
    assert not is_idle(entry_site)
    hooks(entry_site, crash, 7)
    assert is_idle(entry_site)


def test_one_users_crashes_do_not(entry_site: EntrySite) -> None:
    """Else who finds a bug that one job triggers could stop the service of others."""
    for module in ("record", "view", "plan", "runner"):
        hooks(entry_site, crash_in(module), 7, 7)
    assert not is_idle(entry_site)


def test_what_users_cause_does_not(entry_site: EntrySite) -> None:
    """Errors that drain nothing never count, and leave nothing behind."""
    hooks(entry_site, shortage, *range(7, 20))
    assert not is_idle(entry_site)
    assert not os.path.exists(entry_site.installation.faults)


def test_faults_of_long_ago_do_not_count(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those of a clock that was ahead."""
    now = time.time()
    for then in (now - brake.WINDOW_S - 1, now + 3600):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda then=then: then)
            hooks(entry_site, node_fault, 7)
    assert hooks(entry_site, node_fault, 7, 7) == [DRAINS, DRAINS]
    assert not is_idle(entry_site)


def test_switched_on_again_it_begins_at_zero(entry_site: EntrySite) -> None:
    """As the file says: it is removed, and two more faults are two."""
    hooks(entry_site, node_fault, 7, 7, 7)
    os.unlink(entry_site.installation.brake)
    assert not is_idle(entry_site)
    assert hooks(entry_site, node_fault, 7, 7, 7) == [DRAINS, DRAINS, 0]


def test_a_fault_before_there_is_a_journal_counts_too(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, drained: list[str]
) -> None:
    """The state directory of the node cannot be made: the audit has no place yet, the brake has."""
    monkeypatch.setattr("warmstart.entry.hook.using_state", lambda _root: fail())

    def fail() -> None:
        raise record.StateUnusable(path="x", problem="y")

    assert hooks(entry_site, node_fault, 7, 7, 7) == [DRAINS, DRAINS, 0]
    assert is_idle(entry_site)


def test_without_a_place_for_the_count_the_fault_drains(entry_site: EntrySite) -> None:
    """The disk of warmstart's own state is the one that fails."""
    os.mkdir(entry_site.installation.faults)
    assert hooks(entry_site, node_fault, 7, 7, 7, 7) == [DRAINS] * 4


@pytest.mark.parametrize("garbage", [b"\xff\0\n\n", b"1 2\nnan x y\n", b"x" * (brake.LARGEST + 1)])
def test_a_damaged_count_counts_what_it_can(entry_site: EntrySite, garbage: bytes) -> None:
    """And goes on from there."""
    Path(entry_site.installation.faults).write_bytes(garbage + b"\n")
    assert hooks(entry_site, node_fault, 7, 7, 7, 7)[-1] == 0
    assert is_idle(entry_site)


def test_the_administrator_is_told(entry_site: EntrySite) -> None:
    """By doctor as critical, by maintenance, which does nothing and does not call that a success."""
    hooks(entry_site, node_fault, 7, 7, 7)
    (found,) = doctor.switch(entry_site.installation)
    assert isinstance(found, Finding)
    assert (found.status, entry_site.installation.brake in found.change) == ("critical", True)
    done = entry_site.command("maintain")
    assert done.exit_code == 1
    assert entry_site.installation.brake in done.stderr.replace("\n", "")
