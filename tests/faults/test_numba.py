"""A seeded run of Numba against a cold one: all kinds of functions, all kills, ranks at once (`make test-all`).

What is compared is what jobs compute, and that they end well. Faster ones, and what is refused and why, are in
tests/node/test_numba_entries.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.numba_runs import Published, finish, run, start
from tests.lib.requirements import need_module

pytestmark = pytest.mark.sweep
KINDS = (
    *("kernel_and_wrapper", "two_signatures", "parallel_gufunc", "dynamic_gufunc", "plain_ufunc"),
    *("two_types", "calls", "loops", "mutual_recursion", "größe", "cpp_function"),
)
ROUNDS = 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_after_any_file_harms_no_later_job(kind: str, tmp_path: Path) -> None:
    need_module("numba")
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()
    cold = run(tmp_path / "cold", kind, WARMSTART_SNAPSHOTS=str(snapshots))
    assert cold.status == 0, cold.complaint
    assert run(tmp_path / "other", kind, WARMSTART_SHIFT="3").report["results"] == cold.report["results"]
    count = len(list(snapshots.iterdir()))
    assert count >= 2
    for number in range(1, count + 1):
        for caches in ((snapshots / str(number), tmp_path / "other"), (tmp_path / "other", snapshots / str(number))):
            published = Published()
            for cache in caches:
                published.harvest(cache)
            seeded = run(published.seed(tmp_path / "seeded"), kind)
            assert (seeded.status, seeded.report.get("results")) == (0, cold.report["results"]), (number, seeded)


@pytest.mark.parametrize("killed_after", [1, 2, 5, 9])
def test_jobs_that_are_killed_one_after_another(killed_after: int, tmp_path: Path) -> None:
    need_module("numba")
    cold = run(tmp_path / "cold", *KINDS)
    published = Published()
    for number in range(6):
        cache = published.seed(tmp_path / "cache")
        run(cache, *KINDS, WARMSTART_KILL=str(killed_after), WARMSTART_SHIFT=str(number))
        published.harvest(cache)
    seeded = run(published.seed(tmp_path / "seeded"), *KINDS)
    assert (seeded.status, seeded.report.get("results")) == (0, cold.report["results"]), seeded


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_compile_the_same_at_once(ranks: int, tmp_path: Path) -> None:
    need_module("numba")
    cold = run(tmp_path / "cold", *KINDS)
    for number in range(ROUNDS):
        cache = tmp_path / f"shared-{number}"
        cache.mkdir()
        for process in [start(cache, *KINDS, WARMSTART_SHIFT=str(rank)) for rank in range(ranks)]:
            finish(process)  # a race of Numba's own may end it
        published = Published()
        published.harvest(cache)
        seeded = run(published.seed(tmp_path / "seeded"), *KINDS)
        assert (seeded.status, seeded.report.get("results")) == (0, cold.report["results"]), seeded
