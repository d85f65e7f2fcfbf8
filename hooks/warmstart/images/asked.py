"""One hook's question for one image: the reference, the names that stand for it, and the look-up. Hot path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity, Worker
from warmstart.images import lookup
from warmstart.images.reference import Reference
from warmstart.store.layout import store_errors

if TYPE_CHECKING:
    from warmstart.images.importers.contract import Importer


class Site(NamedTuple):
    """What is the same for all images of one hook run."""

    store: str
    worker: Worker  # as the store's owner
    importer: Callable[[], Importer]  # called when an image is missing: a warm hook does not load it
    validator: Identity
    tag_ttl: float  # seconds
    workspace: str
    node: str
    run_id: str
    job_id: int


class Obtained(NamedTuple):
    """An image that is in the store, whole by its superblock."""

    path: str
    digest: str  # sha256:…, what the registry calls its content
    size: int  # bytes
    how: str  # "reused" | "waited" (for another's import) | "imported"
    waited_s: float
    quarantined: str = ""  # what was wrong with the file that was found first and moved aside


class Wanted(NamedTuple):
    """A reference, and the names that stand for it in the store."""

    reference: Reference
    machine: str  # uname's
    key: str  # of the tag
    lock: str  # of the import: each kind of machine imports for itself
    not_before: float  # seconds since the epoch; an older answer of the registry does not count


def wanted(reference: Reference, site: Site) -> Wanted:
    """Name what a reference stands for, now and on this node."""
    key, machine = lookup.key_of(reference.canonical()), os.uname().machine
    return Wanted(reference, machine, key, f"{key}.{machine}", time.time() - site.tag_ttl)


def find(wanted: Wanted, site: Site, deadline: Deadline, digest: str = "") -> lookup.Found:
    """Look the image up, by `digest` if it is given; {} if it is not there."""
    digest = digest or wanted.reference.digest
    with store_errors(f"look-up of {wanted.reference.canonical()}"):
        arguments = (site.store, wanted.key, digest, wanted.machine, wanted.not_before)
        return site.worker.call(lookup.find, *arguments, deadline=deadline) or {}


def obtained(found: lookup.Found, how: str) -> Obtained | None:
    """Return what was found as an answer; None if nothing was, or nothing whole."""
    if not found or found["invalid"]:
        return None
    return Obtained(found["path"], found["digest"], found["size"], how, 0.0)
