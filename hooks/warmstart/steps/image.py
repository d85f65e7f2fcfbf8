"""Step `image`: find the job's images in the store, or ask for their import and wait (docs/reference/images.md)."""

from __future__ import annotations

import time

from warmstart.audit.log import Log
from warmstart.errors import StoreError, UserError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.images import single_flight
from warmstart.images.query import Obtained, Requester, Site
from warmstart.images.reference import PyxisImage, Reference
from warmstart.images.single_flight import STORE_FAILED
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY, Charged
from warmstart.lean import TYPE_CHECKING, Callable, Mapping, NamedTuple, partial, suppress
from warmstart.run.state import CLAIMED
from warmstart.steps.contract import Context, Outcome

if TYPE_CHECKING:
    from warmstart.images.agreed import HeadImage, Heads
    from warmstart.images.ahead import Ahead
    from warmstart.store.barrier import Barrier

    Find = Callable[[Reference, Site, Deadline], Obtained]

NAME = "image"

REFRESH_S = 300  # `refresh`: an answer of the registry that is younger than this counts, so that users cannot flood it
# What the registry says of an image that it does not show to the site: Docker Hub says the first of private ones.
NOT_SHOWN = frozenset({"image-not-found", "image-forbidden"})
# Nothing of the site's can say which image it is: the store has failed, or the job's head node has, or is switched off.
UNKNOWN = frozenset({STORE_FAILED, "head-silent"})
STORE_S = 15.0  # for a store that fails, before pyxis imports its image as the user


class Options(NamedTuple):
    """The images. `WARMSTART_IMAGE` names the first one."""

    references: tuple[Reference, ...]
    by_policy: frozenset[Reference] = frozenset()  # the references that rules name; they count in no quota
    private: tuple[
        tuple[Reference, str], ...
    ] = ()  # the references that need the site's credentials, each with the name of its private store
    later: float = 0.0  # seconds that the steps after this one need
    pyxis: PyxisImage | None = None  # pyxis's own among the references
    refresh: bool = False  # whether to ask the registry what tags mean now
    barrier: Barrier | None = None  # where the head node says which images it has; None: each node finds its own
    agreed: frozenset[Reference] = frozenset()  # the references of which it says so
    of_step: bool = False  # only a step names them: of these whoever has found them first says so
    said: Mapping[str, HeadImage] = {}  # noqa: RUF012 - what this node knows to be said, by canonical reference
    ahead: Ahead | None = None  # what the step of the caches will ask for, of the first image


def run(context: Context, options: Options) -> Outcome:
    """Obtain every image that is not left to pyxis.

    Stops at the first failure; an import that was asked for goes on.
    """
    job = _Job(context, options)
    if options.barrier is None:
        return job.obtain()
    from warmstart.images.agreed import Heads

    heads = Heads(context.store, options.barrier)
    if options.of_step:
        return _as_first(context, options, heads)
    if not context.run.head:
        image = next(reference.canonical() for reference in options.references if reference in options.agreed)
        try:
            said = heads.word(image, partial(_job_end, context, options), job.deadline)
        except StoreError as error:
            return job.without_heads(error)
        return job.obtain(heads, said)
    outcome = _as_head(context, options, heads)
    # After a failure the word stays until maintenance removes it: this node's epilog may run before the others read it.
    return outcome._replace(topics=(options.barrier.path,))


def _as_head(context: Context, options: Options, heads: Heads) -> Outcome:
    """Obtain the images, or not, and tell the job's other nodes which."""
    from warmstart.images.agreed import earlier, failed, found

    outcome = Outcome()
    failure: WarmstartError | None = None
    said: dict[str, HeadImage] = {}
    job = _Job(context, options)
    job.deadline = earlier(job.deadline)
    try:
        outcome = job.obtain()
    except WarmstartError as error:
        failure = error
    for name in (reference.canonical() for reference in options.agreed):
        if name in job.images:
            said[name] = found(job.images[name])
        elif why := job.failures.get(name, failure):
            said[name] = failed(why)
    try:
        first_said = heads.say(said, context.deadline)
    except WarmstartError as error:
        if failure is not None:
            raise failure from None
        if error.code == STORE_FAILED and outcome.run and outcome.run.own.image.startswith(CLAIMED):
            return outcome  # the others cannot hear of it either, and leave it to pyxis, too
        raise
    if first_said != said:  # by an earlier prolog of this run
        return _Job(context, options).obtain(heads, first_said)
    if failure is not None:
        raise failure
    return outcome


def _as_first(context: Context, options: Options, heads: Heads) -> Outcome:
    """Obtain images as the job's first step in them has, on whichever node; or say which they are.

    Where the store is out of order each node has what it finds.
    """
    said = dict(options.said)
    if not said:
        with suppress(StoreError):
            said = heads.heard(context.deadline)
    if said:
        return _Job(context, options).obtain(heads, said)
    from warmstart.images.agreed import HeadImage

    job = _Job(context, options)
    outcome = job.obtain()
    own = {name: HeadImage(image.digest, stale=image.reason) for name, image in job.images.items()}
    with suppress(StoreError):
        said = heads.say(own, context.deadline)
        if {name: image.digest for name, image in said.items()} != {name: image.digest for name, image in own.items()}:
            return _Job(context, options).obtain(heads, said)
    return outcome


class _Job:
    """The images of one job, as this node obtains them."""

    def __init__(self, context: Context, options: Options) -> None:
        policy, run = context.policy, context.run
        requester = Requester(run.node, run.run_id, run.job_id, run.cluster)
        store = ImageStoreClient(context.store.worker, policy.paths.store)
        site = Site.of(policy, context.paths, store, requester)._replace(job_end=partial(_job_end, context, options))
        if options.refresh:
            site = site._replace(rules=site.rules._replace(tag_ttl=min(site.rules.tag_ttl, REFRESH_S)))
        self._context = context
        self._options = options
        self._site = site._replace(charged=Charged(run.user, run.uid))
        self.deadline = Deadline(context.deadline.at - options.later).within(policy.images.wait)
        self.images: dict[str, Obtained] = {}  # by canonical reference
        self.failures: dict[str, WarmstartError] = {}  # the same

    def obtain(self, heads: Heads | None = None, said: Mapping[str, HeadImage] | None = None) -> Outcome:
        """Obtain all images; those that the nodes agree on as the head node has `said`."""
        pyxis, left = self._options.pyxis, ""  # why pyxis's image is left to pyxis
        for reference in self._options.references:
            is_pyxis = pyxis is not None and pyxis.reference == reference
            if pyxis and is_pyxis and pyxis.has_login:
                left = "you named credentials of your own"
                continue
            name = reference.canonical()
            find: Find = single_flight.obtain
            if heads and said is not None and reference in self._options.agreed:
                find = partial(heads.obtain, said.get(name))
            patience_s = STORE_S if is_pyxis else self.deadline.left()
            try:
                self.images[name] = self._obtain(reference, find, patience_s)
            except WarmstartError as error:
                self.failures[name] = error
                if not (is_pyxis and _is_pyxis_turn(error)):
                    raise
                left = str(error)
        return self._left_to_pyxis(pyxis, left) if pyxis and left else self._outcome()

    def without_heads(self, error: WarmstartError) -> Outcome:
        """Leave pyxis's image to pyxis where the head node's word cannot be read; raise the error for other images."""
        pyxis = self._options.pyxis
        if pyxis is None or {*self._options.references} != {pyxis.reference} or not _is_pyxis_turn(error):
            raise error
        return self._left_to_pyxis(pyxis, str(error))

    def _obtain(self, reference: Reference, find: Find, patience_s: float) -> Obtained:
        context, started = self._context, time.monotonic()
        ahead = self._options.ahead if reference == self._options.references[0] else None
        site = self._site._replace(patience_s=patience_s, ahead=ahead)
        if reference in self._options.by_policy:
            site = site._replace(charged=NOBODY)
        scope = dict(self._options.private).get(reference)
        if scope is None:
            image = find(reference, site, self.deadline)
            tell(context.audit, reference.canonical(), image, time.monotonic() - started)
            return image
        from warmstart.images import private

        image = find(reference, private.site_of(site, scope, self.deadline), self.deadline)
        tell(context.audit, reference.canonical(), image, time.monotonic() - started)
        owner = private.JobOwner(context.run.directory, context.run.uid, context.run.gid)
        return image._replace(path=private.hand_over(image, reference, owner, site, self.deadline))

    def _left_to_pyxis(self, image: PyxisImage, reason: str) -> Outcome:
        """Return the outcome of a job whose container pyxis imports as the user.

        Nobody but the user vouches for what is in it. So its caches lie in the user's own scope, below the reference.
        """
        name, scope, outcome = image.reference.canonical(), image.user_scope, self._outcome()
        why = f"left to pyxis, which imports it as you ({reason}); caches made in it stay yours alone"
        run = outcome.run or self._context.run
        own = run.own._replace(image=f"{CLAIMED}{name}", read_scopes=[scope], publish_scope=scope)
        return outcome._replace(run=run._replace(own=own), notices=(*outcome.notices, f"image {name} is {why}"))

    def _outcome(self) -> Outcome:
        run, images = self._context.run, self.images.values()
        first, paths = next((image.digest for image in images), ""), [image.path for image in images]
        return Outcome(
            run=run._replace(images=dict(zip(self.images, paths, strict=True)), own=run.own._replace(image=first)),
            environment={"WARMSTART_IMAGE": paths[0], "WARMSTART_IMAGES": ":".join(paths)} if paths else {},
            notices=tuple(
                f"image {name} is what its tag meant last, {image.digest}, and may be out of date: {image.reason}"
                for name, image in self.images.items()
                if image.reason
            ),
        )


def _is_pyxis_turn(error: WarmstartError) -> bool:
    """Return whether pyxis imports the image as the user, as it would without warmstart."""
    return error.code in UNKNOWN or (isinstance(error, UserError) and error.code in NOT_SHOWN)


def _job_end(context: Context, options: Options) -> Callable[[Deadline], bool]:
    from warmstart.images.imports.job_end import JobEnd
    from warmstart.slurm import nodes

    scontrol, run = context.policy.paths.scontrol, context.run
    second = options.barrier is not None and nodes.expand(run.nodelist)[1:2] == [run.node]
    return JobEnd(run, context.store, scontrol, stands_in=second).is_known


def tell(audit: Log, name: str, image: Obtained, seconds: float) -> None:
    """Log how an image was obtained, and what the import did if the image was missing."""
    tell_import(audit, name, image)
    stale = {"reason": image.reason} if image.reason else {}
    audit.add(
        "images",
        image=name,
        digest=image.digest,
        how=image.how,
        **stale,
        path=image.path,
        bytes=image.size,
        waited_ms=round(image.waited_s * 1000),
        ms=round(seconds * 1000, 3),
    )


def tell_import(audit: Log, name: str, image: Obtained) -> None:
    """Log what the import of a missing image did besides."""
    missing = image.missing
    if missing.lockless:
        audit.remark(f"was imported without a lock: {missing.lockless}", name)
    if not (missing.damaged or missing.evicted):
        return
    from warmstart.audit import events

    if missing.damaged:
        audit.emit(events.IMAGE_DAMAGED, image=name, digest=image.digest, reason=missing.damaged)
    for evicted in missing.evicted:
        audit.emit(events.IMAGE_EVICTED, name=evicted, reason=f"room for {name}")
