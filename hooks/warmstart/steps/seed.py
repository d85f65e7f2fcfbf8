"""Step `seed`: fill the job's cache with what its namespaces hold (docs/seeding.md).

Per profile: ask the store which entries come from which bundle, fetch the bundles that this node lacks, and show them
to the job through an overlay; extract them as the job's uid where that can't be, or where the profile needs exact
times. What fails for one profile leaves that one cold and the others warm.

Until all overlays are mounted the cache is root's, so nobody can change what they are mounted on
(docs/threats.md, row 4); then it is given to the job, whatever failed before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from warmstart.audit import events
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.host.untrusted import TurnedAway, open_directory
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.record import RecordChange, Seeded
from warmstart.steps.contract import Context, Outcome
from warmstart.store.bundles import Offer
from warmstart.store.layout import Namespace

if TYPE_CHECKING:
    from warmstart.seed.client import JobClient
    from warmstart.seed.node_cache import Copy

NAME = "seed"

EXTRACTION_SECONDS = 60.0
MOUNTING_SECONDS = 5.0
REMOVAL_SECONDS = 10.0


class SeedFailed(ResourceError):
    """This node's disk did not take the copies of the bundles."""

    code = "seed-failed"
    template = "profile {profile}: {problem}"
    hint = "is there space left on the disk of the node's state?"


class CacheWithheld(ResourceError):
    """The job's cache could not be made the job's: mostly the user's quota of inodes is used up."""

    code = "cache-withheld"
    template = "the job gets no cache: {problem}"
    hint = "has the user a quota where the workspace is, and is it used up?"


class Options(NamedTuple):
    """What to seed, in this order: what is first has the most of the budget."""

    profiles: tuple[str, ...]
    declared: str = ""  # the name that the job gives its files


class _Budget:
    def __init__(self, context: Context) -> None:
        self.bytes = context.policy.seed.max_fetch
        self.fetching = context.deadline.within(context.policy.seed.fetch_budget)
        self.extracting = context.deadline.within(context.policy.seed.fetch_budget + EXTRACTION_SECONDS)


class _Source(NamedTuple):
    """What one profile is seeded with."""

    profile: Profile
    namespace: str
    copied: list[tuple[Offer, Copy]]
    started: float  # monotonic
    way: str = ""  # "overlay", once it is mounted
    mapped: bool = False
    shown: tuple[str, ...] = ()  # entries of the overlay

    @property
    def entries(self) -> list[str]:
        """The entries that the job finds."""
        return list(self.shown) if self.way else [entry for offer, _ in self.copied for entry in offer.entries]


def run(context: Context, options: Options) -> Outcome:
    """Seed every profile; a profile that stays cold is one error of the outcome's `degraded`."""
    seeding = _Seeding(context)
    try:
        facts = _facts(context, options)
        for profile in _profiles(context, options):
            seeding.fetch(profile, host_facts.namespace(profile, facts))
        seeding.mount()
    finally:
        withheld = _give_away(context)
    if withheld:
        # The empty variable takes the place of one that the job inherited.
        return Outcome("changed", record={"cache": ""}, environment={"WARMSTART_CACHE": ""}, degraded=[withheld])
    seeding.extract()
    warm = any(found.entries for found in seeding.seeded.values())
    record: RecordChange = {"facts": facts, "seeded": seeding.seeded}
    return Outcome("changed" if warm else "unchanged", record=record, degraded=seeding.degraded)


def _facts(context: Context, options: Options) -> dict[str, str]:
    image = context.record.image or f"label:{context.policy.site_label}"
    facts = host_facts.derive(_profiles(context, options), image, options.declared)
    if context.policy.constant_cache:
        facts["path"] = context.policy.constant_cache
    return facts


def _profiles(context: Context, options: Options) -> list[Profile]:
    return [registry.get(name, context.policy.profiles) for name in options.profiles]


class _Seeding:
    """One run of the step: first all bundles, then all overlays, then, in the job's own cache, what is extracted."""

    def __init__(self, context: Context) -> None:
        self.seeded: dict[str, Seeded] = {}
        self.degraded: list[WarmstartError] = []
        self._context = context
        self._budget = _Budget(context)
        self._identity = Identity(context.record.user, context.record.uid, context.record.gid)
        self._sources: list[_Source] = []

    def _job(self) -> JobClient:
        from warmstart.seed.client import JobClient  # only what is extracted or rewritten needs it

        return JobClient(self._identity)

    def fetch(self, profile: Profile, namespace: str) -> None:
        """Bring a profile's bundles to this node."""
        started = time.monotonic()
        self.seeded[profile.name] = Seeded(namespace, [])
        with self._cold_on_failure(profile):
            offered = _offered(self._context, profile, namespace, self._budget)
            copied = _copied(self._context, profile, namespace, offered, self._budget) if offered else []
            if copied:
                self._sources.append(_Source(profile, namespace, copied, started))

    def mount(self) -> None:
        """Mount the overlays; the first that can't be had leaves it and the others to extraction."""
        for number, source in enumerate(self._sources):
            if source.profile.suits_overlay:
                with self._cold_on_failure(source.profile):
                    mounted = self._mounted(source)
                    if mounted is None:
                        return
                    self._sources[number] = mounted

    def extract(self) -> None:
        """Extract what is not mounted, and let entries that name their own path name the job's."""
        for source in self._sources:
            with self._cold_on_failure(source.profile), self._opened_cache(source.profile) as cache:
                try:
                    if not source.way:
                        self._job().unpack(source.copied, cache, source.profile.subdir, self._budget.extracting)
                    if source.profile.relocate:
                        self._relocated(source, cache)
                except BaseException:  # half of it is worse than none
                    self._discard(source, cache)
                    raise
                self._done(source)

    def _mounted(self, source: _Source) -> _Source | None:
        from warmstart.seed import overlay
        from warmstart.seed.overlay import OverlayUnavailable

        context, profile = self._context, source.profile
        picked, left_out = overlay.split_by_layers(source.copied)
        deadline = context.deadline.within(MOUNTING_SECONDS)
        with opened_dir(context.record.run_directory) as base:
            try:
                shown = overlay.show(base, profile.subdir, context.paths.layers, picked, self._identity, deadline)
            except OverlayUnavailable as error:
                context.audit.emit(events.OVERLAY_FAILED, profile=profile.name, error=error.as_audit())
                return None
        for dropped in left_out:
            bundle = dropped.fields["bundle"]
            context.audit.emit(events.BUNDLE_LEFT_OUT, profile=profile.name, bundle=bundle, error=dropped.as_audit())
        return source._replace(copied=picked, way="overlay", mapped=shown.mapped, shown=tuple(shown.entries))

    def _relocated(self, source: _Source, cache: int) -> None:
        """Whatever goes wrong in a process of the job's uid is never the node's or the store's fault."""
        path = self._context.record.cache
        try:
            self._job().relocate(source.profile, cache, path, source.entries, self._budget.extracting)
        except (WarmstartError, OSError) as error:
            raise SeedFailed(profile=source.profile.name, problem=f"its entries' paths: {error}") from error

    def _discard(self, source: _Source, cache: int) -> None:
        if source.way:
            from warmstart.seed.overlay import discard

            with opened_dir(self._context.record.run_directory) as base:
                discard(base, source.profile.subdir)
        remove_tree(cache, source.profile.subdir, after(REMOVAL_SECONDS))

    def _done(self, source: _Source) -> None:
        self.seeded[source.profile.name] = Seeded(source.namespace, source.entries, _based_on(source))
        self._context.audit.emit(
            events.CACHE_SEEDED,
            profile=source.profile.name,
            namespace=source.namespace,
            way=source.way or "extraction",
            mapped=source.mapped,
            entries=len(source.entries),
            bundles=len(source.copied),
            scopes=sorted({offer.scope for offer, _ in source.copied}),
            fetched_bytes=sum(copy.fetched for _, copy in source.copied),
            duration_ms=round((time.monotonic() - source.started) * 1000, 3),
        )

    @contextmanager
    def _opened_cache(self, profile: Profile) -> Iterator[int]:
        """Open the cache beneath root's own directory, whatever was put in its place."""
        with opened_dir(self._context.record.run_directory) as base:
            try:
                cache = open_directory("cache", base, mount_id(base))
            except TurnedAway as turned:
                raise SeedFailed(profile=profile.name, problem=f"the cache directory: {turned.reason}") from turned
            try:
                yield cache
            finally:
                os.close(cache)

    @contextmanager
    def _cold_on_failure(self, profile: Profile) -> Iterator[None]:
        try:
            yield
        except WarmstartError as error:
            self.degraded.append(error)
        except OSError as error:
            self.degraded.append(SeedFailed(profile=profile.name, problem=error.strerror or str(error)))


def _based_on(source: _Source) -> list[str]:
    """Return scope and bundle of what a newer one may take the place of: such a profile has one entry."""
    first = source.copied[0][0]
    return [first.scope, first.bundle] if source.profile.keeps == "newest" else []


def _offered(context: Context, profile: Profile, namespace: str, budget: _Budget) -> list[Offer]:
    """Ask the store; what it has but does not offer is audited."""
    offers = context.store.offers(context.record.read_scopes, profile.name, namespace, budget.fetching)
    for bundle, why in offers.refused.items():
        context.audit.emit(events.BUNDLE_REFUSED, profile=profile.name, bundle=bundle, reason=why)
    return offers.offers


def _copied(
    context: Context, profile: Profile, namespace: str, offers: list[Offer], budget: _Budget
) -> list[tuple[Offer, Copy]]:
    """Bring the bundles to this node; what would go over the budget stays cold, and the audit says so."""
    from warmstart.seed.node_cache import FetchOverBudget, local_copy

    copied = []
    for offer in offers:
        try:
            copy = local_copy(
                context.paths.bundles,
                Namespace(context.policy.paths.store, offer.scope, profile.name, namespace),
                offer,
                store=context.store,
                most_bytes=budget.bytes,
                deadline=budget.fetching,
            )
        except FetchOverBudget as error:
            context.audit.emit(
                events.BUNDLE_LEFT_OUT, profile=profile.name, bundle=offer.bundle, error=error.as_audit()
            )
            continue
        budget.bytes -= copy.fetched
        copied.append((offer, copy))
    return copied


def _give_away(context: Context) -> CacheWithheld | None:
    """Make the cache and what lies in it the job's, the cache itself last."""
    record = context.record
    try:
        with opened_dir(record.run_directory) as base, opened_dir("cache", base) as cache:
            for name in os.listdir(cache):
                os.chown(name, record.uid, record.gid, dir_fd=cache, follow_symlinks=False)
            os.fchown(cache, record.uid, record.gid)
    except OSError as error:
        return CacheWithheld(problem=error.strerror or str(error))
    return None
