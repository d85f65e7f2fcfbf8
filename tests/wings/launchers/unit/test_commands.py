"""`warmstart adopt`: as `images import`, from what a launcher left."""

from __future__ import annotations

import pytest

from tests.support.entry_site import EntrySite
from warmstart.images.imports import making
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference


def test_an_image_is_adopted_or_the_reason_is_told(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audited, in nobody's quota. Where nobody says why there is none, the command says what may be."""
    entry_site.write(entry_site.policy)

    def adopt(reference: Reference, here: Site, _deadline: object) -> Obtained | str:
        assert (here.requester.job_id, here.charged.uid) == (0, -1)
        answers = {"none": "", "odd": "belongs to uid 9"}
        found = Obtained("x", "/store/x.sqsh", f"adopted:{'ab' * 32}", 5, "adopted", 0.0)
        return answers.get(reference.repository, found)

    monkeypatch.setattr(making, "adopt", adopt)
    assert entry_site.json("adopt", "reg.example.com/a:1")["how"] == "adopted"
    assert len(entry_site.events("image.adopted")) == 1
    for name, problem in (("none", "names no directory that has it"), ("odd", "belongs to uid 9")):
        gone = entry_site.command("adopt", f"reg.example.com/{name}:1")
        assert (gone.exit_code, problem in gone.stderr) == (1, True)
