"""A copy that a job reads stays, on its node and in the store, until the job is over."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.node import NODE
from tests.lib.runs import a_job
from tests.lib.wings.trees.sites import ALICE, TreeSite, a_tree_site
from warmstart.host import process
from warmstart.wings.trees import packing


@pytest.fixture
def site(base: Path, capable_host: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TreeSite]:
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)
    with a_tree_site(base) as site:
        yield site
        site.close()


def maintained(site: TreeSite, *programs: str) -> list[bool]:
    """Maintain the node and the store when the copies were used five hours ago; return where there is one still."""
    copies = [*site.store.rglob("*.sqsh"), *Path(site.paths.bundles).glob("*.sqsh")]
    assert len(copies) == 2
    for copy in copies:
        os.utime(copy, (time.time() - 5 * 3600,) * 2)
    for program in programs:
        assert site.run(program).status == 0
    return [copy.exists() for copy in copies]


def test_what_a_running_job_reads_goes_after_the_job(site: TreeSite) -> None:
    """However little node and store may keep."""
    tree = site.tree("env")
    job = a_job(uid=ALICE.uid, gid=ALICE.gid, user=ALICE.name, comment=f"warmstart: tree={tree}")
    site.knows(job.id)
    for way in ("itself", "copy"):
        assert site.run("prolog", job).status == 0
        assert site.result("prolog", job.id)["trees"][0]["way"] == way
        if way == "itself":
            assert site.run("epilog", job).status == 0
            site.pack()
    assert [row["here"] for row in site.json("trees", "list")] == [[NODE]]
    site.policy_of(quota="1KiB", keep="1KiB")
    assert maintained(site, "maintain", "maintain-store") == [True, True]
    (file,) = site.workspace.glob("*/mounted/tree/tree/pyvenv.cfg")
    assert file.read_text() == "home = /usr/bin\n"
    assert site.run("epilog", job).status == 0
    assert maintained(site, "maintain-store", "maintain") == [False, False]
    assert site.json("trees", "list") == []
