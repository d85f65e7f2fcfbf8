"""Counters: each event adds what it says, no more labels than the bound, and nothing is lost when they are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.lib import sample_log
from warmstart.audit.line import Line
from warmstart.audit.runs import runs
from warmstart.host import wire
from warmstart.report import metrics
from warmstart.report.metrics import Counters, Distribution, Metric, Sample, SavedCounters
from warmstart.report.summary import summarize


def add(counters: Counters, lines: Iterable[Line]) -> None:
    for run in runs(lines):
        counters.add_run(run)


def counted(*lines: dict[str, Any]) -> Counters:
    """Return the counters after these events of a prolog."""
    counters = Counters()
    for line in lines:
        add(counters, [{"hook": "prolog", **line}])
    return counters


def values(counters: Counters, metric: Metric) -> dict[str, float]:
    return {" ".join(sample.labels): sample.value for sample in counters.samples(metric) if sample.value}


def test_hooks() -> None:
    end: Line = {"event": "hook.finished", "outcome": "ok", "duration_ms": 40}
    crash = {"event": "hook.crashed", "traceback": "…"}
    counters = counted(end, {**end, "outcome": "failed", "duration_ms": 10**6}, crash, {**crash, "reason": "killed"})
    assert values(counters, metrics.HOOK_RUNS) == {"prolog ok": 1, "prolog failed": 1}
    assert values(counters, metrics.HOOK_CRASHES) == {"prolog bug": 1, "prolog killed": 1}
    (found,) = counters.distributions(metrics.HOOK_SECONDS)
    assert (found.labels, found.counts, found.total) == (["prolog"], [0, 0, 1, *[0] * 11, 1], 1000.04)


def test_images() -> None:
    image = {"duration_ms": 41_000, "waited_ms": 40_000, "bytes": 70}
    counters = counted(
        {"event": "image.waited", **image}, {**image, "event": "image.imported", "hook": "import"},
        {"event": "image.reused"}, {"event": "image.import-failed", "hook": "import", "error": {"code": "x"}},
    )  # fmt: skip
    assert values(counters, metrics.IMAGE_USES) == {"waited": 1, "reused": 1}
    assert values(counters, metrics.IMPORTS) == {"ok": 1, "failed": 1}
    assert values(counters, metrics.STEP_FAILURES) == {"import x": 1}
    (imports,), (waits,) = (counters.distributions(metric) for metric in (metrics.IMPORT_SECONDS, metrics.WAIT_SECONDS))
    assert (imports.total, sum(imports.counts), waits.total, sum(waits.counts)) == (1.0, 1, 40.0, 1)


def test_unpacked_images() -> None:
    lines: list[dict[str, Any]] = [
        {"event": "image.unpacked", "hook": "unpack", "run_id": "0a", "bytes": 99, "fetched_bytes": 40},
        {"event": "image.unpack-failed", "hook": "unpack", "run_id": "0b", "error": {"code": "image-not-unpacked"}},
        {"event": "cache.seeded", "run_id": "0c", "profile": "numba", "fetched_bytes": 2},
    ]
    counters = counted(*lines)
    assert values(counters, metrics.STEP_FAILURES) == {"unpack image-not-unpacked": 1}
    assert summarize(runs({"hook": "prolog", **line} for line in lines)).fetched_bytes == 42


def test_caches_and_entries() -> None:
    counters = counted(
        {
            "event": "step.finished",
            "step": "seed",
            "warm": ["numba"],
            "cold": {"jax": "nothing-published"},
        },
        {"event": "cache.seeded", "profile": "numba", "entries": 12, "fetched_bytes": 5},
        {"event": "cache.harvested", "profile": "jax", "entries": 3, "use": "built"},
        {"event": "cache.harvested", "profile": "numba", "entries": 0, "use": "hit"},
        {"event": "cache.harvested", "profile": "numba", "entries": 0, "use": ""},
        {"event": "entry.rejected", "profile": "jax", "reasons": {"smaller": 2}},
        {"event": "bundle.published", "profile": "jax", "size": 10},
    )
    assert values(counters, metrics.CACHE_STARTS) == {"numba warm": 1, "jax cold": 1}
    assert values(counters, metrics.CACHE_USES) == {"jax built": 1, "numba hit": 1}
    assert values(counters, metrics.CACHE_MISSES) == {"nothing-published": 1}
    assert values(counters, metrics.HARVESTED) == {"jax": 3}
    assert values(counters, metrics.REJECTED) == {"smaller": 2}
    late = counted({"event": "bundle.published", "profile": "jax", "size": 10, "spooled": "1.2.6.0a.jax", "entries": 3})
    assert values(late, metrics.HARVESTED) == {"jax": 3}  # its harvest had published nothing


def test_what_was_not_used_began_neither_warm_nor_cold() -> None:
    began = {
        "event": "step.finished",
        "step": "seed",
        "warm": ["numba", "jax"],
        "cold": dict.fromkeys("abc", "no-vote"),
    }
    counters = counted({**began, "job_id": 7}, {**began, "job_id": 8})
    assert values(counters, metrics.CACHE_STARTS) == {}
    counters = Counters(wire.from_object(SavedCounters, json.loads(json.dumps(counters.save()._asdict()))))
    seen = {"numba": "hit", "jax": "untouched", "a": "built", "b": "around"}
    ends: list[Line] = [{"event": "cache.harvested", "profile": name, "use": use} for name, use in seen.items()]
    over: Line = {"event": "hook.finished", "outcome": "ok"}
    add(counters, [{"hook": "epilog", "job_id": 7, **line} for line in (*ends, over)])
    assert values(counters, metrics.CACHE_STARTS) == {"numba warm": 1, "a cold": 1, "c cold": 1}
    assert values(counters, metrics.CACHE_MISSES) == {"no-vote": 2}
    deferred: Line = {"event": "harvest.deferred", "profiles": ["a"]}
    add(counters, [{"hook": "epilog", "job_id": 8, **line} for line in (deferred, over)])
    assert values(counters, metrics.CACHE_MISSES) == {"no-vote": 2}
    late: Line = {"hook": "maintain", "done_by": {}, "job_id": 8, "run_id": "0b"}
    add(counters, [{**late, **line} for line in ends])
    assert values(counters, metrics.CACHE_MISSES) == {"no-vote": 3}


def test_jobs_that_never_end_count_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_RUNNING", 2)
    began = {"event": "step.finished", "step": "seed", "warm": ["numba"]}
    assert values(counted(*({**began, "job_id": job} for job in range(1, 6))), metrics.CACHE_STARTS) == {
        "numba warm": 3
    }


def test_errors() -> None:
    error = {"error": {"kind": "store", "code": "store-full"}}
    counters = counted(
        {"event": "step.failed", "step": "seed", **error}, {"event": "job.refused", **error},
        {"event": "node.drained", **error}, {"event": "harvest.dropped"},
    )  # fmt: skip
    assert values(counters, metrics.STEP_FAILURES) == {"seed store-full": 1}
    assert values(counters, metrics.JOBS_REFUSED) == {"store-full": 1}
    assert values(counters, metrics.NODE_DRAINS) == {"": 1}
    assert values(counters, metrics.HARVESTS_DROPPED) == {"": 1}


def test_what_alerts_look_at_has_a_value_from_the_start() -> None:
    """Else Prometheus sees no increase when the first one comes."""
    assert counted().samples(metrics.NODE_DRAINS) == [Sample("warmstart_node_drains", [], 0.0)]
    assert ["epilog", "killed"] in [sample.labels for sample in counted().samples(metrics.HOOK_CRASHES)]


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_LABELS", 3)
    lines = [{"event": "entry.rejected", "reasons": {f"r{number}": 1}} for number in range(10)]
    assert values(counted(*lines), metrics.REJECTED) == {"r0": 1, "r1": 1, "r2": 1, "other": 7}
    hooks = [{"event": "hook.finished", "hook": f"h{number}", "duration_ms": 1} for number in range(10)]
    counts = {found.labels[0]: sum(found.counts) for found in counted(*hooks).distributions(metrics.HOOK_SECONDS)}
    assert counts == {"h0": 1, "h1": 1, "h2": 1, "other": 7}


def test_kept_counters_go_on() -> None:
    lines = [*sample_log.lines(100)]
    first = Counters()
    add(first, lines[:500])
    kept = wire.from_object(SavedCounters, json.loads(json.dumps(first.save()._asdict())))
    second = Counters(kept)
    add(second, lines[500:])
    whole = Counters()
    add(whole, lines)
    assert [(sample.metric, sample.labels) for sample in second.save().samples] == [
        (sample.metric, sample.labels) for sample in whole.save().samples
    ]
    assert [found.counts for found in second.save().distributions] == [
        found.counts for found in whole.save().distributions
    ]


def test_what_is_no_metric_any_more_is_forgotten() -> None:
    name = metrics.HOOK_SECONDS.name
    old = SavedCounters(
        [Sample("gone", [], 1.0), Sample("warmstart_image_uses", [], 1.0)],
        [Distribution(name, ["prolog"], [1], 1.0)],
        [],
    )
    assert Counters(old).save() == Counters().save()


def test_the_report_counts_the_same() -> None:
    lines = [*sample_log.lines(300)]
    counters = Counters()
    add(counters, lines)
    found = summarize(runs(lines))
    assert sum(values(counters, metrics.IMAGE_USES).values()) == found.images.imported + found.images.avoided
    assert values(counters, metrics.IMPORTS) == {"ok": found.images.imported}
    assert sum(values(counters, metrics.HARVESTED).values()) == found.entries.harvested
    assert (
        values(counters, metrics.CACHE_USES)["numba hit"] == {uses.name: uses.hit for uses in found.profiles}["numba"]
    )
