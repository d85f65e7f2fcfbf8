"""Observing: a prolog audits what it would do, and touches nothing (docs/operations/rollout.md). Runs as root.

It plans as if it enforced, and looks up in the store what the job would find there: read-only, in a process of the
store's owner, within `SECONDS`. What is not in the store has a stand-in for its digest, so that all jobs which would
share it are audited alike; `report.prediction` counts from these events what enforcing would have brought. Nothing here
raises: an observed job's prolog ends with 0.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from warmstart import plan
from warmstart.audit import events
from warmstart.entry.hook import Hook
from warmstart.errors import StoreError, UserError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.choice import recipe
from warmstart.images.query import query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import PRIVATE_STORES, Found
from warmstart.policy.match import Grant, scope_key
from warmstart.profiles import facts, registry
from warmstart.request import NOTHING, Request
from warmstart.slurm import nodes
from warmstart.steps import tree
from warmstart.store.client import StoreClient
from warmstart.trees.client import TreeClient
from warmstart.trees.place import facts_of, home_of, place_of

STEP = "observe"
SECONDS = 2.0  # for all look-ups of a job


def run(hook: Hook, grant: Grant, *, head: bool) -> None:
    """Audit what the prolog would do; `head` as in the record."""
    try:
        _Observation(hook, grant, head=head).run()
    except WarmstartError as error:
        hook.audit.emit(events.STEP_FAILED, step=STEP, error=error.as_audit())
    except Exception:  # noqa: BLE001 - a bug; the job is none the wiser
        hook.audit.emit(events.HOOK_CRASHED, traceback=traceback.format_exc())


class _Planned(NamedTuple):
    """What a job would get."""

    steps: list[str]
    images: list[Reference]
    profiles: list[str]
    left_out: list[str]
    requested: Request = NOTHING


class _Observation:
    def __init__(self, hook: Hook, grant: Grant, *, head: bool) -> None:
        self._hook = hook
        self._grant = grant
        self._head = head
        self._deadline = after(SECONDS)
        self._is_reachable = True  # the store

    def run(self) -> None:
        """Plan, look up, audit. Raises the errors of a plan that are not the job's fault."""
        hook, started = self._hook, time.monotonic()
        try:
            planned = self._plan()
        except UserError as error:
            hook.audit.emit(events.JOB_OBSERVED, steps=[], refused=error.as_audit())
            return
        policy = hook.policy
        with StoreClient.of(policy, hook.paths, "") as store:
            image = self._images(store, planned)
            self._caches(store, planned, image)
            if tree.NAME in planned.steps:
                self._tree(store, planned.requested)
        hook.audit.emit(
            events.JOB_OBSERVED,
            **plan.as_audit(self._grant, planned.requested, head=self._head),
            steps=planned.steps,
            **({"left_out": planned.left_out} if planned.left_out else {}),
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )

    def _plan(self) -> _Planned:
        policy, job, grant = self._hook.policy, self._hook.job, self._grant
        requested = plan.request_of(policy, job, grant)
        steps = [step.name for step in plan.prolog(policy, job, grant, requested)]
        if not steps:
            return _Planned([], [], [], [], requested)
        return _Planned(
            [*steps, "environment"],
            plan.images(policy, grant, requested),
            plan.profiles(policy, grant, requested),
            [*plan.left_out(policy, grant, requested)],
            requested,
        )

    def _images(self, store: StoreClient, planned: _Planned) -> str:
        """Audit every image. Return the digest of the first one, or its stand-in; "" if there is none."""
        policy = self._hook.policy
        private = dict(plan.private_images(policy, self._hook.job, planned.images))
        digests = []
        for reference in planned.images:
            name = private.get(reference, "")
            image = self._find_image(store, reference, name)
            digest = image.digest if image else reference.digest
            self._hook.audit.emit(
                events.IMAGE_OBSERVED,
                image=reference.canonical(),
                digest=digest,
                found=image is not None,
                bytes=image.size if image else 0,
                head=self._head,
                **({"private": name} if name else {}),
            )
            digests.append(digest or f"unresolved:{reference.canonical()}")
        return digests[0] if digests else ""

    def _find_image(self, store: StoreClient, reference: Reference, private: str) -> Found | None:
        if not self._is_reachable:
            return None
        rules = self._hook.policy.images
        path = os.path.join(store.path, PRIVATE_STORES, private) if private else store.path
        client = ImageStoreClient(store.worker, path, f"image {reference.canonical()}")
        try:
            image = client.find(query_by_rules(reference, rules, recipe(rules.importer)), self._deadline)
        except StoreError as error:
            self._unreachable(error)
            return None
        return None if image is None or image.invalid else image

    def _caches(self, store: StoreClient, planned: _Planned, image: str) -> None:
        """Audit every profile: its namespace, what the store has for it, and where the job would publish."""
        policy, grant = self._hook.policy, self._grant
        profiles = [registry.get(name, policy.profiles) for name in planned.profiles]
        known = facts.derive(profiles, image or f"label:{policy.site_label}", planned.requested.files)
        if policy.constant_cache:
            known["path"] = policy.constant_cache
        for profile in profiles:
            namespace = facts.namespace(profile, known)
            entries, bundles, size = self._offered(store, profile.name, namespace)
            self._hook.audit.emit(
                events.CACHE_OBSERVED,
                profile=profile.name,
                namespace=namespace,
                scopes=grant.read_scopes,
                publishes=grant.publish_scope if self._head or not plan.is_of_head(policy, profile.name) else "",
                fresh=planned.requested.fresh,
                together=grant.together and profile.in_step and nodes.has_several(self._hook.job.nodelist),
                entries=entries,
                bundles=bundles,
                bytes=size,
            )

    def _offered(self, store: StoreClient, profile: str, namespace: str) -> Sequence[int]:
        """Return how many entries, bundles and bytes the store would offer."""
        if not self._is_reachable:
            return (0, 0, 0)
        try:
            offers = store.offers(self._grant.read_scopes, profile, namespace, self._deadline).offers
        except StoreError as error:
            self._unreachable(error)
            return (0, 0, 0)
        return sum(len(offer.entries) for offer in offers), len(offers), sum(offer.size for offer in offers)

    def _tree(self, store: StoreClient, requested: Request) -> None:
        """Audit the tree: whether the store has a copy of it as it is now, for this job."""
        policy, job, grant, reason = self._hook.policy, self._hook.job, self._grant, ""
        path, name, size = requested.tree, "", 0
        try:
            with TreeClient(Identity(job.user, job.uid, job.gid), requested.tree) as client:
                seen = client.look(policy.trees.prefixes, requested.marker, self._deadline, grant.trees)
            home = home_of(seen.path, grant.trees, scope_key("user", job), policy.trust, signed_only=grant.signed_only)
            where = place_of(store.path, home.publish, facts_of(seen, home.shared))
            path, name = seen.path, where.name
            offers = store.offers(home.read, where.profile, name, self._deadline).offers
            size = offers[0].size if offers else 0
        except WarmstartError as error:
            reason = error.code
        self._hook.audit.emit(
            events.TREE_OBSERVED, tree=path, namespace=name, found=size > 0, bytes=size, head=self._head, reason=reason
        )

    def _unreachable(self, error: StoreError) -> None:
        self._is_reachable = False
        self._hook.audit.emit(events.STEP_FAILED, step=STEP, error=error.as_audit())
