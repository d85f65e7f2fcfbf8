"""What lines add up to; each number from lines that give it alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.hook_lines import EPILOG, NOW, act, epilog, finished, started
from warmstart.audit.line import Line
from warmstart.report.metrics import HOOK_BOUNDS
from warmstart.report.summary import OTHERS, TOP, Summary, Uses, summarize


def prolog(**result: object) -> Line:
    return finished(**{"head": True, **result})


def of(*lines: Line) -> Summary:
    return summarize(lines, NOW)


def image(how: str, seconds: float = 0.0, reference: str = "r/1", size: int = 1000, waited: float = 0.0) -> Line:
    return {"image": reference, "how": how, "bytes": size, "ms": 1000 * seconds, "waited_ms": 1000 * waited}


def imported(seconds: float, size: int = 1000) -> Line:
    return act("image.imported", image="r/1", bytes=size, duration_ms=1000 * seconds)


def ended(use: str, profile: str = "numba", **fields: object) -> Line:
    return epilog(caches={profile: {"use": use, **fields}})


def test_jobs_are_counted_on_their_first_node() -> None:
    found = of(prolog(), prolog(head=False, node="n2"), prolog(user="bob"), prolog(observed=True))
    assert (found.runs, found.jobs, found.users, found.nodes) == (4, 2, 2, 2)


def test_hit_rates() -> None:
    found = of(
        epilog(caches={"numba": {"use": "hit"}, "triton": {"use": "unknown"}, "jax": {"use": "untouched"}}),
        epilog(caches={"numba": {"use": "built"}, "numba@ab": {"use": ""}, "triton": {"use": "unknown"}}),
        epilog(caches={"numba@cd": {"use": "hit"}, "triton": {"use": "built"}}, user="bob"),
    )
    assert found.profiles == (
        Uses("numba", hit=2, built=1),
        Uses("triton", built=1, unknown=2),
        Uses("jax", untouched=1),
    )
    assert found.by_user == (Uses("alice", hit=1, built=1, unknown=2, untouched=1), Uses("bob", hit=1, built=1))
    # The builds of a profile of which nobody ever sees a hit make no rate, neither its own nor that of all.
    assert [uses.percent for uses in found.profiles] == ["66.7%", "-", "-"]
    assert found.caches == Uses("", hit=2, built=1, untouched=1)


def test_why_caches_began_cold() -> None:
    reasons = ("nothing-published", "bundles-left-out", "asked-fresh", "nothing-proposed")
    cold = {f"p{number}": {"warm": False, "cold": reason} for number, reason in enumerate(reasons)}
    differs = {"numba": {"warm": False, "cold": "nodes-differ: cpu"}, "jax": {"warm": True}}
    found = of(prolog(caches=cold), prolog(user="bob", caches=differs))
    assert found.cold == {**{f"alice: {reason}": 1 for reason in reasons}, "bob: nodes-differ": 1}


def test_a_cache_that_its_job_did_not_use_is_not_counted_as_cold() -> None:
    began = {profile: {"warm": False, "cold": "nothing-published"} for profile in ("numba", "jax", "triton", "vllm")}
    ends = {"numba": {"use": "untouched"}, "jax": {"use": "around"}, "triton": {"use": "built"}}
    other_job = epilog(job_id=8, caches={"triton": {"use": "untouched"}})
    assert of(prolog(caches=began), other_job, epilog(caches=ends), epilog(caches=ends)).cold == {
        "alice: nothing-published": 2  # of one nobody knows yet
    }


def test_beyond_the_largest_numbers_the_rest_is_one() -> None:
    users = [f"user-{number}" for number in range(TOP + 3)]
    cold = {"numba": {"warm": False, "cold": "asked-fresh"}}
    found = of(*(prolog(user=user, caches=cold) for user in [*users, *users[-1:]]))
    assert next(iter(found.cold.items())) == (f"{users[-1]}: asked-fresh", 2)
    assert (len(found.cold), found.cold[OTHERS]) == (TOP + 1, 3)


def test_imports_and_what_avoided_one() -> None:
    found = of(
        prolog(images=[image("imported", 50, waited=10)]),
        imported(40),
        prolog(images=[image("waited", 30, waited=30)], head=False),
        prolog(images=[image("reused", 1), image("reused", 5, "r/2")]),
    )
    assert (found.imports, found.imported_bytes, found.avoided) == (2, 2000, 2)
    assert [one[:4] for one in found.times] == [
        ("prolog", 3, 0, 0.75), ("(import of an image)", 2, 0, 45), ("(wait for an image)", 2, 0, 15)
    ]  # fmt: skip
    assert of(imported(40)).avoided == 0  # the job that asked has gone
    assert of(finished({"hook": "images"}, images=[image("imported", 40)])).avoided == 0  # `warmstart images import`


@pytest.mark.parametrize(
    ("use", "saved"),
    [
        ({"images": [image("reused", 1)]}, 99.0),
        ({"images": [image("stale", 1, "r/2", 500)]}, 49.0),
        ({"images": [image("waited", 90, waited=90)]}, 0.0),
        ({"images": [image("reused", 1)], "head": False}, 0.0),
    ],
)
def test_an_image_that_was_there_saves_its_import(use: Line, saved: float) -> None:
    assert of(imported(100), prolog(**use)).saved == saved


def test_without_an_import_nobody_knows_what_was_saved() -> None:
    assert of(prolog(images=[image("reused", 1)])).saved is None


def test_bytes_and_entries() -> None:
    found = of(
        epilog(caches={"numba": {"entries": 3, "size": 10}}),
        {**EPILOG, "event": "harvest.finished", "done_by": {"hook": "maintain"}, "caches": {"jax": {"entries": 4}}},
    )
    assert (found.entries, found.published_bytes, found.runs) == (7, 10, 1)


def test_failures_by_what_came_of_them() -> None:
    failures: list[Line] = [
        {"degree": "refused", "step": "image", "code": "image-refused"},
        {"degree": "drained", "step": "prolog", "code": "file-system-broken"},
        {"step": "seed", "code": "store-failed"},
    ]
    found = of(prolog(failures=failures), act("image.import-failed", error={"code": "registry-unreachable"}))
    assert found.failures == {
        "refused: image-refused": 1,
        "drained: file-system-broken": 1,
        "seed: store-failed": 1,
        "image.import-failed: registry-unreachable": 1,
    }


def test_hooks_and_those_that_ended_badly() -> None:
    """A refused job is no failure of its hook; a killed hook is, and so is one of which only the start is known."""
    outcomes = [*["ok"] * 96, "refused", "failed", "crashed", "drained"]
    (hook, other) = of(
        *(prolog(outcome=outcome, duration_ms=50) for outcome in outcomes), started(), {**started(EPILOG), "ts": "2026"}
    ).times
    assert (other.what, other.number, other.failed, 0.025 < other.p50 < 0.05) == ("prolog", 100, 4, True)
    assert (hook.what, hook.number, hook.failed) == ("epilog", 0, 1)


@given(st.lists(st.floats(0.001, 300), min_size=1))
def test_quantiles_are_as_near_as_the_classes_of_the_metrics(durations: list[float]) -> None:
    (hook,) = of(*(prolog(duration_ms=1000 * seconds) for seconds in durations)).times
    ordered = sorted(durations)
    for share, found in zip((0.5, 0.95, 0.99), hook[3:], strict=True):
        exact = next(value for number, value in enumerate(ordered, 1) if number >= share * len(ordered))
        low, high = next(ends for ends in pairwise((0.0, *HOOK_BOUNDS)) if exact <= ends[1] * (1 + 1e-9))
        assert low <= found <= high


def many(count: int) -> Iterator[Line]:
    """Yield prologs of ever other jobs, images and durations, of which some never end."""
    for number in range(count):
        yield started(job_id=count + number)
        yield prolog(images=[image("reused", 1, f"r/{number}")], duration_ms=number / 7)


def test_memory_does_not_grow_with_jobs() -> None:
    tracemalloc.start()
    try:
        found = summarize(many(12_000), NOW)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert (found.avoided, found.times[0].failed) == (12_000, 12_000)
