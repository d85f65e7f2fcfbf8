"""Types of an image look-up: the site, the names of a reference in the store, the requester, the result. Hot path."""

from __future__ import annotations

import os
import time

from warmstart.errors import StoreError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images import choice
from warmstart.images.reference import Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY, Charged, Found, ImageQuery, key_of
from warmstart.lean import TYPE_CHECKING, Callable, NamedTuple, Sequence, partial, suppress
from warmstart.policy.keys import Images, Policy

if TYPE_CHECKING:
    from warmstart.images.ahead import Ahead
    from warmstart.images.importers.base import Importer
    from warmstart.images.places import Place, PlacesPart
    from warmstart.images.store.published import ImageProducer
    from warmstart.paths import NodePaths


class Requester(NamedTuple):
    """The Slurm node, run and job (0: none, an administrator) that want an image."""

    node: str
    run_id: str
    job_id: int
    cluster: str = ""


def _nobody(_: ImageProducer) -> None:
    """Do nothing."""


def _no_job() -> Callable[[Deadline], bool]:
    return lambda _: False


class Site(NamedTuple):
    """What is the same for all images of one hook run."""

    store: ImageStoreClient
    importer: Callable[[], Importer]  # called only if an image is missing, so that a warm hook does not load it
    validator: Identity
    rules: Images  # the policy's
    recipe: str  # of the importer (choice.py)
    workspace: str
    uses: str  # directory where this node knows which uses it has recorded (store/client.py)
    requester: Requester
    paths: NodePaths  # where hooks ask for a missing image
    private: str = ""  # name of the store of private images, "" for the shared one
    charged: Charged = NOBODY
    watch: Callable[[ImageProducer], object] = _nobody  # is told how far an import of this process is
    # Begins a wait: returns what tells whether the waiting job is over (imports/job_end.py). Not called for a warm job.
    job_end: Callable[[], Callable[[Deadline], bool]] = _no_job
    patience_s: float = 0.0  # with a store that fails
    places: Callable[[], Sequence[Place]] = tuple  # called only for an import or an eviction, as `importer` is
    ahead: Ahead | None = None  # what to ask besides

    @classmethod
    def of(cls, policy: Policy, paths: NodePaths, store: ImageStoreClient, requester: Requester) -> Site:
        """Return the site of a node for a policy."""
        return cls(
            store=store,
            importer=partial(choice.choose, policy.images, policy.import_user, policy.paths.cache),
            validator=policy.validate_user,
            rules=policy.images,
            recipe=choice.recipe(policy.images.importer),
            workspace=policy.paths.workspace,
            uses=paths.uses,
            requester=requester,
            paths=paths,
            places=partial(_places, policy),
        )

    def about(self, reference: Reference) -> Site:
        """Return this site with a store client whose errors name the image and the store."""
        return self._replace(store=self.store.about(f"image {reference.canonical()} in the store {self.store.path}"))

    def look_up(self, query: ImageQuery, how: str, deadline: Deadline, digest: str = "") -> Obtained | None:
        """Return the store's image, by `digest` if given; None if it is missing or damaged. `how` as in `Obtained`."""
        if self.ahead is not None:
            digest = digest or query.reference.digest
            return as_obtained(self.ahead.find(self.store, query, digest, deadline), how)
        return as_obtained(self.store.find(query, deadline, digest), how)

    def record_use(self, name: str, deadline: Deadline) -> bool:
        """Record in the store that this node uses an image; return False if it has done so within a day.

        Errors are left: the image can be used nevertheless.
        """
        with suppress(OSError, StoreError):
            return self.store.record_use(name, self.requester.node, self.uses, deadline)
        return True

    def forget_gone(self, deadline: Deadline) -> None:
        """Have places forget images that the store has no more. Errors are left: maintenance does it again."""
        for place in self.places():
            with suppress(WarmstartError):
                place.forget(self.store, deadline)

    def writer(self, query: ImageQuery) -> str:
        """Return what the temporary files of this run are named after in the store (`published.writer_of`)."""
        from warmstart.images.store import published

        return published.writer_of(query.lock, self.requester.node, self.requester.run_id)


class Missing(NamedTuple):
    """What happened while a missing image was obtained, for the audit."""

    damaged: str = ""  # what was wrong with the file that was there
    lockless: str = ""  # why there was no lock
    evicted: tuple[str, ...] = ()  # names of images that were evicted for it


class Obtained(NamedTuple):
    """An image in the store, whole by its superblock."""

    name: str  # its file name without the ending
    path: str
    digest: str  # the registry's, sha256:HEX
    size: int  # bytes
    how: str  # "reused" | "waited" (for another import) | "imported" | "stale" (what the tag meant last)
    waited_s: float
    missing: Missing = Missing()
    reason: str = ""  # why it is stale


def query_by_rules(reference: Reference, rules: Images, recipe: str) -> ImageQuery:
    """Return the query for a reference on this node, now; `recipe` is the importer's (`choice.recipe`)."""
    key, kind = key_of(reference.canonical()), f"{os.uname().machine}.{recipe}"
    return ImageQuery(reference, kind, key, f"{key}.{kind}", time.time() - rules.tag_ttl)


def _places(policy: Policy) -> list[Place]:
    from warmstart import wing

    parts: list[PlacesPart] = [wing.load(module) for module in policy.parts("places")]
    return [part.of_policy(policy) for part in parts]


def as_obtained(image: Found | None, how: str) -> Obtained | None:
    """Return the result of a look-up as `Obtained`; None if the image is missing or damaged."""
    if image is None or image.invalid:
        return None
    return Obtained(image.name, image.path, image.digest, image.size, how, 0.0)
