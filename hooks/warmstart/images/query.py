"""One hook's question for one image: the reference, the names that stand for it, and the look-up. Hot path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from warmstart.host.identity import Identity
from warmstart.images.client import ImageStoreClient
from warmstart.images.importers.choice import choose, is_per_machine, recipe
from warmstart.images.layout import NOBODY, Charged, Found, ImageQuery, TagTimes, key_of
from warmstart.images.reference import Reference
from warmstart.policy.compiled import Images, Policy

if TYPE_CHECKING:
    from warmstart.images.importers.base import Importer


class Requester(NamedTuple):
    """Who asks: the Slurm node, the hook's run, and its job (0: a person)."""

    node: str
    run_id: str
    job_id: int


class Site(NamedTuple):
    """What is the same for all images of one hook run."""

    store: ImageStoreClient
    importer: Callable[[], Importer]  # called when an image is missing: a warm hook does not load it
    validator: Identity
    rules: Images  # the policy's
    recipe: str  # of the importer (importers/choice.py): names what its options change in the bytes
    workspace: str
    uses: str  # directory of this node's own notes of what it used (uses.py)
    node: str
    run_id: str
    job_id: int
    charged: Charged = NOBODY

    @classmethod
    def of(cls, policy: Policy, store: ImageStoreClient, uses: str, run: Requester) -> Site:
        """Return what the policy says, for whoever asks."""
        return cls(
            store=store,
            importer=partial(choose, policy.images, policy.import_user),
            validator=policy.validate_user,
            rules=policy.images,
            recipe=recipe(policy.images.importer),
            workspace=policy.paths.workspace,
            uses=uses,
            node=run.node,
            run_id=run.run_id,
            job_id=run.job_id,
        )

    def about(self, reference: Reference) -> Site:
        """Return this site with errors of the store that name the image."""
        return self._replace(store=self.store.about(f"image {reference.canonical()}"))


class Missing(NamedTuple):
    """How an image that was not there came to be, for the audit."""

    quarantined: str = ""  # what was wrong with the file that was found first and quarantined
    lockless: str = ""  # why a lock could not be had
    evicted: tuple[str, ...] = ()  # what had to go for it
    left_out: str = ""  # why what another launcher left was not adopted


class Obtained(NamedTuple):
    """An image that is in the store, whole by its superblock."""

    path: str
    digest: str  # sha256:…, what the registry calls its content
    size: int  # bytes
    how: str  # "reused" | "waited" (for another's import) | "imported" | "adopted" | "stale" (no registry answered)
    waited_s: float
    missing: Missing = Missing()


def query_by_rules(reference: Reference, rules: Images, made_by: str) -> ImageQuery:
    """Name what a reference stands for now, by the policy's rules and the recipe of its importer, on this node."""
    machine, name = os.uname().machine, key_of(reference.canonical())
    # enroot says the digest of the manifest for this CPU, others that of the list: "~" is in no reference.
    key, kind = f"{name}~{machine}" if is_per_machine(made_by) else name, f"{machine}.{made_by}"
    now = time.time()
    times = TagTimes(now - rules.tag_ttl, now - rules.remember_failures)
    return ImageQuery(reference, kind, key, f"{name}.{kind}", times)


def as_obtained(found: Found | None, how: str) -> Obtained | None:
    """Return what was found as an answer; None if nothing was, or nothing whole."""
    if found is None or found.invalid:
        return None
    return Obtained(found.path, found.digest, found.size, "stale" if found.stale else how, 0.0)
