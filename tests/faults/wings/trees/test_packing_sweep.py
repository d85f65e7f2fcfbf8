"""Packing and comparing a tree, killed before every change: nothing half is published, and the next run has it done.

`make test` takes an eightieth of the cases, `make test-all` all of them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.faults.acts import ONE, chosen
from tests.lib import judge
from tests.lib.faults import Done, Faults
from tests.lib.node import NODE
from tests.lib.wings.trees.sites import TreeSite, a_tree_site
from warmstart.cli.maintain import maintain
from warmstart.entry import background
from warmstart.host import process
from warmstart.wings.trees import packing, requests

WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])
LATER_S = 2 * 86_400.0  # what those left that died stays for a day, at most


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the priority of the tests as it is."""
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)


@pytest.fixture
def site(base: Path, capable_host: None) -> Iterator[TreeSite]:
    """Return a node where a tree of ws-tree-alice's waits to be packed."""
    with a_tree_site(base) as site:
        site.tree("env")
        yield site


def killed(site: TreeSite, act: Callable[[], int], stop_at: int = 0, later: float = 0.0) -> Done:
    """Run a program in a child that is killed before its n-th change; `later` by so many seconds."""
    domains = {"store": str(site.base / "store"), "state": str(site.base / "var")}
    return Faults(domains, stop_at=stop_at).run(act, {}, later)


def problems(site: TreeSite, *, settled: bool) -> list[str]:
    """Return what the independent reader finds wrong in the store, and what is left on the node.

    An index may name for a while what was taken out: readers get `bundle-gone`.
    """
    found = judge.store_problems(site.base / "store", settled=settled)
    if settled:
        return found + site.left()
    return [problem for problem in found if not problem.endswith("which is not there")]


def maintained(site: TreeSite) -> None:
    """Maintain the store and the node when what is left there is old."""

    def maintain_all() -> NoReturn:
        for arguments in (["--store"], ["--node", NODE]):
            maintain.main(args=arguments, obj=site.installation, standalone_mode=False)
        sys.exit(0)

    assert killed(site, maintain_all, later=LATER_S).status == 0


@WHOLE
def test_packing_killed_before_every_change(site: TreeSite, whole: bool) -> None:
    """The next attempt packs the tree, removes what was left, and the store has one copy."""

    def pack() -> int:
        return background.main(str(site.base), [requests.PACKS.name, NODE])

    def prepare() -> None:
        shutil.rmtree(site.base / "store/artifacts", ignore_errors=True)
        assert site.ask(site.trees / "env")

    prepare()
    calls = killed(site, pack).calls
    assert calls > 20
    wrong = []
    for call in chosen(range(1, calls + 1), 1 if whole else ONE):
        prepare()
        done = killed(site, pack, call)
        found = problems(site, settled=False)
        if requests.waiting(site.paths):
            assert killed(site, pack, later=requests.PACKS.backoff_s * 2).status == 0
        if len(site.bundles()) != 1 or requests.waiting(site.paths):
            found.append(f"{len(site.bundles())} copies, {requests.waiting(site.paths)}")
        maintained(site)
        wrong += [f"before call {call} of {calls}, {done.stopped_at}: {text}" for text in found]
        wrong += [f"{call}, later: {text}" for text in problems(site, settled=True)]
    assert not wrong, "\n".join(wrong)
