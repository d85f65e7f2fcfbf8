"""Single flight: one import for all who want an image, and nobody waits behind another waiter.

    obtain ─▶ in the store? ─▶ yes: its path                         (all that a warm prolog does)
                   │ no
                   ▼
              failed just now? ─▶ yes: that failure
                   │ no
                   ▼
              the lock? ─▶ no: sleep a little, look again            (waiters: no lock, no queue)
                   │ yes
                   ▼
              look again → resolve → import → take → validate → publish → point

Hot until the image is missing: what an import needs is imported then. The store is asked through its worker
only. Events are the caller's.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity, Worker
from warmstart.images import lookup
from warmstart.images.reference import Reference
from warmstart.store.layout import store_errors

if TYPE_CHECKING:
    from warmstart.images.importers.contract import Importer

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.25


class ImageWaitExpired(StoreError):
    """Somebody else imports the image, and is not done yet."""

    code = "image-wait-expired"
    template = "image {image} is not there after {waited_s} s of waiting; {producer}"
    hint = "submit the job again when the import is done; for very large images raise images.wait in the policy"


class Site(NamedTuple):
    """What is the same for all images of one hook run."""

    store: str
    worker: Worker  # as the store's owner
    importer: Importer
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


def obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Return the image, importing it or waiting for whoever does.

    Raises `ImageNotFound`, `ImageForbidden` (also those that another hook met just now), `RegistryUnreachable`,
    `ImportFailed`, `ImageWaitExpired`, `ImageInvalid`, `ImageNotOurs`, `StoreFull`, `StoreFailed`, `WorkerSilent`,
    `ScratchUnusable`, `ScratchBroken`, `ProgramMissing`, `ProgramTooSlow`.
    """
    started = time.monotonic()
    wanted = _wanted(reference, site)
    found = find(wanted, site, deadline)
    if _is_good(found):
        return _obtained(found, "reused")
    return _wait_or_import(wanted, site, deadline, started)


def find(wanted: Wanted, site: Site, deadline: Deadline, digest: str = "") -> lookup.Found:
    """Look the image up, by `digest` if it is given; {} if it is not there."""
    digest = digest or wanted.reference.digest
    with store_errors(f"look-up of {wanted.reference.canonical()}"):
        arguments = (site.store, wanted.key, digest, wanted.machine, wanted.not_before)
        return site.worker.call(lookup.find, *arguments, deadline=deadline) or {}


def _wanted(reference: Reference, site: Site) -> Wanted:
    key, machine = lookup.key_of(reference.canonical()), os.uname().machine
    return Wanted(reference, machine, key, f"{key}.{machine}", time.time() - site.tag_ttl)


def _wait_or_import(wanted: Wanted, site: Site, deadline: Deadline, started: float) -> Obtained:
    import random

    from warmstart.images import production

    pause, how = FIRST_PAUSE_S, "reused"
    while True:
        production.raise_remembered(wanted, site, deadline)
        if production.begin(wanted, site, deadline):
            made = production.produce(wanted, site, deadline, how)
            return made._replace(waited_s=0.0 if how == "reused" else _since(started))
        how = "waited"
        if deadline.expired():
            raise _expired(wanted, production.describe_producer(wanted, site), started)
        # S311: keeps waiters of many nodes apart; no secret
        time.sleep(min(pause * (0.5 + random.random()), deadline.left()))  # noqa: S311
        pause = min(pause * 1.5, LONGEST_PAUSE_S)
        found = find(wanted, site, deadline)
        if _is_good(found):
            return _obtained(found, how)._replace(waited_s=_since(started))


def _is_good(found: lookup.Found) -> bool:
    return bool(found) and not found["invalid"]


def _obtained(found: dict[str, Any], how: str) -> Obtained:
    return Obtained(found["path"], found["digest"], found["size"], how, 0.0)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)


def _expired(wanted: Wanted, producer: str, started: float) -> ImageWaitExpired:
    image = wanted.reference.canonical()
    return ImageWaitExpired(image=image, waited_s=round(time.monotonic() - started), producer=producer)
