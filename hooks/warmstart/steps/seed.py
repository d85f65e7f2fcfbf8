"""Step `seed`: fill the job's cache with the entries of its namespaces (docs/reference/profiles.md#seeding).

For each profile the store says which entries to take from which bundle, and the node fetches the bundles that it lacks.
An overlay then shows them to the job. Where no overlay is possible, or the profile needs exact times, entries are
extracted as the job's uid. A failure leaves only its own profile cold.

The cache belongs to root until all overlays are mounted, so nobody can change their mount points (docs/threats.md,
row 4). Then the job's user becomes its owner, even after failures.
"""

from __future__ import annotations

import os
import time
from itertools import groupby

from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.host.deadline import after, uptime_s
from warmstart.host.files import DiskFailed, mount_id, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.host.untrusted import TurnedAway, open_directory
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager, suppress
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.run.state import Caches, Run, Seeded, SeededBundle
from warmstart.steps.contract import CacheFailed, Context, Outcome
from warmstart.store import bundles
from warmstart.store.bundles import FetchOverBudget, Offer, Offers
from warmstart.store.layout import Namespace

if TYPE_CHECKING:
    from warmstart.seed.client import JobClient
    from warmstart.seed.node_cache import Copy
    from warmstart.seed.overlay import JobIds
    from warmstart.seed.together import ProposedProfile, Together
    from warmstart.store.meeting import Meeting

NAME = "seed"
# Why a profile is cold, if no error is the reason; docs/reference/audit.md explains them.
NOTHING_PUBLISHED = "nothing-published"
ASKED_FRESH = "asked-fresh"
BUNDLES_REFUSED = "bundles-refused"
BUNDLES_LEFT_OUT = "bundles-left-out"
NOTHING_PROPOSED = "nothing-proposed"  # by the job's head node
NODES_DIFFER = "nodes-differ"  # in these facts

JUST_BOOTED_S = 900.0  # of uptime; nodes that start together lack the same bundles
SPREAD_S = 2.0
EXTRACTION_SECONDS = 60.0
MOUNTING_SECONDS = 5.0
REMOVAL_SECONDS = 5.0  # of entries that were extracted in vain; part of prolog.RESERVE_SECONDS


class Options(NamedTuple):
    """What to seed. Profiles share one budget and are served in this order."""

    profiles: tuple[str, ...]
    declared: str = ""  # the name of the job's declared files
    fresh: bool = False  # the job asked to start cold
    meeting: Meeting | None = None  # where the job's nodes agree on what they show it; None: each decides for itself
    cache: str = ""  # the grant's: a name that parts its caches from others
    attach: Callable[[list[str]], None] | None = None  # shows the overlays where else they must be seen; `OSError`


class _Budget:
    def __init__(self, context: Context) -> None:
        self.bytes = min(bundles.MOST_BYTES, context.policy.seed.keep)  # what is beyond that would not stay
        self.fetching = context.deadline.within(context.policy.seed.fetch_budget)
        self.extracting = context.deadline.within(context.policy.seed.fetch_budget + EXTRACTION_SECONDS)
        self._is_spread = False

    def spread(self) -> None:
        """Pause a moment before the first fetch if the node has just started, so that many do not ask at once."""
        if self._is_spread:
            return
        self._is_spread = True
        if uptime_s() < JUST_BOOTED_S:
            import random

            # S311: jitter between nodes; no secret
            time.sleep(random.random() * min(SPREAD_S, self.fetching.left() / 5))  # noqa: S311


class _Target(NamedTuple):
    """One profile of the job on this node."""

    profile: Profile
    namespace: str
    facts: dict[str, str]  # of its namespace


class _Source(NamedTuple):
    """What one profile is seeded with."""

    profile: Profile
    namespace: str
    copies: list[Copy]
    started: float  # monotonic
    way: str = ""  # "overlay", once it is mounted
    mapped: bool = False
    shown: tuple[list[str], ...] = ()  # each bundle's entries in the overlay

    @property
    def bundles(self) -> list[SeededBundle]:
        """The entries in the job's cache, by bundle."""
        offers = [copy.offer for copy in self.copies]
        by_bundle = self.shown if self.way else [offer.entries for offer in offers]
        return [
            SeededBundle(offer.scope, offer.bundle, offer.sha256, entries, 0 if entries else offer.number)
            for offer, entries in zip(offers, by_bundle, strict=True)
        ]

    @property
    def entries(self) -> list[str]:
        """The entries in the job's cache."""
        return [entry for bundle in self.bundles for entry in bundle.entries]


class Filled(NamedTuple):
    """Caches that were filled, as far as they could be."""

    caches: Caches  # without a path if the job gets none
    degraded: list[WarmstartError]  # of each profile that failed


def run(context: Context, options: Options) -> Outcome:
    """Seed every profile. Each profile that fails is an error in the outcome's `degraded`."""
    filled = fill(context, context.run.own, options)
    run = context.run._replace(fresh=options.fresh, own=filled.caches)
    if not run.own.path:  # The empty value replaces one that the job may have inherited.
        return Outcome(run=run, environment={"WARMSTART_CACHE": ""}, degraded=filled.degraded)
    topics: tuple[str, ...] = (options.meeting.path,) if options.meeting and run.head else ()
    if context.policy.harvest.while_running is not None:
        from warmstart.harvest import live

        watched = live.watch(context.policy, context.paths, run)
        context.audit.say(**watched)
        run = run._replace(live="look" in watched)
    return Outcome(run=run._replace(began=time.time()), degraded=filled.degraded, topics=topics)


def fill(context: Context, caches: Caches, options: Options) -> Filled:
    """Seed every profile of caches whose directory is there."""
    seeding = _Seeding(context, caches, options.meeting)
    try:
        facts = _facts(context, caches, options)
        profiles = _profiles(context, options)
        seeding.seeded = {profile.name: Seeded(host_facts.namespace(profile, facts)) for profile in profiles}
        if options.fresh:
            seeding.cold = dict.fromkeys(seeding.seeded, ASKED_FRESH)
        else:
            seeding.plan(profiles, facts)
            seeding.fetch()
            seeding.mount()
            if options.attach:
                seeding.attach(options.attach)
    finally:
        withheld = _give_away(context.run, context.run.directory_of(caches))
    if withheld:
        for name in options.profiles:
            context.audit.put("caches", name, warm=False, cold=withheld.code)
        return Filled(caches._replace(path=""), [withheld])
    seeding.extract()
    seeding.settle()
    for name, reason in seeding.cold.items():
        context.audit.put("caches", name, warm=False, cold=reason)
    context.audit.say(facts=facts)
    return Filled(caches._replace(facts=facts, seeded=seeding.seeded), seeding.degraded)


def _facts(context: Context, caches: Caches, options: Options) -> dict[str, str]:
    image = caches.image or f"label:{context.policy.site_label}"
    facts = host_facts.derive(_profiles(context, options), image, options.declared, options.cache)
    if context.policy.constant_cache:
        facts["path"] = context.policy.constant_cache
    return facts


def _profiles(context: Context, options: Options) -> list[Profile]:
    return [registry.get(name, context.policy.profiles) for name in options.profiles]


class _Seeding:
    """One run of the step: fetch all bundles, mount all overlays, then extract into the job's cache."""

    def __init__(self, context: Context, caches: Caches, meeting: Meeting | None) -> None:
        self.seeded: dict[str, Seeded] = {}
        self.degraded: list[WarmstartError] = []
        self.cold: dict[str, str] = {}  # profile → why it is without entries
        self._context = context
        self._is_head = context.run.leads(caches)
        self._directory = context.run.directory_of(caches)
        self._scopes = caches.read_scopes
        self._budget = _Budget(context)
        self._identity = Identity(context.run.user, context.run.uid, context.run.gid)
        self._offers: list[tuple[_Target, list[Offer]]] = []
        self._sources: list[_Source] = []
        self._together: Together | None = None
        if meeting:
            from warmstart.seed.together import Together

            budget = context.policy.seed.fetch_budget
            self._together = Together(context.store, context.run, caches, meeting, budget)
        self._agreed: list[str] = []  # profiles of which the head node proposed something
        self._shown: list[_Source] = []  # that this node can show

    def _job(self) -> JobClient:
        from warmstart.seed.client import JobClient  # needed only to extract entries

        return JobClient(self._identity, self._context.policy.validate_user)

    def plan(self, profiles: list[Profile], facts: dict[str, str]) -> None:
        """Find out which bundles to take: from the store, or from what the job's head node proposes."""
        targets = [
            _Target(profile, self.seeded[profile.name].namespace, {name: facts[name] for name in profile.all_facts})
            for profile in profiles
        ]
        agreed = [target for target in targets if self._together and target.profile.in_step]
        for target in targets:
            if target not in agreed or self._is_head:
                self._list(target)
        if self._together and agreed:
            self._agree(self._together, agreed)

    def _list(self, target: _Target) -> None:
        with self._cold_on_failure(target.profile):
            offers = self._offered(target)
            self.cold[target.profile.name] = _why_cold(offers)
            self._offers.append((target, offers.offers))

    def _offered(self, target: _Target) -> Offers:
        """Return the store's offers. The log tells of bundles that the store refuses to offer."""
        store, until = self._context.store, self._budget.fetching
        offers = store.offers(self._scopes, target.profile.name, target.namespace, until, named=False)
        for bundle, why in offers.refused.items():
            self._context.audit.remark(f"a bundle was refused: {why}", target.profile.name, bundle=bundle)
        return offers

    def _agree(self, together: Together, agreed: list[_Target]) -> None:
        """Take what the head node proposes of these profiles in place of what this node has listed."""
        mine = [(target, offers) for target, offers in self._offers if target in agreed]
        self._offers = [one for one in self._offers if one not in mine]
        own = {target.profile.name: self._proposed(target, offers) for target, offers in mine}
        try:
            proposed = together.proposal(own, self._context.deadline)
        except StoreError as error:
            self.degraded.append(error)
            self.cold.update({target.profile.name: error.code for target in agreed})
            return
        for target in agreed:
            name = target.profile.name
            there = proposed.get(name)
            self.cold[name] = self.cold.get(name, NOTHING_PROPOSED)
            if there is not None and there.offers:
                self._agreed.append(name)
                if there.namespace == target.namespace:
                    self._offers.append((target, there.offers))
                else:
                    differing = sorted(fact for fact, value in target.facts.items() if there.facts.get(fact) != value)
                    self.cold[name] = f"{NODES_DIFFER}: {', '.join(differing)}"

    def _proposed(self, target: _Target, offers: list[Offer]) -> ProposedProfile:
        """Return the bundles that this node can show; the names of entries only where not all of a bundle are taken."""
        from warmstart.seed.node_cache import may_come
        from warmstart.seed.overlay import MOST_BUNDLES
        from warmstart.seed.together import ProposedProfile

        taken: list[Offer] = []
        left = self._budget.bytes
        for offer in offers[:MOST_BUNDLES]:
            missing = may_come(self._context.paths.bundles, offer, left)
            if missing is not None:
                left -= missing
                number = offer.number or len(offer.entries)
                taken.append(offer._replace(entries=[], number=number) if offer.whole else offer)
        return ProposedProfile(target.namespace, target.facts, taken)

    def fetch(self) -> None:
        """Fetch the bundles to this node."""
        for target, offers in self._offers:
            profile, started = target.profile, time.monotonic()
            with self._cold_on_failure(profile):
                copies, left_out = _copied(self._context, profile, target.namespace, offers, self._budget)
                if profile.name in self._agreed and left_out:
                    self.cold[profile.name] = left_out[0].code
                    continue
                if not all(copy.offer.whole for copy in copies):
                    copies = [copy.named() for copy in copies]
                if copies:
                    self._sources.append(_Source(profile, target.namespace, copies, started))

    def mount(self) -> None:
        """Mount the overlays. After the first one that is unavailable, this and all later profiles are extracted."""
        if not any(source.profile.suits_overlay for source in self._sources):
            return
        from warmstart.seed.overlay import JobIds

        with JobIds(self._identity) as ids:
            for number, source in enumerate(self._sources):
                if source.profile.suits_overlay:
                    with self._cold_on_failure(source.profile):
                        mounted = self._mounted(source, ids)
                        if mounted is None:
                            return
                        self._sources[number] = mounted

    def attach(self, attach: Callable[[list[str]], None]) -> None:
        """Show the overlays where else they must be seen; where that fails, all profiles are extracted."""
        mounted = [source.profile.name for source in self._sources if source.way]
        try:
            if mounted:
                attach(mounted)
        except OSError as error:
            from warmstart.seed.overlay import OverlayUnavailable, discard

            why = OverlayUnavailable(profile=", ".join(mounted), problem=error.strerror or str(error))
            self._context.audit.remark(str(why), ", ".join(mounted))
            with opened_dir(self._directory) as base, opened_dir("cache", base) as cache:
                for name in mounted:
                    discard(base, name)
                    os.rmdir(name, dir_fd=cache)  # where it was seen, it is seen no more
                    os.mkdir(name, 0o700, dir_fd=cache)
            self._sources = [source._replace(way="", mapped=False, shown=()) for source in self._sources]

    def extract(self) -> None:
        """Extract entries that are not mounted."""
        for found in self._sources:
            if found.way:
                self._shown.append(found)
                continue
            with self._cold_on_failure(found.profile), self._opened_cache(found.profile) as cache:
                source = found._replace(copies=[copy.named() for copy in found.copies])
                try:
                    self._job().unpack(source.copies, cache, source.profile.name, self._budget.extracting)
                except BaseException:  # a partial profile is worse than none
                    self._discard(source, cache)
                    raise
                self._shown.append(source)

    def settle(self) -> None:
        """Agree with the job's other nodes on what they all show, and discard the rest."""
        against = self._against(self._together) if self._together and self._agreed else {}
        for source in self._shown:
            name = source.profile.name
            if name in against:
                self.cold[name] = against[name]
                with self._cold_on_failure(source.profile), self._opened_cache(source.profile) as cache:
                    self._discard(source, cache)
            else:
                self._done(source)

    def _against(self, together: Together) -> dict[str, str]:
        """Return why which of the proposed profiles are cold."""
        shown = {source.profile.name for source in self._shown}
        mine = {name: self.cold[name] for name in self._agreed if name not in shown}
        try:
            settled = together.settle(mine, self._context.deadline)
        except StoreError as error:
            self.degraded.append(error)
            return dict.fromkeys(self._agreed, error.code)
        self._context.audit.say(agreed_ms=round(settled.waited_s * 1000, 3))
        for name, why in settled.cold.items():
            self._context.audit.put("caches", name, nodes=why.nodes)
        return {name: why.reason for name, why in settled.cold.items()}

    def _mounted(self, source: _Source, ids: JobIds) -> _Source | None:
        from warmstart.seed import overlay
        from warmstart.seed.overlay import OverlayUnavailable

        context, profile = self._context, source.profile
        deadline = context.deadline.within(MOUNTING_SECONDS)
        with opened_dir(self._directory) as base:
            try:
                shown = overlay.show(base, profile.name, context.paths.layers, source.copies, ids, deadline)
            except OverlayUnavailable as error:
                context.audit.remark(str(error), profile.name)
                return None
        return source._replace(way="overlay", mapped=shown.mapped, shown=tuple(shown.entries))

    def _discard(self, source: _Source, cache: int) -> None:
        """Leave the profile an empty directory: its variable names it, and not every tool makes it."""
        if source.way:
            from warmstart.seed.overlay import discard

            with opened_dir(self._directory) as base:
                discard(base, source.profile.name)
        deadline = after(REMOVAL_SECONDS)
        remove_tree(cache, source.profile.name, deadline)
        with suppress(WarmstartError, OSError):  # the user can cause any of these
            self._job().make_directory(cache, source.profile.name, deadline)

    def _done(self, source: _Source) -> None:
        seeded = Seeded(source.namespace, source.bundles)
        self.seeded[source.profile.name] = seeded
        if seeded.number:
            self.cold.pop(source.profile.name)
        self._context.audit.put(
            "caches",
            source.profile.name,
            warm=bool(seeded.number),
            namespace=source.namespace,
            way=source.way or "extraction",
            mapped=source.mapped,
            entries=seeded.number,
            bundles=len(source.copies),
            bundle_ids=[copy.offer.bundle for copy in source.copies],
            scopes=sorted({copy.offer.scope for copy in source.copies}),
            fetched_bytes=sum(copy.fetched for copy in source.copies),
            ms=round((time.monotonic() - source.started) * 1000, 3),
        )

    @contextmanager
    def _opened_cache(self, profile: Profile) -> Iterator[int]:
        """Open the cache below root's directory. Raises `CacheFailed` if the job's user has replaced it."""
        with opened_dir(self._directory) as base:
            try:
                cache = open_directory("cache", base, mount_id(base))
            except TurnedAway as turned:
                raise CacheFailed(profile=profile.name, problem=f"the cache directory: {turned.reason}") from turned
            try:
                yield cache
            finally:
                os.close(cache)

    @contextmanager
    def _cold_on_failure(self, profile: Profile) -> Iterator[None]:
        try:
            yield
        except WarmstartError as error:
            self._failed(profile, error)
        except OSError as error:
            self._failed(profile, CacheFailed(profile=profile.name, problem=error.strerror or str(error)))

    def _failed(self, profile: Profile, error: WarmstartError) -> None:
        self.degraded.append(error)
        self.cold[profile.name] = error.code


def _why_cold(offers: Offers) -> str:
    """Return why a profile is cold if none of the offered bundles can be used."""
    if offers.offers:
        return BUNDLES_LEFT_OUT
    return BUNDLES_REFUSED if offers.refused else NOTHING_PUBLISHED


def _copied(
    context: Context, profile: Profile, namespace: str, offers: list[Offer], budget: _Budget
) -> tuple[list[Copy], list[ResourceError]]:
    """Copy the offered bundles to this node, within the budget and as many as an overlay takes; return why not others.

    One remark for each reason names the first of those that are left out and tells how many they are.
    """
    if not offers:
        return [], []
    from warmstart.seed.node_cache import copy_here, local_copy
    from warmstart.seed.overlay import MOST_BUNDLES

    copies: list[Copy] = []
    left_out: list[ResourceError] = []
    for number, offer in enumerate(offers):
        if profile.suits_overlay and len(copies) == MOST_BUNDLES:
            why = f"an overlay has at most {MOST_BUNDLES} bundles; does `warmstart maintain --store` run each night?"
            rest = [other.bundle for other in offers[number:]]
            left_out += [CacheFailed(profile=profile.name, problem=why, bundle=bundle) for bundle in rest]
            break
        copy = copy_here(context.paths.bundles, offer)
        if copy is None:
            budget.spread()
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
                left_out.append(error)
                continue
            budget.bytes -= copy.fetched
        copies.append(copy)
    for _, errors in groupby(left_out, lambda error: error.code):
        first, *others = errors
        context.audit.remark(
            f"{1 + len(others)} bundles were left out: {first}", profile.name, bundle=first.fields["bundle"]
        )
    return copies, left_out


def _give_away(run: Run, directory: str) -> DiskFailed | None:
    """Make the job's user the owner of the cache in a directory, and of its directories; the cache itself last."""
    try:
        with opened_dir(directory) as base, opened_dir("cache", base) as cache:
            for name in os.listdir(cache):
                os.chown(name, run.uid, run.gid, dir_fd=cache, follow_symlinks=False)
            os.fchown(cache, run.uid, run.gid)
    except OSError as error:
        return DiskFailed(what="the job gets no cache", problem=error.strerror or str(error))
    return None
