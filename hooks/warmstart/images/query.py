"""What a look-up needs and returns: the names of a reference in the store, and who asks. Hot path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images import choice
from warmstart.images.client import ImageStoreClient
from warmstart.images.layout import NOBODY, Charged, Found, ImageQuery, TagTimes, key_of
from warmstart.images.reference import Reference
from warmstart.policy.compiled import Images, Policy

if TYPE_CHECKING:
    from warmstart.images.importers.base import Importer


class Requester(NamedTuple):
    """Who asks: the Slurm node, the run, and its job (0: a person)."""

    node: str
    run_id: str
    job_id: int


class Site(NamedTuple):
    """What is the same for all images of one hook run."""

    store: ImageStoreClient
    importer: Callable[[], Importer]  # called when an image is missing: a warm hook does not load it
    validator: Identity
    rules: Images  # the policy's
    recipe: str  # of the importer (choice.py): what its options change in the bytes
    workspace: str
    uses: str  # directory of this node's own notes of what it used (uses.py)
    requester: Requester
    charged: Charged = NOBODY

    @classmethod
    def of(cls, policy: Policy, store: ImageStoreClient, uses: str, requester: Requester) -> Site:
        """Return the site that a policy describes."""
        return cls(
            store=store,
            importer=partial(choice.choose, policy.images, policy.import_user),
            validator=policy.validate_user,
            rules=policy.images,
            recipe=choice.recipe(policy.images.importer),
            workspace=policy.paths.workspace,
            uses=uses,
            requester=requester,
        )

    def about(self, reference: Reference) -> Site:
        """Return this site with errors of the store that name the image."""
        return self._replace(store=self.store.about(f"image {reference.canonical()}"))

    def look_up(self, query: ImageQuery, how: str, deadline: Deadline, digest: str = "") -> Obtained | None:
        """Return the store's image, by `digest` if it is given; None if it is not there, or not whole."""
        return as_obtained(self.store.find(query, deadline, digest), how)


class Missing(NamedTuple):
    """What happened on the way to an image that was missing, for the audit."""

    quarantined: str = ""  # what was wrong with the file that was there
    lockless: str = ""  # why a lock could not be had
    evicted: tuple[str, ...] = ()  # images that made room for it
    left_out: str = ""  # why another launcher's image was not adopted


class Obtained(NamedTuple):
    """An image that is in the store, whole by its superblock."""

    name: str  # its file name without the ending
    path: str
    digest: str  # sha256:…, what the registry calls its content
    size: int  # bytes
    how: str  # "reused" | "waited" (for another import) | "imported" | "adopted" | "stale" (no registry answered)
    waited_s: float
    missing: Missing = Missing()


def query_by_rules(reference: Reference, rules: Images, recipe: str) -> ImageQuery:
    """Return the names of a reference in the store, on this node and now; `recipe` is the importer's."""
    machine, name = os.uname().machine, key_of(reference.canonical())
    # enroot gives the digest of the manifest for this CPU, others that of the list. No reference has a "~".
    key, kind = f"{name}~{machine}" if choice.is_per_machine(recipe) else name, f"{machine}.{recipe}"
    now = time.time()
    times = TagTimes(now - rules.tag_ttl, now - rules.remember_failures)
    return ImageQuery(reference, kind, key, f"{name}.{kind}", times)


def as_obtained(found: Found | None, how: str) -> Obtained | None:
    """Return a look-up's result as obtained; None if it found nothing, or nothing whole."""
    if found is None or found.invalid:
        return None
    return Obtained(found.name, found.path, found.digest, found.size, "stale" if found.stale else how, 0.0)
