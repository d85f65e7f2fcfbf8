"""A tree that an observed job asks for."""

from __future__ import annotations

import os

import pytest

from tests.support.entry_site import NUMBA, EntrySite
from tests.wings.trees.asked import ask, offer_trees, packs
from warmstart.entry import prolog


def test_a_tree_is_looked_at_and_not_packed(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a copy of it as it is now; nothing is asked for."""
    site = entry_site
    for directory in (site.paths.state, site.paths.view):
        os.makedirs(directory, exist_ok=True)
    tree = offer_trees(site, monkeypatch)
    site.write(site.policy._replace(mode="observe", constant_path="spank", rules=(NUMBA,)))
    site.environ(SLURM_JOB_COMMENT=f"warmstart: tree={tree}")
    assert prolog.main(site.installation.prefix) == 0
    (planned,) = site.events("job.observed")
    assert "tree" in planned["steps"]
    (event,) = site.events("tree.observed")
    assert (event["tree"], event["found"], event["bytes"], event["reason"]) == (str(tree), False, 0, "")
    ask(site, tree)
    packs(site)
    assert prolog.main(site.installation.prefix) == 0
    again = site.events("tree.observed")[-1]
    assert (again["namespace"], again["found"], again["bytes"] > 0) == (event["namespace"], True, True)
    tree.rename(tree.parent / "gone")
    assert prolog.main(site.installation.prefix) == 0
    assert site.events("tree.observed")[-1]["reason"] == "tree-unusable"
    assert site.events("tree.shown") == []
