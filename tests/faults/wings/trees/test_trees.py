"""Trees: the job of the swept node reads a packed one, and packing is an act."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.acts import LATER_S, ONE, WHOLE, Act, deaths, failures
from tests.faults.hooks import SweptNode
from tests.lib.faults import Done, Fault
from tests.lib.wings.trees.sites import TreeSite, a_tree_site
from warmstart.entry import background
from warmstart.host import process
from warmstart.wings.trees import packing, requests


def test_the_job_of_the_sweeps_reads_a_packed_tree(swept: SweptNode) -> None:
    swept.prepare("epilog")
    assert [line for line in swept.results() if "trees" in line][-1]["trees"][0]["way"] == "copy"
    swept.succeed("job-container")
    mounts = Path("/proc/self/mountinfo").read_text()
    assert re.search(rf" {swept.workspace}/{swept.job.id}\.\w+/mounted/tree ", mounts)


@pytest.fixture
def site(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TreeSite]:
    """Return a node where a tree of ws-tree-alice's waits to be packed."""
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)
    with a_tree_site(base) as site:
        site.tree("env")
        yield site


class Packing(Act):
    """A tree is packed, of which the store has no copy."""

    def __init__(self, site: TreeSite) -> None:
        self._site = site

    def prepare(self) -> None:
        shutil.rmtree(self._site.store / "caches", ignore_errors=True)
        Path(self._site.policy.paths.audit).unlink(missing_ok=True)
        shutil.rmtree(self._site.paths.work, ignore_errors=True)
        shutil.rmtree(f"{self._site.paths.queue}/{requests.PACKS.name}", ignore_errors=True)
        assert self._site.ask(self._site.trees / "env")

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        return self._site.run(self._pack, fault=fault, stop_at=stop_at)

    def _pack(self) -> int:
        due = [item.item.key for item in requests.due(self._site.paths)]
        argv = [requests.PACKS.name, self._site.name]
        return max((background.main(str(self._site.base), [*argv, key]) for key in due), default=0)

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        site = self._site
        wrong = [text for text in site.problems(settled=False) if not text.endswith("which is not there")]
        if requests.waiting(site.paths) or not site.bundles():
            site.ask(site.trees / "env")
            assert site.run(self._pack, later=requests.PACKS.backoff_s * 2).status == 0
        if len(site.bundles()) != 1 or requests.waiting(site.paths):
            wrong.append(f"{len(site.bundles())} copies, {requests.waiting(site.paths)}")
        for program in ("maintain-store", "maintain"):
            assert site.run(program, later=LATER_S).status == 0
        return wrong + site.problems() + site.left()


@WHOLE
@pytest.mark.parametrize("sweep", [deaths, failures])
def test_packing_a_tree(site: TreeSite, sweep: Callable[[Act, int], list[str]], whole: bool) -> None:
    wrong = sweep(Packing(site), 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)
