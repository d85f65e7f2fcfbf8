"""A copy is packed anew when it is old, with the rights of its user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.wings.trees.sites import TreeSite, a_tree_site
from warmstart.host import process
from warmstart.wings.trees import packing


@pytest.fixture
def site(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TreeSite]:
    """Yield a node whose user has the tree `env`."""
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)
    with a_tree_site(base) as site:
        yield site


@pytest.mark.threat(57)
def test_an_old_copy_is_replaced_by_one_of_the_tree_as_it_is(site: TreeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was edited in place and shows in no marker comes with it; a young copy stays."""
    tree = site.tree("env")
    (edited := tree / "lib/python3.11/site-packages/one/__init__.py").chmod(0o600)
    assert site.ask(tree)
    site.pack()
    (first,) = site.bundles()
    edited.chmod(0o644)
    assert site.ask(tree)
    site.pack()
    assert site.bundles() == [first]
    monkeypatch.setattr(packing, "RENEWED_S", 0)
    assert site.ask(tree)
    site.pack()
    (second,) = site.bundles()
    assert second != first
    (removed,) = site.events("bundle.removed")
    assert (removed["bundle"], removed["reason"]) == (first, "packed anew")
    assert site.copy()["lib/python3.11/site-packages/one/__init__.py"] == "-rw-r--r--"
