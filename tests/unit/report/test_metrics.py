"""Counters: each line adds what it says, and nothing is lost when they are kept."""

from __future__ import annotations

import json

import pytest

from tests.lib.hook_lines import NOW, act, epilog, finished, started
from warmstart.audit.line import Line
from warmstart.host import wire
from warmstart.report import metrics
from warmstart.report.lines import Hooks
from warmstart.report.metrics import Counters, Metric, Sample


def counted(*lines: Line, now: float = NOW) -> Counters:
    """Return the counters after these lines."""
    counters, pairs = Counters(), Hooks()
    for line in lines:
        counters.add_line(line)
        for hook in pairs.add(line):
            counters.add_hook(hook)
    for hook in pairs.killed(now):
        counters.add_hook(hook)
    return counters


def values(counters: Counters, metric: Metric) -> dict[str, float]:
    return {" ".join(sample.labels): sample.values[-1] for sample in counters.samples(metric) if sample.values[-1]}


def test_hooks() -> None:
    slow = finished(outcome="failed", duration_ms=10**6)
    crashed, killed = finished(outcome="crashed", duration_ms=40), started(job_id=8, ts="2026-01-31T09:00:00.000Z")
    goes_on = started(job_id=9, ts="2026-01-31T09:59:00.000Z")
    counters = counted(finished(duration_ms=40), slow, crashed, killed, goes_on)
    runs = {"prolog ok": 1, "prolog failed": 1, "prolog crashed": 1, "prolog killed": 1}
    assert values(counters, metrics.HOOK_RUNS) == runs
    (found,) = counters.samples(metrics.HOOK_SECONDS)
    assert (found.labels, found.values[:-1]) == (["prolog"], [0, 0, 2, *[0] * 11, 1])
    assert found.values[-1] == pytest.approx(1000.08)


def test_images() -> None:
    waited, reused = {"how": "waited", "ms": 41_000, "waited_ms": 40_000}, {"how": "reused"}
    failed = act("image.import-failed", error={"code": "x"})
    counters = counted(
        finished(images=[waited, reused]), act("image.imported", duration_ms=41_000, waited_ms=40_000), failed
    )
    assert values(counters, metrics.IMAGE_USES) == {"waited": 1, "reused": 1}
    assert values(counters, metrics.IMPORTS) == {"ok": 1, "failed": 1}
    assert values(counters, metrics.FAILURES) == {"image.import-failed x": 1}
    (imports,), (waits,) = (counters.samples(metric) for metric in (metrics.IMPORT_SECONDS, metrics.WAIT_SECONDS))
    assert (imports.values[-1], sum(imports.values[:-1]), waits.values[-1]) == (1.0, 1, 40.0)


def test_caches_and_entries() -> None:
    starts = {"numba": {"warm": True}, "jax": {"warm": False, "cold": "nodes-differ: cpu, gpu"}}
    ends = {
        "jax": {"entries": 3, "use": "built", "rejected": {"smaller": 2}},
        "numba": {"use": "hit"},
        "vllm": {"use": ""},
    }
    counters = counted(finished(caches=starts), epilog(caches=ends))
    assert values(counters, metrics.CACHE_STARTS) == {"numba warm": 1, "jax nodes-differ": 1}
    assert values(counters, metrics.HARVESTED) == {"jax": 3}
    assert values(counters, metrics.REJECTED) == {"smaller": 2}
    assert values(counters, metrics.CACHE_USES) == {"jax built": 1, "numba hit": 1}


@pytest.mark.parametrize(
    ("line", "metric", "labels"),
    [
        (act("image.damaged"), metrics.DAMAGED, "image"),
        (act("bundle.damaged"), metrics.DAMAGED, "bundle"),
        (act("harvest.dropped"), metrics.LOST, "harvest"),
        (finished(outcome="drained"), metrics.HOOK_RUNS, "prolog drained"),
        (finished(failures=[{"degree": "refused", "code": "x"}]), metrics.FAILURES, "refused x"),
        (finished(failures=[{"step": "seed", "code": "x"}]), metrics.FAILURES, "seed x"),
    ],
)
def test_what_alerts_look_at(line: Line, metric: Metric, labels: str) -> None:
    before = {" ".join(sample.labels) for sample in counted().samples(metric)}
    assert values(counted(line), metric) == {labels: 1}
    assert (labels in before) is (metric != metrics.FAILURES)  # an increase from 0 is seen


def test_nothing_is_lost_when_they_are_kept() -> None:
    counters = counted(finished(), epilog(caches={"jax": {"use": "hit"}}))
    samples = [sample for metric in metrics.CATALOGUE for sample in counters.samples(metric)]
    kept = [wire.from_object(Sample, json.loads(json.dumps(sample._asdict()))) for sample in samples]
    again = Counters(kept)
    assert [sample for metric in metrics.CATALOGUE for sample in again.samples(metric)] == samples


@pytest.mark.parametrize("sample", [Sample("gone", [], [1]), Sample(metrics.HOOK_RUNS.name, ["prolog"], [1])])
def test_what_the_catalogue_has_no_more_is_dropped(sample: Sample) -> None:
    assert not any(values(Counters([sample]), metric) for metric in metrics.CATALOGUE)
