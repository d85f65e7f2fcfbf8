"""Write metrics for node_exporter's textfile collector: the host's and the store's (docs/operations/monitoring.md).

The only user of prometheus-client. Maintenance writes them, hooks never do. What the audit log gained since the last
time is added to counters that are kept in one file together with the position in the log, so that nothing is counted
twice if a run is killed. Counters of a log that was compressed or removed before it was read are too low.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from warmstart.audit.line import decoded
from warmstart.audit.query import AuditLog, LineFilter, Position
from warmstart.caches.store.gc import Bundle
from warmstart.ending.waiting import ENDINGS
from warmstart.host import files, trusted, wire
from warmstart.images.store import eviction
from warmstart.maintenance.store import STORE_STEP, image_stores, survey
from warmstart.paths import Installation
from warmstart.policy.current import CurrentPolicy
from warmstart.queue import Queue
from warmstart.report.lines import Hooks
from warmstart.report.metrics import CATALOGUE, Counters, Sample
from warmstart.session import Session

FORMAT = 1
HOST_FILE, STORE_FILE = "warmstart.prom", "warmstart-store.prom"
_COUNTERS, _LOCK = "counters.json", "lock"
_LARGEST = 8 << 20


class _Kept(NamedTuple):
    """What is kept between two runs."""

    format: int
    positions: dict[str, Position]  # by path of the log
    begun: list[str]  # first lines of hooks that had not finished, in JSON
    samples: list[Sample]


def write_host(installation: Installation, current: CurrentPolicy) -> None:
    """Count what is new in the audit log and write the host's metrics. Raises `DiskFailed`.

    Does nothing if another process is about it.
    """
    directory, log = current.policy.paths.metrics, current.policy.paths.audit
    if directory is None:
        return
    with (
        files.disk_errors(f"metrics in {installation.metrics}"),
        files.opened_lock(installation.metrics, _LOCK) as lock,
    ):
        if not files.try_flock(lock):
            return
        with files.opened_dir(installation.metrics) as kept:
            counters = _counted(kept, log)
    _write(directory, HOST_FILE, [*_of_host(installation, current), *_of_log(counters)])


def write_store(session: Session) -> None:
    """Write the store's metrics, at the end of its maintenance. Raises `DiskFailed` and the store's errors."""
    directory = session.policy.paths.metrics
    if directory is None:
        return
    lease = session.policy.images.keep.lease
    images = [
        image.bytes
        for store in image_stores(session)
        for image in store.run(session.store_deadline(), eviction.inventory, lease)
    ]
    bundles = survey(session.store, partial(session.failed, STORE_STEP))
    name = "warmstart_store_maintenance_last_success_timestamp_seconds"
    families = [
        _gauge("warmstart_store_bytes", "Bytes of bundles, by kind of scope.", "scope", _sizes(bundles)),
        GaugeMetricFamily("warmstart_store_image_bytes", "Bytes of images.", value=sum(images)),
        GaugeMetricFamily(name, "When maintenance of the store last got to its end.", value=time.time()),
    ]
    _write(directory, STORE_FILE, families)


def _counted(directory: int, log: str) -> Counters:
    """Add what is new in the log to the counters that are kept, and keep them."""
    kept = _read(directory)
    counters, hooks = Counters(kept.samples), Hooks(filter(None, (decoded(line.encode()) for line in kept.begun)))
    audit = AuditLog([log], kept.positions)
    with suppress(FileNotFoundError):  # no hook has run yet
        for line in audit.lines(LineFilter()):
            counters.add_line(line)
            for hook in hooks.add(line):
                counters.add_hook(hook)
    for hook in hooks.killed(time.time()):
        counters.add_hook(hook)
    samples = [sample for metric in CATALOGUE for sample in counters.samples(metric)]
    counted = _Kept(FORMAT, audit.positions, [*map(json.dumps, hooks.begun)], samples)
    files.replace_file(directory, _COUNTERS, json.dumps(counted._asdict()).encode(), 0o600)
    return counters


def _read(directory: int) -> _Kept:
    """Return what was kept. Counters begin at zero where there is nothing, or nothing that can be read."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        counted = wire.from_object(_Kept, wire.parse(files.read_small(_COUNTERS, _LARGEST, directory)))
        if counted.format == FORMAT:
            return counted
    return _Kept(FORMAT, {}, [], [])


def _of_log(counters: Counters) -> Iterator[Metric]:
    for metric in CATALOGUE:
        if metric.bounds:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            names = [*map(str, metric.bounds), "+Inf"]
            for sample in counters.samples(metric):
                family.add_metric(
                    sample.labels, list(zip(names, accumulate(sample.values[:-1]), strict=True)), sample.values[-1]
                )
            yield family
        else:
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for sample in counters.samples(metric):
                counter.add_metric(sample.labels, sample.values[0])
            yield counter


def _of_host(installation: Installation, current: CurrentPolicy) -> Iterator[Metric]:
    valid, off = int(current.problem is None), int(installation.is_off)
    yield GaugeMetricFamily("warmstart_policy_valid", "Whether the policy's files are good: 1, or 0.", value=valid)
    yield GaugeMetricFamily("warmstart_switched_off", "Whether warmstart is off on this host: 1, or 0.", value=off)
    nodes = {node: installation.node(node) for node in installation.nodes()}
    successes = {node: at for node, paths in nodes.items() if (at := _modified(paths.maintained))}
    name = "warmstart_maintenance_last_success_timestamp_seconds"
    yield _gauge(name, "When maintenance of the node last got to its end.", "node", successes)
    waiting = {node: len(Queue(paths, ENDINGS).all()) for node, paths in nodes.items()}
    yield _gauge("warmstart_waiting_runs", "Runs on the node that wait to be harvested or removed.", "node", waiting)


def _sizes(bundles: Iterable[Bundle]) -> dict[str, int]:
    """Return the bytes of bundles by kind of scope."""
    sizes = {"user": 0, "account": 0, "site": 0}
    for bundle in bundles:
        kind = bundle.scope.partition("-")[0]
        sizes[kind] = sizes.get(kind, 0) + bundle.size
    return sizes


def _gauge(name: str, words: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, words, labels=[label])
    for value, number in values.items():
        gauge.add_metric([value], number)
    return gauge


def _modified(path: str) -> float:
    """Return a file's time of last change, 0.0 if it is missing."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _write(directory: str, name: str, families: Iterable[Metric]) -> None:
    registry = CollectorRegistry()
    registry.register(_Families(families))
    data = generate_latest(registry)
    with files.disk_errors(f"metrics in {directory}"), trusted.opened_trusted(directory, (os.geteuid(),)) as fd:
        files.replace_file(fd, name, data, 0o644, durable=False)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = [*families]

    def collect(self) -> list[Metric]:
        return self._families
