"""Step `image`: find the job's images in the store, or ask for their import and wait (docs/reference/images.md)."""

from __future__ import annotations

import time

from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import UserError
from warmstart.host.deadline import Deadline
from warmstart.images import single_flight
from warmstart.images.query import Obtained, Requester, Site
from warmstart.images.reference import PyxisImage, Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY, Charged
from warmstart.lean import Callable, NamedTuple, partial
from warmstart.policy import trust
from warmstart.record import RecordChange
from warmstart.steps.contract import Context, Outcome

NAME = "image"

EVENTS = {
    "reused": events.IMAGE_REUSED,
    "waited": events.IMAGE_WAITED,
    "imported": events.IMAGE_IMPORTED,
    "adopted": events.IMAGE_ADOPTED,
    "stale": events.IMAGE_STALE,
}


REFRESH_S = 300  # `refresh`: an answer of the registry that is younger than this counts, so that users cannot flood it
# What the registry says of an image that it does not show to the site: Docker Hub says the first of private ones.
NOT_SHOWN = frozenset({"image-not-found", "image-forbidden"})


class Options(NamedTuple):
    """The images. `WARMSTART_IMAGE` names the first one."""

    references: tuple[Reference, ...]
    by_policy: frozenset[Reference] = frozenset()  # the references that rules name; they count in no quota
    private: tuple[
        tuple[Reference, str], ...
    ] = ()  # the references that need the site's credentials, each with the name of its private store
    later: float = 0.0  # seconds that the steps after this one need
    pyxis: PyxisImage | None = None  # pyxis's own among the references
    nodelist: str = ""  # the job's nodes as a Slurm hostlist
    restarts: int = 0  # of the job
    refresh: bool = False  # whether to ask the registry what tags mean now


def run(context: Context, options: Options) -> Outcome:
    """Obtain every image that is not left to pyxis.

    Stops at the first failure; an import that was asked for goes on.
    """
    record, policy = context.record, context.policy
    requester = Requester(record.node, record.run_id, record.job_id, record.cluster)
    store = ImageStoreClient(context.store.worker, policy.paths.store)
    site = Site.of(policy, context.paths, store, requester)._replace(job_end=partial(_job_end, context, options))
    if options.refresh:
        site = site._replace(rules=site.rules._replace(tag_ttl=min(site.rules.tag_ttl, REFRESH_S)))
    account = "" if "account" in trust.unproven(policy) else record.account  # another account's quota is not the user's
    user = Charged(record.user, record.uid, account)
    deadline = Deadline(context.deadline.at - options.later).within(policy.images.wait)
    images, private = {}, dict(options.private)
    left = ""  # why pyxis's image is left to pyxis
    for reference in options.references:
        pyxis = options.pyxis if options.pyxis and options.pyxis.reference == reference else None
        if pyxis and pyxis.has_login:
            left = "you named credentials of your own"
            continue
        charged = site._replace(charged=NOBODY if reference in options.by_policy else user)
        try:
            if name := private.get(reference):
                images[reference.canonical()] = _obtain_private(context, reference, charged, name, deadline)
            else:
                images[reference.canonical()] = _obtain(context, reference, charged, deadline)
        except UserError as error:
            if pyxis is None or error.code not in NOT_SHOWN:
                raise
            left = str(error)
    paths = [image.path for image in images.values()]
    outcome = Outcome(
        "changed" if any(image.how in ("imported", "adopted") for image in images.values()) else "unchanged",
        detail={"images": len(images)},
        record={
            "image": next((image.digest for image in images.values()), ""),
            "images": {name: image.path for name, image in images.items()},
        },
        environment={"WARMSTART_IMAGE": paths[0], "WARMSTART_IMAGES": ":".join(paths)} if paths else {},
        notices=tuple(
            f"image {name} is what its tag meant last, {image.digest}, and may be out of date: {image.reason}"
            for name, image in images.items()
            if image.reason
        ),
    )
    return _left_to_pyxis(context, options.pyxis, left, outcome) if options.pyxis and left else outcome


def _job_end(context: Context, options: Options) -> Callable[[Deadline], bool]:
    from warmstart.images.imports.job_end import JobEnd

    scontrol = context.policy.paths.scontrol
    return JobEnd(context.record, options.nodelist, options.restarts, context.store, scontrol).is_known


def _left_to_pyxis(context: Context, image: PyxisImage, reason: str, outcome: Outcome) -> Outcome:
    """Return the outcome of a job whose container pyxis imports as the user.

    Nobody but the user vouches for what is in it. So its caches lie in the user's own scope, below the reference.
    """
    name = image.reference.canonical()
    context.audit.emit(events.IMAGE_LEFT_TO_PYXIS, image=name, reason=reason)
    notice = f"image {name} is left to pyxis, which imports it as you ({reason}); caches made in it stay yours alone"
    own: RecordChange = {
        "image": f"claimed:{name}",
        "read_scopes": [image.user_scope],
        "publish_scope": image.user_scope,
    }
    return outcome._replace(record={**outcome.record, **own}, notices=(*outcome.notices, notice))


def _obtain(context: Context, reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    started = time.monotonic()
    image = single_flight.obtain(reference, site, deadline)
    tell(context.audit, reference.canonical(), image, time.monotonic() - started)
    return image


def _obtain_private(context: Context, reference: Reference, site: Site, name: str, deadline: Deadline) -> Obtained:
    """Obtain an image of a private store and give the job its own copy."""
    from warmstart.images import private

    image = _obtain(context, reference, private.site_of(site, name, deadline), deadline)
    record = context.record
    owner = private.JobOwner(record.run_directory, record.uid, record.gid)
    return image._replace(path=private.hand_over(image, reference, owner, site, deadline))


def tell(audit: Journal, name: str, image: Obtained, seconds: float) -> None:
    """Audit how an image was obtained, and what the import did if the image was missing."""
    missing = image.missing
    if missing.quarantined:
        audit.emit(events.IMAGE_QUARANTINED, image=name, digest=image.digest, reason=missing.quarantined)
    if missing.lockless:
        audit.emit(events.IMAGE_LOCKLESS, image=name, reason=missing.lockless)
    if missing.left_out:
        audit.emit(events.IMAGE_LEFT_OUT, image=name, reason=missing.left_out)
    for evicted in missing.evicted:
        audit.emit(events.IMAGE_EVICTED, name=evicted, reason=f"room for {name}")
    stale = {"reason": image.reason} if image.reason else {}
    audit.emit(
        EVENTS[image.how],
        **stale,
        image=name,
        digest=image.digest,
        path=image.path,
        bytes=image.size,
        waited_ms=round(image.waited_s * 1000),
        duration_ms=round(seconds * 1000, 3),
    )
