"""Each release of Slurm passes every test that talks to Slurm; what was seen is kept for docs/slurm-releases.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from tests.releases.releases import EXCEPTIONS, RESULTS, SUITES, WHOLE, RootFailed, build, run, versions

# The host has 22.05. What differs most on newer releases: how a job ended, whether its nodes are shared, requeued jobs,
# mount namespaces, and what doctor reads. Wings name theirs in a file.
WINGS = Path(__file__).resolve().parent / "wings"
SHORT = (
    "tests/slurm/test_only_successful.py::test_only_what_ended_well_is_harvested",
    "tests/slurm/test_main_job_lifecycle.py::test_a_requeued_job_starts_anew",
    "tests/slurm/test_main_job_lifecycle.py::test_a_job_that_never_has_an_epilog",
    "tests/slurm/test_constant_path.py::test_the_table_of_the_docs",
    "tests/slurm/test_constant_path.py::test_without_the_plugin_a_cache_is_warm_elsewhere",
    "tests/slurm/test_constant_path.py::test_a_link_in_a_shared_tmp_is_never_made_nor_followed[nothing]",
    "tests/slurm/test_doctor.py::test_a_real_site",
    *(test for path in sorted(WINGS.glob("*/short.txt")) for test in path.read_text().split()),
)


@pytest.fixture
def root(capable_host: None, suite: str) -> str:
    """Return the root file system of a suite. If it is not available, fail in CI and skip elsewhere."""
    try:
        return build(suite)
    except RootFailed as error:
        unavailable(str(error))


@pytest.mark.parametrize("suite", ["trixie"])
def test_a_newer_release_passes_a_short_selection(root: str, suite: str) -> None:
    """Debian 13's Slurm 24.11, Python 3.13 and squashfs-tools 4.6."""
    done = run(root, suite, SHORT)
    assert len(done.of("passed")) == len(done.outcomes) >= len(SHORT), done.output


@pytest.mark.sweep
@pytest.mark.parametrize("suite", SUITES)
def test_a_release_passes_every_test(root: str, suite: str) -> None:
    """But those that it cannot pass, each with its reason; and nothing is skipped."""
    exceptions = EXCEPTIONS[suite]
    deselected = [f"--deselect={test}" for test in exceptions]
    done = run(root, suite, [*WHOLE, *deselected])
    seen = {
        "versions": versions(root),
        "minutes": round(done.seconds / 60),
        "outcomes": done.outcomes,
        "exceptions": exceptions,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{suite}.json").write_text(json.dumps(seen))
    assert (done.of("failed"), done.of("skipped")) == ([], []), done.output
    if exceptions:
        still = run(root, suite, [*exceptions])
        assert still.of("passed") == [], "these pass here: no exceptions"
