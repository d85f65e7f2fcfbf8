"""What maintenance of the store does for the wing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.entry_site import EntrySite
from warmstart.maintenance.store import StoreMaintenance
from warmstart.session import Session, open_session


@pytest.fixture
def session(entry_site: EntrySite) -> Iterator[Session]:
    """Return a session of maintenance."""
    with open_session(entry_site.installation, "maintain", "n1") as opened:
        yield opened


def test_jobs_that_were_requeued_long_ago_are_forgotten(entry_site: EntrySite, session: Session) -> None:
    """How often a job was requeued counts for a week."""
    folder = entry_site.store / "images" / "requeued"
    folder.mkdir(parents=True)
    (folder / "c1.7.json").write_text("{}")
    assert StoreMaintenance(session).all().swept == 1
    assert list(folder.iterdir()) == []
