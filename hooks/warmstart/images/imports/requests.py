"""Requests for background imports on one node: queue, one for each image and user. Runs as root.

    /run/warmstart/<node>/queue/imports/    root, 0700 (`warmstart.queue`)
        UID,DUE,ATTEMPTS,KEY                an `ImportRequest`; KEY is IMAGE.UID
    /run/warmstart/<node>/imports/          root, 0700
        IMAGE.failed                        how its last import on this node failed, for the hooks that wait here

Hooks write requests, and start the program that does them (`queue.imports`) where it is not at work. A request goes
when its image is published, when trying again is useless, when it is cancelled, or when it is tried
`IMPORT_S` after it was made.

Users who want the same image have a request each, so that each has its own turn, and is charged for its own import. One
import at a time is made of an image; how it ends, ends the others' requests, unless it concerns one user alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from typing import NamedTuple

from warmstart.host import files, wire
from warmstart.host.files import ensure_path, names_in, opened_dir, read_small, replace_file
from warmstart.images.importers.base import ImportFailed
from warmstart.images.query import Site
from warmstart.images.store.layout import CLOCK_SKEW, IMPORT_S, ImageQuery
from warmstart.images.store.published import RememberedFailure
from warmstart.paths import NodePaths
from warmstart.queue import Item, Kind, Queue

IMPORTS = Kind(
    "imports", most=16, backoff_s=10.0, parallel=2, hook="import", is_idle=False, unit="warmstart-import@{}.service"
)
MOST_ATTEMPTS = 5
EXPIRED = "its time is over"
FAILED = ".failed"
_LONGEST = 16384


class ImportAbandoned(ImportFailed):
    """A background import is not tried again. Its code is the same."""

    hint = "`warmstart audit --event image.import-failed` on that node shows why; the next job that needs it asks again"

    @classmethod
    def of(cls, image: str, node: str, problem: str) -> ImportAbandoned:
        """Return the error for the import of an image on a node."""
        return cls(image=image, program=f"its import on node {node}", problem=problem)


class ImportRequest(NamedTuple):
    """What a hook asks for. Times are in seconds since the epoch."""

    reference: str  # canonical
    kind: str  # MACHINE.RECIPE of the importer
    private: str  # name of the store of private images, "" for the shared one
    user: str  # who is charged; as in `layout.Charged`
    uid: int
    cluster: str  # of the job that asked first
    job_id: int
    asked: float
    fresh_after: float = 0.0  # a tag that was resolved before this is asked again, whatever `images.tag_ttl`

    @classmethod
    def of(cls, query: ImageQuery, site: Site) -> ImportRequest:
        """Return the request for an image by a hook."""
        who, charged = site.requester, site.charged
        image = (query.reference.canonical(), query.kind, site.private)
        return cls(*image, *charged, who.cluster, who.job_id, time.time(), query.fresh_after)

    @property
    def image(self) -> str:
        """Its image's name here, whoever asks."""
        return hashlib.sha256(f"{self.reference}\0{self.kind}\0{self.private}".encode()).hexdigest()[:32]

    @property
    def key(self) -> str:
        """The item's."""
        return f"{self.image}.{self.uid}"

    def is_expired(self) -> bool:
        """Return whether its time is over. So it is if it comes from the future: then the clock was wrong."""
        return not -CLOCK_SKEW <= time.time() - self.asked < IMPORT_S


def image_of(key: str) -> str:
    """Return the image of an item's key (`ImportRequest.image`)."""
    return key.partition(".")[0]


def submit(paths: NodePaths, request: ImportRequest) -> str:
    """Write a request unless it is there; return "", or why it was not written. Raises `OSError`.

    One whose time is over is made anew; one whose last attempt has failed is tried at once.
    """
    queue, owner = Queue(paths, IMPORTS), str(request.uid)
    item = queue.find(request.key)
    known = queue.read(item, ImportRequest) if item else None
    if item is None or known is None:
        if queue.add(owner, request.key, request):
            return ""
        whose = f"user {request.user}" if request.user else "the policy"
        return f"{queue.count(owner)} imports of {whose} wait on node {paths.node} already"
    if known.is_expired():
        queue.put(Item(owner, int(time.time()), 0, request.key), request)
    elif item.attempts and (failure := last_failure(paths, request.image)) and failure.at >= item.tried(IMPORTS):
        queue.hasten(item)
    return ""


def waiting(paths: NodePaths) -> list[tuple[Item, ImportRequest]]:
    """Return all requests of a node, those at work included."""
    queue = Queue(paths, IMPORTS)
    found = ((item, queue.read(item, ImportRequest)) for item in queue.all())
    return [(item, request) for item, request in found if request]


def drop_others(paths: NodePaths, item: Item) -> None:
    """Remove all other users' requests for the image of an item. Raises `OSError`."""
    queue = Queue(paths, IMPORTS)
    for other in queue.all():
        if other.key != item.key and image_of(other.key) == image_of(item.key):
            queue.drop(other.key)


def remember_failure(paths: NodePaths, image: str, failure: RememberedFailure) -> None:
    """Write down for the hooks of this node how an import failed. Raises `OSError`."""
    data = json.dumps(failure._replace(at=time.time())._asdict()).encode()
    ensure_path(paths.imports, 0o700)
    with opened_dir(paths.imports) as fd:
        replace_file(fd, image + FAILED, data, 0o600, durable=False)


def forget_failure(paths: NodePaths, image: str) -> None:
    """Forget how an import failed: the image is here now. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(paths.imports) as fd:
        os.unlink(image + FAILED, dir_fd=fd)


def last_failure(paths: NodePaths, image: str) -> RememberedFailure | None:
    """Return how the last import on this node failed; None if that is not known, or there was none."""
    try:
        return wire.from_object(RememberedFailure, wire.parse(read_small(f"{paths.imports}/{image}{FAILED}", _LONGEST)))
    except (OSError, ValueError):
        return None


def failures(paths: NodePaths) -> list[RememberedFailure]:
    """Return how imports failed on this node, as far as that is remembered."""
    images = sorted(name.removesuffix(FAILED) for name in names_in(paths.imports) if name.endswith(FAILED))
    return [failure for image in images if (failure := last_failure(paths, image)) is not None]


def forget_failures(paths: NodePaths, older_than_s: float) -> None:
    """Forget old failures, and whatever else is old there. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(paths.imports) as fd:
        files.remove_older(fd, time.time() - older_than_s, bool)
