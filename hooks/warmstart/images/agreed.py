"""One image on all nodes of a job: its head node finds it, and the others take the same (docs/reference/images.md).

    head node       find the images, or learn why there are none ─▶ say so
    other nodes     wait for its word ─▶ take the images with those digests, or fail as it did

The other nodes ask no registry and read no tag, so a tag that moves meanwhile means one image for the whole job. Of an
image that only a step names, whichever node has found it first says which one it is. Runs as root; hot path of jobs on
several nodes.
"""

from __future__ import annotations

import time

from warmstart.errors import StoreError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.images import single_flight
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference, is_digest
from warmstart.lean import TYPE_CHECKING, Callable, Mapping, NamedTuple
from warmstart.slurm.nodes import first
from warmstart.store.barrier import Barrier
from warmstart.store.client import StoreClient

if TYPE_CHECKING:
    JobEnd = Callable[[], Callable[[Deadline], bool]]

SAY_S = 5.0  # for the head node's word
ALONE_S = 5.0  # that another node waits before it looks whether the job is over
EARLIER_SHARE = 10  # the head node stops waiting for an import one part in this many of its time before the others,
EARLIER_S = 5.0  # but no more than this, so that they learn why
_WORD = "word"  # the head node's notice


class HeadImage(NamedTuple):
    """What the head node has for one image: a digest, or an error by its code, fields and message."""

    digest: str = ""  # "sha256:HEX"; "" if it has none
    waited: bool = False  # for an import
    stale: str = ""  # why that is what the tag meant last
    code: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012 - never mutated
    text: str = ""


class HeadImages(NamedTuple):
    """What the head node has for the job's images, by canonical reference."""

    images: dict[str, HeadImage]


class HeadHasNone(StoreError):
    """The head node has no image, for a reason that is its own."""

    code = "head-has-no-image"
    template = "the head node {head} has no image {image} for its job: {problem}"
    hint = "see the head node's events in the audit log"


class Heads:
    """What a job's head node says of the images, and who listens."""

    def __init__(self, store: StoreClient, barrier: Barrier) -> None:
        """Say nothing yet."""
        self._store = store
        self._barrier = barrier
        self._head = first(barrier.nodelist)
        self._waited_s = 0.0  # for its word

    def say(self, images: dict[str, HeadImage], deadline: Deadline) -> dict[str, HeadImage]:
        """Say which images the head node has; return that, or what an earlier prolog of this run has said."""
        return self._barrier.begin(self._store, _WORD, HeadImages(images), deadline.within(SAY_S)).images

    def heard(self, deadline: Deadline) -> dict[str, HeadImage]:
        """Return what was said so far."""
        said = self._barrier.hear(self._store, _WORD, HeadImages, deadline.within(SAY_S))
        return said.images if said else {}

    def word(self, image: str, job_end: JobEnd, deadline: Deadline) -> Mapping[str, HeadImage]:
        """Wait on another node for what the head node says, of `image` among others.

        `job_end` as in `Site`: the head node may be gone with the job. Raises `HeadSilent`, `JobOver`, and the store's
        errors at once.
        """
        began = time.monotonic()
        is_over: Callable[[Deadline], bool] | None = None

        def look(until: Deadline) -> HeadImages | None:
            nonlocal is_over
            if (
                said := self._barrier.hear(self._store, _WORD, HeadImages, until)
            ) is None and time.monotonic() - began > ALONE_S:
                is_over = is_over or job_end()
                if is_over(until):
                    from warmstart.images.imports.job_end import JobOver

                    raise JobOver(image=image)
            return said

        said = self._barrier.await_head(self._store, look, deadline, "named no image")
        self._waited_s = round(time.monotonic() - began, 3)
        return said.images

    def obtain(self, said: HeadImage | None, reference: Reference, site: Site, deadline: Deadline) -> Obtained:
        """Return the image that the head node has; raise its error if it has none."""
        if said is None or not is_digest(said.digest):
            raise self._error(reference, said)
        image = single_flight.obtain(reference._replace(tag="", digest=said.digest), site, deadline)
        if said.stale:
            return image._replace(how="stale", reason=said.stale)
        return image._replace(how="waited", waited_s=self._waited_s + image.waited_s) if said.waited else image

    def _error(self, reference: Reference, said: HeadImage | None) -> WarmstartError:
        from warmstart.images.imports import waiting
        from warmstart.images.store.published import RememberedFailure

        own = waiting.as_error(RememberedFailure(said.code, said.fields, said.text)) if said else None
        problem = (said.text or "it named none") if said else "it did not look for it"
        return own or HeadHasNone(head=self._head, image=reference.canonical(), problem=problem)


def found(image: Obtained) -> HeadImage:
    """Return an image as the head node names it."""
    return HeadImage(image.digest, waited=image.how == "waited", stale=image.reason)


def failed(error: WarmstartError) -> HeadImage:
    """Return an error as the head node tells it."""
    fields = {name: str(value) for name, value in error.fields.items()}
    return HeadImage(code=error.code, fields=fields, text=str(error))


def earlier(deadline: Deadline) -> Deadline:
    """Return until when a head node waits, whose word the others await until `deadline`."""
    return Deadline(deadline.at - min(deadline.left() / EARLIER_SHARE, EARLIER_S))
