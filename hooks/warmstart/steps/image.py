"""Step `image`: have the job's images in the store, each imported once per cluster (design, Image store)."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from warmstart.audit import events
from warmstart.host.deadline import Deadline
from warmstart.images import flight
from warmstart.images.asked import Obtained, Site
from warmstart.images.importers.choice import choose
from warmstart.images.reference import Reference
from warmstart.steps.contract import Context, Outcome

NAME = "image"

EVENTS = {
    "reused": events.IMAGE_REUSED,
    "waited": events.IMAGE_WAITED,
    "imported": events.IMAGE_IMPORTED,
}


class Options(NamedTuple):
    """The images, the one that `WARMSTART_IMAGE` names first."""

    references: tuple[Reference, ...]


def run(context: Context, options: Options) -> Outcome:
    """Obtain every image; the first failure is the step's."""
    site = _site(context)
    deadline = context.deadline.within(context.policy.images.wait)
    images = {reference.canonical(): _obtain(context, reference, site, deadline) for reference in options.references}
    paths = [image.path for image in images.values()]
    return Outcome(
        "changed" if any(image.how == "imported" for image in images.values()) else "unchanged",
        detail={"images": len(images)},
        record={
            "image": next(iter(images.values())).digest,
            "images": {name: image.path for name, image in images.items()},
        },
        environment={"WARMSTART_IMAGE": paths[0], "WARMSTART_IMAGES": ":".join(paths)},
    )


def _obtain(context: Context, reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    started = time.monotonic()
    image = flight.obtain(reference, site, deadline)
    name = reference.canonical()
    if image.quarantined:
        context.audit.emit(events.IMAGE_QUARANTINED, image=name, digest=image.digest, reason=image.quarantined)
    context.audit.emit(
        EVENTS[image.how],
        image=name,
        digest=image.digest,
        path=image.path,
        bytes=image.size,
        waited_ms=round(image.waited_s * 1000),
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )
    return image


def _site(context: Context) -> Site:
    policy, record = context.policy, context.record
    return Site(
        store=policy.paths.store,
        worker=context.store,
        importer=partial(choose, policy.images.importer, policy.import_user, policy.images.insecure),
        validator=policy.validate_user,
        tag_ttl=policy.images.tag_ttl,
        workspace=policy.paths.workspace,
        node=record.node,
        run_id=record.run_id,
        job_id=record.job_id,
    )
