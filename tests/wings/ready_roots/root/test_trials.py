"""A node's trial, killed before every change: it leaves no mount, and maintenance removes what it has made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.faults import Faults
from tests.support.shelf_site import NODE, ShelfSite
from warmstart.session import Session, open_session
from warmstart.wings.ready_roots import maintenance, trial


@pytest.fixture
def site(base: Path, capable_host: None) -> ShelfSite:
    """Return a node with a shelf."""
    return ShelfSite(base)


def left(site: ShelfSite) -> list[str]:
    """Return what trials have left."""
    return [name for part in ("shelf", "workspace") for name in os.listdir(site.base / part) if name[:1] == "."]


def removed(session: Session) -> int:
    """Have maintenance remove it."""
    return maintenance.PARTS.node["trials"](session) or 0


def test_a_trial_killed_before_every_change(site: ShelfSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may still be at work stays."""
    policy = site.policy
    assert trial.tried(policy).works  # the shelf is made
    domains = {part: str(site.base / part) for part in ("shelf", "workspace")}

    def act() -> int:
        return 0 if trial.tried(policy).works else 1

    whole = Faults(domains).run(act, {})
    assert (whole.status, left(site)) == (0, [])
    assert whole.calls > 10
    with open_session(site.site.installation, "maintain", NODE) as session:
        for call in range(1, whole.calls + 1):
            done = Faults(domains, stop_at=call).run(act, {})
            assert done.status is None
            known = left(site)
            assert (removed(session), left(site)) == (0, known)
            with monkeypatch.context() as later:
                later.setattr(maintenance, "ABANDONED_S", -1.0)
                assert (removed(session), left(site)) == (len(known), [])
            assert str(site.base) not in Path("/proc/self/mountinfo").read_text()
