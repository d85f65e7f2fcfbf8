"""Single flight: one import of an image for all hooks that want it, without a queue. Runs as root.

    obtain ─▶ in the store? ─▶ yes: its path                         (all that a warm prolog does)
                   │ no
                   ▼
              failed just now? ─▶ yes: that failure
                   │ no
                   ▼
              got the lock? ─▶ no: sleep a little, look again        (waiters: no lock, no queue)
                   │ yes
                   ▼
              look again → adopt, or resolve → import → claim → validate → publish → point

Hot path unless the image is missing: only then are the modules of an import loaded. The caller audits.
"""

from __future__ import annotations

import time
from contextlib import suppress

from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline
from warmstart.images import uses
from warmstart.images.layout import ImageQuery
from warmstart.images.query import Obtained, Site, query_by_rules
from warmstart.images.reference import Reference

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.25
ANSWER_S = 1.0  # reserved for the last query to the store when the waiting is over


class ImageWaitExpired(StoreError):
    """Another hook still imports the image at the deadline."""

    code = "image-wait-expired"
    template = "image {image} is still missing after {waited_s} s of waiting; {producer}"
    hint = "submit the job again when the import is done; for very large images raise images.wait in the policy"


def obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Return the image; import it if it is missing, or wait for another hook that does.

    Raises `ImageNotFound`, `ImageForbidden` (also those that another hook has just had), `RegistryUnreachable`,
    `ImageQuotaExceeded`, `ImportFailed`, `ImageWaitExpired`, `ImageInvalid`, `ImageNotOurs`, `StoreFull`,
    `StoreFailed`, `WorkerSilent`, `ScratchUnusable`, `ScratchBroken`, `ProgramMissing`, `ProgramTooSlow`.
    """
    started = time.monotonic()
    query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    image = site.look_up(query, "reused", deadline)
    if image and site.rules.verify == "full":
        from warmstart.images import producer

        image = None if producer.discard_damaged(image.name, query, site, deadline) else image
    image = image or _wait_or_import(query, site, deadline, started)
    if uses.is_noted(site.uses, image.name):
        return image
    with suppress(OSError, StoreError):  # without a mark the image can still be used
        site.store.mark(image.name, site.requester.node, deadline)
        uses.note(site.uses, image.name)
    # It may have been evicted before it was marked.
    if site.store.find(query, deadline, image.digest):
        return image
    return _wait_or_import(query, site, deadline, started)


def _wait_or_import(query: ImageQuery, site: Site, deadline: Deadline, started: float) -> Obtained:
    import random

    from warmstart.images import producer

    last_look = Deadline(deadline.at - ANSWER_S)
    pause, how, waited_s = FIRST_PAUSE_S, "reused", 0.0
    while True:
        producer.raise_remembered(query, site, deadline)
        if ours := producer.begin(query, site, deadline):
            return producer.produce(ours, how)._replace(waited_s=waited_s)
        if last_look.expired():
            doing = producer.describe_producer(query, site)
            raise ImageWaitExpired(image=query.reference.canonical(), waited_s=round(waited_s), producer=doing)
        # S311: jitter between the waiters of many nodes; no secret
        time.sleep(min(pause * (0.5 + random.random()), last_look.left()))  # noqa: S311
        pause = min(pause * 1.5, LONGEST_PAUSE_S)
        how, waited_s = "waited", round(time.monotonic() - started, 3)
        if image := site.look_up(query, how, deadline):
            return image._replace(waited_s=waited_s)
