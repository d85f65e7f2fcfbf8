"""What is tried with each release, and where."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).resolve().parents[2] / "build" / "releases"
SUITES = ("bookworm", "trixie", "sid")  # of Debian; tests/newer/build has their releases
CASES = {
    "four jobs that start at once: one import": [
        "test_main_job.py::test_four_jobs_of_two_users_share_one_import",
    ],
    "cold, then warm on another node; another user is cold": [
        "test_main_job.py::test_the_second_node_is_warm_and_another_user_is_not[numba]",
    ],
    "refusals: batch, srun, salloc": [
        "test_main_job_failures.py::test_a_wish_that_cannot_be_met",
        "test_main_job_failures.py::test_a_wish_that_cannot_be_met_fails_the_steps_of_salloc",
    ],
    "a requeued job": ["test_main_job_lifecycle.py::test_a_requeued_job_starts_anew"],
    "an array": ["test_main_job.py::test_every_task_of_an_array_has_its_own_workspace"],
    "a heterogeneous job": ["test_main_job.py::test_both_components_of_a_heterogeneous_job_find_their_own"],
    "the constant path, by each way that the release has ([inside-the-job.md](start/inside-the-job.md))": [
        "test_constant_path.py::test_the_table_of_the_docs",
    ],
    "the SPANK plugin, built for the release": [
        "test_spank.py::test_commands_show_the_options_and_refuse_wrong_values",
        "test_spank.py::test_options_reach_the_prolog",
        "test_spank.py::test_a_verdict_where_no_task_prolog_runs",
    ],
    "`warmstart doctor`: nothing wrong, and with planted mistakes": [
        "test_doctor.py::test_a_real_site",
        "test_doctor.py::test_planted_mistakes",
    ],
}


class Outcome(NamedTuple):
    """What became of one case: tests by their outcome."""

    passed: int
    failed: int
    skipped: int

    @property
    def word(self) -> str:
        """What the page says."""
        if self.failed:
            return "**failed**"
        return "passed" if self.passed and not self.skipped else "not run"
