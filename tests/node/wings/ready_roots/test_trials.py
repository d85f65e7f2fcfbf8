"""A node's trial, killed before every change: it leaves no mount, and maintenance removes what it has made."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.lib.faults import Faults
from tests.lib.node import NODE
from tests.lib.shelf_site import ShelfSite
from warmstart.policy.keys import Policy
from warmstart.session import Session, open_session
from warmstart.wings.ready_roots import node_maintenance, trial
from warmstart.wings.ready_roots.trial import Tried


@pytest.fixture
def site(base: Path, capable_host: None) -> ShelfSite:
    return ShelfSite(base)


def left(site: ShelfSite) -> list[str]:
    return [name for part in ("shelf", "workspace") for name in os.listdir(site.base / part) if name[:1] == "."]


def removed(session: Session) -> int:
    return node_maintenance.maintain(session)


@pytest.mark.report
def test_a_trial_is_of_the_disks_that_it_was_made_on(site: ShelfSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shelf that moved, or whose disk was mounted since, is tried; what failed is tried again after an hour."""
    tries: list[str | None] = []

    def tried(policy: Policy) -> Tried:
        tries.append(policy.paths.shelf)
        return Tried("no", "no") if policy is bad else Tried("", "")

    monkeypatch.setattr(trial, "tried", tried)
    bad, paths = site.policy, site.paths
    other = site.base / "other"
    other.mkdir()
    good = bad._replace(paths=bad.paths._replace(shelf=str(other)))
    mount = ["mount", "-t", "tmpfs", "none", str(other)]
    subprocess.run(mount, check=True)
    try:
        assert [trial.of_this_boot(policy, paths) for policy in (bad, bad, good, good)] == [False, False, True, True]
        assert tries == [bad.paths.shelf, good.paths.shelf]
        subprocess.run(mount, check=True)
        assert trial.of_this_boot(good, paths)
        assert len(tries) == 3
        assert not trial.of_this_boot(bad, paths)
        aged = Path(paths.runtime, trial.RESULT)
        os.utime(aged, (time.time() - 3700,) * 2)
        assert not trial.of_this_boot(bad, paths)
        assert len(tries) == 5
        assert trial.of_this_boot(good, paths)
        os.utime(aged, (time.time() - 3700,) * 2)
        assert trial.of_this_boot(good, paths)
        assert len(tries) == 6
    finally:
        while other.is_mount():
            subprocess.run(["umount", str(other)], check=True)


@pytest.mark.report
def test_a_trial_makes_no_shelf(site: ShelfSite) -> None:
    """Its disk may not be mounted."""
    (site.base / "shelf").rmdir()
    with pytest.raises(FileNotFoundError, match="its disk may not be mounted"):
        trial.tried(site.policy)
    assert not (site.base / "shelf").exists()


def test_a_trial_killed_before_every_change(site: ShelfSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may still be at work stays."""
    policy = site.policy
    assert trial.tried(policy).works  # the workspaces' directory is made
    domains = {part: str(site.base / part) for part in ("shelf", "workspace")}

    def act() -> int:
        return 0 if trial.tried(policy).works else 1

    whole = Faults(domains).run(act, {})
    assert (whole.status, left(site)) == (0, [])
    assert len(whole.changes) > 10
    with open_session(site.installation, "maintain", NODE) as session:
        for call in range(1, len(whole.changes) + 1):
            done = Faults(domains, stop_at=call).run(act, {})
            assert done.status is None
            known = left(site)
            assert (removed(session), left(site)) == (0, known)
            with monkeypatch.context() as later:
                later.setattr(node_maintenance, "ABANDONED_S", -1.0)
                assert (removed(session), left(site)) == (len(known), [])
            assert str(site.base) not in Path("/proc/self/mountinfo").read_text()
