"""Entries of the real Numba that two processes had a hand in: what is published never ends or misleads a later job.

No cluster is needed. The sweep over all kinds of functions, and all files after which a job can be killed, is
tests/faults/test_numba_sweep.py.
"""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.numba_runs import JOB, Published, Run, Runner, entries, numba_loaded, verdicts
from tests.lib.requirements import need_module

GUFUNC = "kernel_and_wrapper"
DEADLY = {-signal.SIGSEGV, -signal.SIGABRT}


class TwoJobs(NamedTuple):
    """The caches of two jobs that compiled the same function, each on its own, and the cold run's results."""

    one: Path
    other: Path
    cold: Run


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    need_module("numba")
    with numba_loaded() as run:
        yield run


@pytest.fixture(scope="module")
def jobs(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> TwoJobs:
    """Run a job with Numba's counter as it is, and one with another."""
    top = tmp_path_factory.mktemp("jobs")
    cold = run(top / "one", GUFUNC)
    assert cold.status == 0, cold.complaint
    assert run(top / "other", GUFUNC, WARMSTART_SHIFT="3") == cold
    return TwoJobs(top / "one", top / "other", cold)


def test_another_process_wrapper_is_refused(run: Runner, jobs: TwoJobs, tmp_path: Path) -> None:
    """Every mixture of two processes' files: refused where Numba would die of it, valid where it is of one process."""
    names = sorted(name for name in entries(jobs.one).popitem()[1])
    kernel, wrapper = (next(n for n in names if n.endswith(".1.nbc") and ("guf-" in n) is guf) for guf in (False, True))
    for choice in itertools.product((jobs.one, jobs.other), repeat=4):
        cache = tmp_path / "mixture"
        shutil.rmtree(cache, ignore_errors=True)
        for name, source in zip(names, choice, strict=True):
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, cache / name)
        chosen = dict(zip(names, choice, strict=True))
        expected = None if chosen[kernel] == chosen[wrapper] else "two-writers"
        assert set(verdicts(cache).values()) == {expected}, choice
        (cache.parent / str(expected)).exists() or shutil.copytree(cache, cache.parent / str(expected))
    assert run(tmp_path / "two-writers", GUFUNC).status in DEADLY, "this is what is kept from jobs"
    assert run(tmp_path / "None", GUFUNC) == jobs.cold


def test_what_numba_can_not_load_is_refused(run: Runner, tmp_path: Path) -> None:
    published = Published()
    cold = run(tmp_path / "cold", "mutual_recursion", "calls")
    assert cold.status == 0, cold.complaint
    reasons = {
        entry.rpartition("/")[2].partition("-")[0]: reason
        for entry, reason in published.harvest(tmp_path / "cold").items()
    }
    module = JOB.stem
    assert reasons == {
        f"{module}.even": "not-loadable",
        f"{module}.odd": "not-loadable",
        f"{module}.choose": None,
        f"{module}.factorial": None,
    }
    assert run(tmp_path / "cold", "mutual_recursion").status in DEADLY, "Numba's own cache; this test can go when not"
    warm = run(published.seed(tmp_path / "warm"), "mutual_recursion", "calls")
    assert warm.report["results"] == cold.report["results"]
    assert warm.report["cache_hits"] == 2, "choose, and factorial, which is called on its own"


def test_a_function_of_a_module_that_nothing_can_import_is_refused(run: Runner, tmp_path: Path) -> None:
    cold = run(tmp_path / "cold", "from_file")
    assert cold.status == 0, cold.complaint
    assert set(verdicts(tmp_path / "cold").values()) == {"not-loadable"}
    again = run(tmp_path / "cold", "from_file")
    assert "ModuleNotFoundError: No module named '<dynamic>'" in again.complaint, "Numba's own cache; see above"


def test_a_function_is_harvested_whatever_it_and_its_directory_are_called(run: Runner, tmp_path: Path) -> None:
    script = tmp_path / "my project x=1,seed=2 proj@v1 [exp] Ünï -#\\'\"$*?" / "größen.py"
    script.parent.mkdir()
    shutil.copyfile(JOB, script)
    cold = run(tmp_path / "cold", "größe", script=script)
    assert cold.status == 0, cold.complaint
    published = Published()
    assert list(published.harvest(tmp_path / "cold").values()) == [None]
    written = [path for path in (tmp_path / "cold").rglob("*") if path.is_file()]
    assert len(written) == len(entries(tmp_path / "cold").popitem()[1]) == 2
    warm = run(published.seed(tmp_path / "warm"), "größe", script=script)
    assert (warm.report["cache_hits"], warm.report["cache_misses"]) == (1, 0)
