"""Step `seed`: fill the job's cache with what its namespaces hold (design, section 5, Seed).

Per profile: ask the store which entries come from which bundle, fetch the bundles that this node lacks, extract
them as the job's uid. What fails for one profile leaves that one cold and the others warm.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from warmstart.audit import events
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir
from warmstart.host.trees import remove_tree
from warmstart.host.worker import Identity, Worker
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.record import Seeded
from warmstart.steps.contract import Context, Outcome
from warmstart.store import bundles
from warmstart.store.beneath import TurnedAway, open_directory
from warmstart.store.bundles import Offer, Offers
from warmstart.store.layout import Namespace

if TYPE_CHECKING:
    from warmstart.store.copies import Copy

NAME = "seed"

EXTRACTION_SECONDS = 60.0
REMOVAL_SECONDS = 10.0


class SeedFailed(ResourceError):
    """This node's disk did not take the copies of the bundles."""

    code = "seed-failed"
    template = "profile {profile}: {problem}"
    hint = "is there space left on the disk of the node's state?"


class Options(NamedTuple):
    """What to seed, in this order: what is first has the most of the budget."""

    profiles: tuple[str, ...]


class _Budget:
    def __init__(self, context: Context) -> None:
        self.bytes = context.policy.seed.max_fetch
        self.fetching = context.deadline.within(context.policy.seed.fetch_budget)
        self.extracting = context.deadline.within(context.policy.seed.fetch_budget + EXTRACTION_SECONDS)


def run(context: Context, options: Options) -> Outcome:
    """Seed every profile; a profile that stays cold is one error of the outcome's `degraded`."""
    tools = [registry.get(profile) for profile in options.profiles]
    facts = host_facts.derive(tools, context.record.image or f"label:{context.policy.site_label}")
    if context.policy.cache_place:
        facts["path"] = context.policy.cache_place
    budget = _Budget(context)
    seeded: dict[str, Seeded] = {}
    degraded: list[WarmstartError] = []
    for profile in options.profiles:
        namespace = host_facts.namespace(registry.get(profile), facts)
        seeded[profile] = Seeded(namespace, [])
        try:
            seeded[profile] = _seed(context, profile, namespace, budget)
        except WarmstartError as error:
            degraded.append(error)
        except OSError as error:
            degraded.append(SeedFailed(profile=profile, problem=error.strerror or str(error)))
    warm = any(found.entries for found in seeded.values())
    return Outcome("changed" if warm else "unchanged", record={"facts": facts, "seeded": seeded}, degraded=degraded)


def _seed(context: Context, profile: str, namespace: str, budget: _Budget) -> Seeded:
    started = time.monotonic()
    record, store = context.record, context.policy.paths.store
    owner = f"{record.node}-{record.run_id}"
    answer = context.store.call(
        bundles.offers, store, record.read_scopes, profile, namespace, owner, deadline=budget.fetching
    )
    offers = Offers([Offer(*offer) for offer in answer[0]], answer[1])
    for bundle, why in offers.refused.items():
        context.audit.emit(events.BUNDLE_REFUSED, profile=profile, bundle=bundle, reason=why)
    if not offers.offers:
        return Seeded(namespace, [])
    copied = _copied(context, profile, namespace, offers.offers, budget)
    if not copied:
        return Seeded(namespace, [])
    _extract(context, profile, copied, budget)
    entries = [entry for offer, _ in copied for entry in offer.entries]
    context.audit.emit(
        events.CACHE_SEEDED,
        profile=profile,
        namespace=namespace,
        entries=len(entries),
        bundles=len(copied),
        scopes=sorted({offer.scope for offer, _ in copied}),
        fetched_bytes=sum(copy.fetched for _, copy in copied),
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )
    return Seeded(namespace, entries)


def _copied(
    context: Context, profile: str, namespace: str, offers: list[Offer], budget: _Budget
) -> list[tuple[Offer, Copy]]:
    """Bring the bundles to this node; what would go over the budget stays cold, and the audit says so."""
    from warmstart.store.copies import FetchOverBudget, local_copy

    copied = []
    for offer in offers:
        try:
            copy = local_copy(
                context.paths.bundles,
                Namespace(context.policy.paths.store, offer.scope, profile, namespace),
                offer,
                owner=context.policy.store_user,
                most_bytes=budget.bytes,
                deadline=budget.fetching,
            )
        except FetchOverBudget as error:
            context.audit.emit(events.BUNDLE_LEFT_OUT, profile=profile, bundle=offer.bundle, error=error.as_audit())
            continue
        budget.bytes -= copy.fetched
        copied.append((offer, copy))
    return copied


def _extract(context: Context, profile: str, copied: list[tuple[Offer, Copy]], budget: _Budget) -> None:
    """Extract as the job's uid; the cache is opened beneath root's own directory, whatever was put in its place."""
    from warmstart.store.extract import Source, extract

    sources = [Source(copy.path, None if offer.whole else copy.files_of(offer.entries)) for offer, copy in copied]
    job = Identity(context.record.user, context.record.uid, context.record.gid)
    with opened_dir(context.record.run_directory) as base:
        try:
            cache = open_directory("cache", base, mount_id(base))
        except TurnedAway as turned:
            raise SeedFailed(profile=profile, problem=f"the cache directory: {turned.reason}") from turned
        try:
            extract(sources, cache, registry.get(profile).subdir, job, budget.extracting)
            if registry.get(profile).relocate:
                entries = [entry for offer, _ in copied for entry in offer.entries]
                _relocate(context, profile, cache, entries, budget)
        finally:
            os.close(cache)


def _relocate(context: Context, profile: str, cache: int, entries: list[str], budget: _Budget) -> None:
    """Make entries that name their own path name the job's, as the job's uid; half of it is worse than none.

    Whatever goes wrong in a process of that uid is never the node's or the store's fault.
    """
    from warmstart.profiles.relocation import relocate

    job = Identity(context.record.user, context.record.uid, context.record.gid)
    path = context.record.environment["WARMSTART_CACHE"]
    try:
        with Worker(job, keep=(cache,)) as worker:
            worker.call(relocate, profile, cache, path, entries, deadline=budget.extracting)
    except BaseException as error:
        remove_tree(cache, registry.get(profile).subdir, after(REMOVAL_SECONDS))
        if isinstance(error, (WarmstartError, OSError)):
            raise SeedFailed(profile=profile, problem=f"its entries' paths: {error}") from error
        raise
