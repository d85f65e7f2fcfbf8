"""What an observed job would find in the store: its images and caches. Runs as root, and only reads.

What is not in the store has a stand-in for its digest, so that all jobs which would share it are audited alike:
`prediction` counts from these events.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from warmstart import plan
from warmstart.audit.events import STEP_FAILED
from warmstart.entry.observe import STEP, Observed
from warmstart.errors import StoreError
from warmstart.images.choice import recipe
from warmstart.images.query import query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import PRIVATE_STORES, Found
from warmstart.profiles import facts, registry
from warmstart.slurm import nodes
from warmstart.wings.forecast import events


def look(observed: Observed) -> None:
    """Audit the job's images and caches."""
    looking = _Looking(observed)
    looking.caches(looking.images())


class _Looking:
    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._hook = observed.hook
        self._is_reachable = True  # the store

    def images(self) -> str:
        """Audit every image. Return the digest of the first one, or its stand-in; "" if there is none."""
        policy = self._hook.policy
        private = dict(plan.private_images(policy, self._hook.job, self._observed.planned.images))
        digests = []
        for reference in self._observed.planned.images:
            name = private.get(reference, "")
            image = self._find_image(reference, name)
            digest = image.digest if image else reference.digest
            self._hook.audit.emit(
                events.IMAGE_OBSERVED,
                image=reference.canonical(),
                digest=digest,
                found=image is not None,
                bytes=image.size if image else 0,
                head=self._observed.head,
                **({"private": name} if name else {}),
            )
            digests.append(digest or f"unresolved:{reference.canonical()}")
        return digests[0] if digests else ""

    def _find_image(self, reference: Reference, private: str) -> Found | None:
        if not self._is_reachable:
            return None
        rules, store = self._hook.policy.images, self._observed.store
        path = os.path.join(store.path, PRIVATE_STORES, private) if private else store.path
        client = ImageStoreClient(store.worker, path, f"image {reference.canonical()}")
        try:
            image = client.find(query_by_rules(reference, rules, recipe(rules.importer)), self._observed.deadline)
        except StoreError as error:
            self._unreachable(error)
            return None
        return None if image is None or image.invalid else image

    def caches(self, image: str) -> None:
        """Audit every profile: its namespace, what the store has for it, and where the job would publish."""
        policy, grant, planned = self._hook.policy, self._observed.grant, self._observed.planned
        profiles = [registry.get(name, policy.profiles) for name in planned.profiles]
        known = facts.derive(profiles, image or f"label:{policy.site_label}", planned.requested.files, grant.cache)
        if policy.constant_cache:
            known["path"] = policy.constant_cache
        for profile in profiles:
            namespace = facts.namespace(profile, known)
            entries, bundles, size = self._offered(profile.name, namespace)
            self._hook.audit.emit(
                events.CACHE_OBSERVED,
                profile=profile.name,
                namespace=namespace,
                scopes=grant.read_scopes,
                publishes=grant.publish_scope
                if self._observed.head or not plan.is_of_head(policy, profile.name)
                else "",
                fresh=planned.requested.fresh,
                together=grant.together and profile.on_all and nodes.has_several(self._hook.job.nodelist),
                entries=entries,
                bundles=bundles,
                bytes=size,
            )

    def _offered(self, profile: str, namespace: str) -> Sequence[int]:
        """Return how many entries, bundles and bytes the store would offer."""
        if not self._is_reachable:
            return (0, 0, 0)
        try:
            scopes, deadline = self._observed.grant.read_scopes, self._observed.deadline
            offers = self._observed.store.offers(scopes, profile, namespace, deadline).offers
        except StoreError as error:
            self._unreachable(error)
            return (0, 0, 0)
        return sum(len(offer.entries) for offer in offers), len(offers), sum(offer.size for offer in offers)

    def _unreachable(self, error: StoreError) -> None:
        self._is_reachable = False
        self._hook.audit.emit(STEP_FAILED, step=STEP, error=error.as_audit())
