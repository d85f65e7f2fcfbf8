"""Trees by the ways of newer releases to the constant path; `tests/releases` runs it with these."""

from __future__ import annotations

from collections.abc import Callable

from tests.lib.config import Namespace
from tests.lib.site import Site
from tests.slurm.test_constant_path import RELEASE, SETTINGS
from tests.slurm.wings.trees import test_trees as trees


def test_a_tree_without_the_plugin(contained: Callable[[Namespace], Site]) -> None:
    """The second job sees the packed copy, in a home that root cannot enter; a job that cannot is told so once."""
    setting = next(setting for setting in SETTINGS[RELEASE].values() if setting.way != "spank")
    assert setting.namespace
    site = contained(setting.namespace)
    with trees.shared(site, "tree.contained", setting.way) as (target, source):
        trees.make_environment(site, source / "env")
        first = trees.run(site, target / "env")
        if setting.way == "link":
            assert first.output.count("this node has no way to show a packed copy") == 1
            return
        assert first.output.splitlines()[-1] == "itself"
        assert trees.run(site, target / "env").output.splitlines() == [*trees.ALIKE, "1", "copy"]
    assert site.leftovers() == []
