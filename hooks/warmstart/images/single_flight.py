"""Single flight: one import of an image for all who want it, without a queue. Runs as root.

    obtain ─▶ in the store? ─▶ yes: its path                         (all that a warm prolog does)
                   │ no
                   ▼
              a hook: ask for a background import and wait           (waiting.py)
              others: import it in this process, or wait for another (making.py)

Hot path unless the image is missing: only then are the modules of an import loaded. The caller audits.
"""

from __future__ import annotations

import time

from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline
from warmstart.images.query import Obtained, Site, query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.store import uses
from warmstart.images.store.layout import ImageQuery
from warmstart.lean import suppress

ANSWER_S = 1.0  # reserved for the last query to the store when the waiting is over


class ImageWaitExpired(StoreError):
    """The image is still being imported at the deadline."""

    code = "image-wait-expired"
    template = "image {image} is still missing after {waited_s} s of waiting; {producer}"
    hint = "the import goes on: submit the job again when it is done; for very large images raise images.wait"


def obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Return the image. If it is missing, import it or wait for the import; with `site.queue` only ask and wait.

    Raises `ImageNotFound`, `ImageForbidden` (also those that another import has just had), `RegistryUnreachable`,
    `ImageQuotaExceeded`, `ImportFailed`, `ImageWaitExpired`, `ImageInvalid`, `ImageNotOurs`, `StoreFull`,
    `StoreFailed`, `WorkerSilent`, `ScratchUnusable`, `ScratchBroken`, `ProgramMissing`, `ProgramTooSlow`; with
    `site.queue` also `StateFull`, `StateUnusable`, `ImportAbandoned`, `ImageRefused`.
    """
    started = time.monotonic()
    query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    image = site.look_up(query, "reused", deadline)
    if image and site.rules.verify == "full":
        from warmstart.images.imports import making

        image = None if making.discard_damaged(image.name, query, site, deadline) else image
    image = image or _missing(query, site, deadline, started)
    if uses.is_noted(site.uses, image.name):
        return image
    with suppress(OSError, StoreError):  # without a mark the image can still be used
        site.store.mark(image.name, site.requester.node, deadline)
        uses.note(site.uses, image.name)
    # It may have been evicted before it was marked.
    if site.store.find(query, deadline, image.digest):
        return image
    return _missing(query, site, deadline, started)


def _missing(query: ImageQuery, site: Site, deadline: Deadline, started: float) -> Obtained:
    last_look = Deadline(deadline.at - ANSWER_S)
    if site.queue is None:
        return _import_or_wait(query, site, last_look, deadline, started)
    from warmstart.images.imports import waiting

    image = waiting.Wait(query, site, site.queue).until(last_look, deadline)
    waited_s = round(time.monotonic() - started, 3)
    if isinstance(image, str):
        raise ImageWaitExpired(image=query.reference.canonical(), waited_s=round(waited_s), producer=image)
    return image._replace(waited_s=waited_s)


def _import_or_wait(query: ImageQuery, site: Site, last_look: Deadline, deadline: Deadline, started: float) -> Obtained:
    from warmstart.images.imports import making

    pauses, how, waited_s = making.pauses(last_look), "reused", 0.0
    while True:
        making.raise_remembered(query, site, deadline)
        if ours := making.begin(query, site, deadline):
            return making.produce(ours, how)._replace(waited_s=waited_s)
        if last_look.expired():
            doing = making.describe_producer(query, site) or "its producer is unknown"
            raise ImageWaitExpired(image=query.reference.canonical(), waited_s=round(waited_s), producer=doing)
        next(pauses)
        how, waited_s = "waited", round(time.monotonic() - started, 3)
        if image := site.look_up(query, how, deadline):
            return image._replace(waited_s=waited_s)
