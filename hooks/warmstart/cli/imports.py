"""Imports under way, for the command line: those at work for the store, and those that wait on this host."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from warmstart.cli.image_store import LISTING_S, Store
from warmstart.cli.output import Column, duration, size
from warmstart.host.deadline import after
from warmstart.images.imports import requests
from warmstart.images.imports.requests import ImportAbandoned
from warmstart.images.store.layout import reference_of
from warmstart.images.store.published import ImageProducer, RememberedFailure

WAITS = "waits for its turn"


def _bytes(value: object) -> str:
    return size(value) if value else "-"


def _seconds(value: object) -> str:
    return duration(value) if isinstance(value, int) and value >= 0 else "-"


COLUMNS = (
    Column("reference"),
    Column("node"),
    Column("job_id"),
    Column("since"),
    Column("done", _bytes),
    Column("total", _bytes),
    Column("rate", lambda value: f"{size(value)}/s" if value else "-"),
    Column("left", _seconds),
    Column("phase"),
    Column("machine", listed=False),
    Column("private", listed=False),
)


class Import(NamedTuple):
    """An import that is under way. Bytes are of the present phase."""

    reference: str
    machine: str  # uname's, of the nodes that can use the image
    node: str
    job_id: int  # that asked first; 0 for an administrator
    since: str  # UTC, ISO 8601
    phase: str
    done: int  # bytes
    total: int  # bytes, 0 if unknown
    rate: int  # bytes per second
    left: int  # seconds, -1 if unknown
    private: str  # its store of private images, "" for the shared one


class Waiting(NamedTuple):
    """A request of this host."""

    node: str
    directory: str
    key: str
    reference: str


def under_way(store: Store) -> list[Import]:
    """Return all imports under way. Only root can see them; for others there are none."""
    if os.geteuid() != 0:
        return []
    found = []
    for name, images in store.stores():
        for lock, producer in images.under_way(after(LISTING_S)).items():
            key, machine, _ = lock.rsplit(".", 2)
            found.append(_at_work(reference_of(key), machine, producer, name))
    known = {(known.reference, known.private) for known in found}
    for node, request in ((node, request) for node, _, request in _requests(store)):
        if (request.reference, request.private) not in known:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(request.asked))
            machine = request.kind.partition(".")[0]
            waits = Import(request.reference, machine, node, request.job_id, since, WAITS, 0, 0, 0, -1, request.private)
            found.append(waits)
    return found


def requested(store: Store, reference: str) -> list[Waiting]:
    """Return the requests of this host for an image, by its canonical reference."""
    return [
        Waiting(node, directory, request.key, request.reference)
        for node, directory, request in _requests(store)
        if request.reference == reference
    ]


def cancel(known: Waiting) -> bool:
    """Remove a request and end its import; return whether there was either. Those who wait are told."""
    is_live = requests.is_live(known.directory, known.key)
    done = requests.cancel(known.directory, known.key)
    if done and not is_live:  # else its process tells
        error = ImportAbandoned(image=known.reference, node=known.node, problem="it was cancelled")
        requests.note_failure(known.directory, known.key, RememberedFailure.of(error))
    return done


def _requests(store: Store) -> list[tuple[str, str, requests.ImportRequest]]:
    """Return (node, directory, request) of this host's requests."""
    installation = store.installation
    places = [(node, installation.node(node).imports) for node in installation.nodes()]
    return [
        (node, directory, request)
        for node, directory in places
        for key in requests.keys(directory)
        if (request := requests.read(directory, key)) is not None
    ]


def _at_work(reference: str, machine: str, producer: ImageProducer, private: str) -> Import:
    is_measured = producer.total > 0 and producer.rate > 0
    left = round((producer.total - producer.done) / producer.rate) if is_measured else -1
    return Import(
        *(reference, machine, producer.host, producer.job, producer.since, producer.phase or "begins"),
        *(producer.done, producer.total, producer.rate, left, private),
    )
