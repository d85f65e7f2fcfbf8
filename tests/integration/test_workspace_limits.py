"""`limits.workspace` on real Slurm: a job fills its own workspace and nobody's disk (docs/threats.md, row 12).

That no node is drained and that nothing is left of the jobs is checked after every test by `site` itself.
"""

from __future__ import annotations

import pytest

from tests.cluster.accounts import ALICE, BOB
from tests.cluster.site import RULES, Site

pytestmark = pytest.mark.threat(12)

LIMITED = f"{RULES}limits: {{workspace: 32MiB, workspace_files: 2000}}\n"
FILL = """#!/bin/sh
dd if=/dev/zero of="$TMPDIR/all" bs=1M count=200 2>&1
echo "bytes $(stat -c %s "$TMPDIR/all")"
rm "$TMPDIR/all"
i=0
while mkdir "$NUMBA_CACHE_DIR/$i" 2>/dev/null; do i=$((i + 1)); done
echo "directories $i"
"""


def test_a_job_that_fills_what_it_has(site: Site) -> None:
    """Bytes in its TMPDIR, names in its cache: both end at the limit, and its epilog ends well."""
    site.write_policy(LIMITED)
    job = site.finish(site.cluster.submit(FILL, BOB, "--nodelist=n1"))
    assert job.state == "COMPLETED"
    said = dict(line.split() for line in job.output.splitlines() if line.startswith(("bytes ", "directories ")))
    assert 32 << 20 <= int(said["bytes"]) < 52 << 20
    assert 1500 < int(said["directories"]) < 2000
    (event,) = [event for event in site.events(job.job_id, "step.finished") if event["step"] == "workspace"]
    assert event["limit"] == "file system"
    epilog = [event for event in site.events(job.job_id, "hook.finished") if event["hook"] == "epilog"]
    assert [event["status"] for event in epilog] == [0]


def test_caches_are_harvested_and_seeded_as_without(site: Site) -> None:
    """What one job compiled, the next one on another node finds."""
    site.write_policy(LIMITED, store=str(site.new_store(site.cluster.base / "store-limits")))
    cold = site.finish(site.compile_job("copy", ALICE, "n1"))
    assert len(site.events(cold.job_id, "bundle.published")) == 1
    warm = site.finish(site.compile_job("copy", ALICE, "n2"))
    assert [event["way"] for event in site.events(warm.job_id, "cache.seeded")] == ["overlay"]
    assert site.events(warm.job_id, "bundle.published") == []
