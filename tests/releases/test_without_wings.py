"""The core without any wing is whole. Sweeps take each wing off by itself, and run all that is left."""

from __future__ import annotations

import re
from pathlib import Path

from tools import without
from warmstart import wing

ROOT = Path(__file__).resolve().parents[2]
JOB = "tests/slurm/test_whole_jobs.py::test_a_job_on_one_node_publishes_at_once"
ASKS_FOR_WINGS = re.compile(r"^(from|import) .*\bwings?\b", re.MULTILINE)


def test_the_core_alone_passes_and_runs_a_job(capable_host: None) -> None:
    """Its contracts hold, no test imports what is gone, and tests that ask which wings there are find none."""
    with without.without(ROOT, [*wing.found()]) as copy:
        asking = [
            path for path in sorted(copy.path.glob("tests/unit/**/*.py")) if ASKS_FOR_WINGS.search(path.read_text())
        ]
        assert copy.refuses_its_keys()
        assert copy.run(*without.GENERATORS, without.CONTRACTS)
        assert copy.run((*without.PYTEST, "-qq", "--collect-only", "-m", "", "tests"))
        assert copy.run((*without.PYTEST, *map(str, asking)), (*without.PYTEST, JOB))
