"""What an epilog sees of a cache's use, with real Numba: hits, builds, what was not used, and what nobody can tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lib.node_jobs import a_run, with_rules

if TYPE_CHECKING:
    from tests.lib.node import Node

NUMBA = f"{sys.executable} {Path(__file__).parents[1]}/tools/jobs/numba_job.py"
RULES = "rules:\n  - name: everyone\n    profiles: [numba, jax]\n"
HALVE = """\
import numba

@numba.njit(cache=True)
def halve(value):
    return value * 0.5

halve(1.0)
"""


def ran(node: Node, script: str) -> dict[str, str]:
    """Run a job. Return what was made of each profile's cache."""
    with a_run(node) as job:
        job.run(script)
    uses: dict[str, str] = job.by_profile("use")
    return uses


def test_numba_builds_hits_and_is_not_used(base: Path) -> None:
    """A profile that the job's rule gives, and that it never uses, is no miss."""
    node = with_rules(base, RULES)
    uses = [ran(node, script)["numba"] for script in ("true", NUMBA, NUMBA, "true")]
    assert uses == ["untouched", "built", "hit", "untouched"]
    with a_run(node) as job:  # neither a hit nor a miss
        job.run('rm -rf "$NUMBA_CACHE_DIR"/*')
    assert job.by_profile("use") == {"numba": "unknown", "jax": "untouched"}
    assert job.by_profile("retired")["numba"] == 0
    assert "2 removed with most others, as by a cleaner; it stays published" in job.explained()


def test_a_script_that_moves_is_built_again_each_time(base: Path) -> None:
    """`explain` says so. Numba's names have the hash of the source's path."""
    node = with_rules(base, RULES)
    folders = [base / f"moving-{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(HALVE)
    seen = []
    # A hit first: what this user's jobs built before it does not count.
    for folder in (folders[0], *folders):
        with a_run(node) as job:
            job.run(f"{sys.executable} {folder}/train.py")
        seen.append(job.by_profile("use")["numba"])
    assert seen == ["built", "hit", "built", "built", "built"]
    told = job.explained()
    assert "1 new entry published" in told
