"""Step `seed`: fill the job's caches with the entries of their namespaces (docs/reference/profiles.md#seeding).

    look ─▶ (propose, or wait for the proposal) ─▶ fetch ─▶ mount ─▶ give the cache away ─▶ extract ─▶ (vote)

One question to the store tells for all profiles which bundles to show. The node fetches those that it lacks, and an
overlay shows them to the job. Where no overlay is possible, or the profile needs exact times, entries are extracted as
the job's uid. A failure leaves only its own profile cold.

The cache belongs to root until all overlays are mounted, so nobody can change their mount points (docs/threats.md,
row 4). Then the job's user becomes its owner, even after failures.
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store import client
from warmstart.caches.store.layout import MOST_BYTES, Namespace
from warmstart.caches.store.look import Found, Want, own_failure
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed, disk_errors, opened_dir
from warmstart.host.identity import Identity
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager
from warmstart.policy.keys import Policy
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.run.state import Caches, Run, Seeded, SeededBundle
from warmstart.seed import copies, node_cache
from warmstart.steps.contract import CacheFailed, Context, Outcome
from warmstart.store.layout import StoreFailed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from warmstart.seed.client import JobClient
    from warmstart.seed.overlay import JobIds
    from warmstart.seed.vote import Vote
    from warmstart.store.barrier import Barrier

NAME = "seed"
# Why a profile is cold, if no error is the reason; docs/reference/audit.md explains them.
NOTHING_PUBLISHED = "nothing-published"
ASKED_FRESH = "asked-fresh"
BUNDLES_REFUSED = "bundles-refused"
BUNDLES_LEFT_OUT = "bundles-left-out"
NOTHING_PROPOSED = "nothing-proposed"  # by the job's head node
NODES_DIFFER = "nodes-differ"  # in these facts

MOST_LAYERS = 15  # bundles of one overlay, whose sixteenth layer is for whiteouts
EXTRACTION_SECONDS = 60.0
MOUNTING_SECONDS = 5.0


class Options(NamedTuple):
    """What to seed. Profiles share one budget and are served in this order."""

    profiles: tuple[str, ...]
    declared: str = ""  # the name of the job's declared files
    fresh: bool = False  # the job asked to start cold
    barrier: Barrier | None = None  # where the job's nodes agree on what they show it; None: each decides for itself
    cache: str = ""  # the grant's: a name that parts its caches from others
    attach: Callable[[list[str]], None] | None = None  # shows the overlays where else they must be seen; `OSError`
    ahead: client.Ahead | None = None  # what was asked for with the image


class _Cache:
    """The cache of one profile, as far as it has come."""

    def __init__(self, profile: Profile, facts: dict[str, str], *, is_agreed: bool) -> None:
        self.profile, self.name = profile, profile.name
        self.facts: dict[str, str] = {name: facts[name] for name in profile.all_facts}
        self.namespace = host_facts.namespace(profile, facts)
        self.is_agreed = is_agreed  # all nodes of the job show it, or none
        self.cold = NOTHING_PUBLISHED  # why; "" once it may be warm
        self.found = Found([], [], False, 0, {}, {})  # which bundles to show; they are on the node once it is mounted
        self.fetched = 0  # bytes
        self.way = ""  # "overlay" or "extraction", once the job sees it
        self.is_mapped = False
        self.started = time.monotonic()

    def take(self, names: list[list[str]]) -> None:
        """Give the job these entries of each bundle."""
        layers = [layer._replace(names=own) for layer, own in zip(self.found.layers, names, strict=True)]
        self.found = self.found._replace(layers=layers, is_named=True)

    @property
    def seeded(self) -> Seeded:
        """What the job was given."""
        if self.cold:
            return Seeded(self.namespace)
        unnamed = not self.found.is_named
        given = [
            SeededBundle(scope, row.sha256, names, row.number if unnamed else 0)
            for scope, row, names in self.found.layers
        ]
        return Seeded(self.namespace, given, self.found.hidden if unnamed else [])


def run(context: Context, options: Options) -> Outcome:
    """Seed every profile. Each profile that fails is an error in the outcome's `degraded`."""
    own, degraded = fill(context, context.run.own, options)
    run = context.run._replace(fresh=options.fresh, own=own)
    if not own.path:  # The empty value replaces one that the job may have inherited.
        return Outcome(run=run, environment={"WARMSTART_CACHE": ""}, degraded=degraded)
    topics: tuple[str, ...] = (options.barrier.path,) if options.barrier and run.head else ()
    if context.policy.harvest.while_running is not None:
        from warmstart.harvest import live

        watched = live.watch(context.policy, context.paths, run)
        context.audit.say(**watched)
        run = run._replace(live="look" in watched)
    return Outcome(run=run._replace(began=time.time()), degraded=degraded, topics=topics)


def fill(context: Context, caches: Caches, options: Options) -> tuple[Caches, list[WarmstartError]]:
    """Seed every profile of caches whose directory is there; return them, and what failed of which profile.

    They have no path if the job gets none. Raises what `options.attach` does.
    """
    seeding = _Seeding(context, caches, options)
    try:
        image = caches.image or f"label:{context.policy.site_label}"
        facts, profiles = _facts(context.policy, options, image)
        seeding.show([_Cache(one, facts, is_agreed=bool(options.barrier and one.in_step)) for one in profiles])
    finally:
        withheld = _give_away(context.run, context.run.directory_of(caches))
    if withheld:
        for name in options.profiles:
            context.audit.put("caches", name, warm=False, cold=withheld.code)
        return caches._replace(path=""), [withheld]
    seeded = seeding.finish()
    context.audit.say(facts=facts)
    return caches._replace(facts=facts, seeded=seeded), seeding.degraded


def wanted(policy: Policy, scopes: list[str], options: Options, image: str) -> tuple[list[str], list[Want]]:
    """Return what the step first asks the store for, scopes and wants, unless it is the head node that knows."""
    facts, profiles = _facts(policy, options, image)
    return scopes, [_wanted(_Cache(one, facts, is_agreed=False)) for one in profiles]


def _facts(policy: Policy, options: Options, image: str) -> tuple[dict[str, str], list[Profile]]:
    profiles = [registry.get(name, policy.profiles) for name in options.profiles]
    facts = host_facts.derive(profiles, image, options.declared, options.cache)
    return facts | ({"path": policy.constant_cache} if policy.constant_cache else {}), profiles


class _Seeding:
    """One run of the step: fetch all bundles, mount all overlays, then extract into the job's cache."""

    def __init__(self, context: Context, caches: Caches, options: Options) -> None:
        self.degraded: list[WarmstartError] = []
        self._context, self._options, self._caches = context, options, caches
        self._directory = context.run.directory_of(caches)
        self._identity = Identity(context.run.user, context.run.uid, context.run.gid)
        self._profiles: list[_Cache] = []
        self._bytes = min(MOST_BYTES, context.policy.seed.keep)  # what is beyond that would not stay
        self._budget_s = context.policy.seed.fetch_budget
        self._fetching = context.deadline.within(self._budget_s)
        self._vote: Vote | None = None

    @property
    def _warm(self) -> list[_Cache]:
        return [cache for cache in self._profiles if not cache.cold]

    def show(self, profiles: list[_Cache]) -> None:
        """Find out which bundles to take, fetch them, and mount the overlays, while the cache is root's."""
        self._profiles = profiles
        if self._options.fresh:
            for cache in profiles:
                cache.cold = ASKED_FRESH
            return
        agreed = [cache for cache in profiles if cache.is_agreed]
        is_head = self._context.run.leads(self._caches)
        self._look({cache: _wanted(cache) for cache in profiles if is_head or cache not in agreed}, self._fetching)
        if agreed and self._options.barrier:
            self._agree(self._options.barrier, agreed, is_head=is_head)
        for cache in self._warm:
            with self._cold_on_failure(cache):
                self._fetch(cache)
        self._mount()
        if (mounted := [cache.name for cache in self._warm if cache.way]) and self._options.attach:
            self._options.attach(mounted)

    def _look(self, wanted: dict[_Cache, Want], until: Deadline) -> None:
        """Ask the store which bundles there are to show."""
        if not wanted:
            return
        try:
            wants, scopes = [*wanted.values()], self._caches.read_scopes
            answers = client.listings(self._context.store, scopes, wants, until, self._options.ahead)
        except StoreError as error:
            self._failed(error, *wanted)
            return
        for (cache, want), found in zip(wanted.items(), answers, strict=True):
            for scope, why in found.failed.items():
                self._context.audit.remark(f"a listing was refused: {why}", cache.name, scope=scope)
            cache.found, cache.cold = found, "" if found.layers else NOTHING_PUBLISHED
            if why := own_failure(found):
                self._failed(StoreFailed(what=f"the listing of {cache.name}", problem=why), cache)
            elif found.failed and (want.at or not found.layers):
                cache.cold = BUNDLES_REFUSED

    def _agree(self, barrier: Barrier, agreed: list[_Cache], *, is_head: bool) -> None:
        """Take what the head node proposes of these profiles in place of what this node has found."""
        from warmstart.seed.vote import Proposed, Vote

        self._vote = Vote(self._context.store, barrier, self._context.run.node, self._budget_s)
        own = {
            cache.name: Proposed(cache.namespace, cache.facts, cache.found.listings)
            for cache in agreed
            if not cache.cold
        }
        try:
            proposed = self._vote.proposal(own, self._context.deadline)
        except StoreError as error:
            self._failed(error, *agreed)
            return
        wanted = {}
        for cache in agreed:
            there = proposed.get(cache.name)
            if there is None:
                cache.is_agreed = False
                cache.cold = cache.cold if is_head and cache.cold else NOTHING_PROPOSED
            elif there.namespace != cache.namespace or not there.listings.keys() <= {*self._caches.read_scopes}:
                differing = sorted(fact for fact, value in cache.facts.items() if there.facts.get(fact) != value)
                cache.cold = f"{NODES_DIFFER}: {', '.join(differing or ['scopes'])}"
            elif there != own.get(cache.name):
                wanted[cache] = _wanted(cache)._replace(at=there.listings)
        self._look(wanted, self._fetching)

    def _fetch(self, cache: _Cache) -> None:
        """Have the bundles of a profile on this node; leave out those for which there are no bytes, or no time."""
        bundles, store, until = self._context.paths.bundles, self._context.store, self._fetching
        left_out: dict[str, ResourceError] = {}
        for scope, row, _ in cache.found.layers:
            where = Namespace(self._context.policy.paths.store, scope, cache.name, cache.namespace)
            try:
                size = node_cache.get(bundles, where, row, store=store, most_bytes=self._bytes, deadline=until)
            except copies.FetchOverBudget as error:
                left_out[row.sha256] = error
            else:
                self._bytes -= size
                cache.fetched += size
        if cache.found.beyond:
            why = f"an overlay has at most {MOST_LAYERS}; does `warmstart maintain --store` run each night?"
            self._context.audit.remark(f"{cache.found.beyond} bundles were left out: {why}", cache.name)
        if left_out:
            self._leave_out(cache, left_out)

    def _leave_out(self, cache: _Cache, left_out: dict[str, ResourceError]) -> None:
        why = next(iter(left_out.values()))
        self._context.audit.remark(f"{len(left_out)} bundles were left out: {why}", cache.name)
        layers = [layer for layer in cache.found.layers if layer.row.sha256 not in left_out]
        if cache.is_agreed or not layers:
            cache.cold = why.code if cache.is_agreed else BUNDLES_LEFT_OUT
        elif cache.found.is_named:
            cache.found = cache.found._replace(layers=layers)
        else:  # what the others cover is not known
            wanted = _wanted(cache)._replace(at=cache.found.listings, without=[*left_out])
            self._look({cache: wanted}, self._context.deadline.within(MOUNTING_SECONDS))

    def _mount(self) -> None:
        """Mount the overlays. After the first one that is unavailable, this and all later profiles are extracted."""
        suited = [cache for cache in self._warm if cache.profile.suits_overlay]
        if not suited:
            return
        from warmstart.seed.overlay import OverlayUnavailable, job_ids

        with job_ids(self._identity) as ids, opened_dir(self._directory) as base:
            for cache in suited:
                with self._cold_on_failure(cache):
                    try:
                        self._show(cache, base, ids)
                    except OverlayUnavailable as error:
                        self._context.audit.remark(str(error), cache.name)
                        return

    def _show(self, cache: _Cache, base: int, ids: JobIds) -> None:
        from warmstart.seed import overlay

        bundles, layers, hidden = self._context.paths.bundles, cache.found.layers, cache.found.hidden
        names: list[list[str]] | None = None
        if cache.found.is_named:
            from warmstart.seed.layers import visible

            files = [copies.entries_of(bundles, layer.row.sha256, layer.names) for layer in layers]
            names, hidden = visible(files, [layer.names for layer in layers])
        paths = [copies.path_of(bundles, layer.row.sha256) for layer in layers]
        until = self._context.deadline.within(MOUNTING_SECONDS)
        try:
            roots = node_cache.mounted(self._context.paths.layers, paths, until)
        except OSError as error:
            raise overlay.OverlayUnavailable(profile=cache.name, problem=error.strerror or str(error)) from error
        try:
            cache.is_mapped = overlay.show(base, cache.name, roots, hidden, ids)
        finally:
            for root in roots:
                os.close(root)
        if names is not None:
            cache.take(names)
        cache.way = "overlay"

    def finish(self) -> dict[str, Seeded]:
        """Extract what is not mounted, agree with the job's other nodes, and return what the job was given."""
        for cache in self._warm:
            if not cache.way:
                with self._cold_on_failure(cache):
                    self._extract(cache)
        if self._vote and (agreed := [cache for cache in self._profiles if cache.is_agreed]):
            self._settle(self._vote, agreed)
        for cache in self._profiles:
            if not cache.seeded.number:
                cache.cold = cache.cold or BUNDLES_LEFT_OUT
            self._tell(cache)
        return {cache.name: cache.seeded for cache in self._profiles}

    def _extract(self, cache: _Cache) -> None:
        bundles = self._context.paths.bundles
        if not cache.found.is_named:
            from warmstart.seed.layers import given

            files = [copies.entries_of(bundles, layer.row.sha256) for layer in cache.found.layers]
            cache.take(given(files, cache.found.hidden))
        until = self._context.deadline.within(self._budget_s + EXTRACTION_SECONDS)
        with self._opened_cache() as own:
            own.unpack(bundles, cache.found.layers, cache.name, until)
        cache.way = "extraction"

    def _opened_cache(self) -> AbstractContextManager[JobClient]:
        from warmstart.seed.client import opened_cache

        return opened_cache(self._directory, self._identity, self._context.policy.validate_user)

    def _settle(self, vote: Vote, agreed: list[_Cache]) -> None:
        """Agree with the job's other nodes on what they all show, and discard the rest."""
        started = time.monotonic()
        try:
            cold = vote.settle({cache.name: cache.cold for cache in agreed if cache.cold}, self._context.deadline)
            against = {name: why.reason for name, why in cold.items()}
            self._context.audit.say(agreed_ms=round((time.monotonic() - started) * 1000, 3))
            for name, why in cold.items():
                self._context.audit.put("caches", name, nodes=why.nodes)
        except StoreError as error:
            self.degraded.append(error)
            against = {cache.name: error.code for cache in agreed}
        for cache in agreed:
            if cache.name in against:
                if not cache.cold:
                    with self._cold_on_failure(cache):
                        self._discard(cache)
                cache.cold = against[cache.name]

    def _discard(self, cache: _Cache) -> None:
        if cache.way == "overlay":
            from warmstart.seed.overlay_end import discard

            with opened_dir(self._directory) as base:
                discard(base, cache.name)
        with self._opened_cache() as own:
            own.empty(cache.name)

    def _tell(self, cache: _Cache) -> None:
        if cache.cold:
            self._context.audit.put("caches", cache.name, warm=False, cold=cache.cold)
            return
        self._context.audit.put(
            "caches",
            cache.name,
            warm=True,
            namespace=cache.namespace,
            way=cache.way,
            mapped=cache.is_mapped,
            entries=cache.seeded.number,
            bundles=len(cache.found.layers),
            bundle_ids=[layer.row.sha256 for layer in cache.found.layers],
            scopes=sorted({layer.scope for layer in cache.found.layers}),
            fetched_bytes=cache.fetched,
            ms=round((time.monotonic() - cache.started) * 1000, 3),
        )

    @contextmanager
    def _cold_on_failure(self, cache: _Cache) -> Iterator[None]:
        try:
            yield
        except WarmstartError as error:
            self._failed(error, cache)
        except OSError as error:
            self._failed(CacheFailed(profile=cache.name, problem=error.strerror or str(error)), cache)

    def _failed(self, error: WarmstartError, *caches: _Cache) -> None:
        self.degraded.append(error)
        for cache in caches:
            cache.cold = error.code


def _wanted(cache: _Cache) -> Want:
    """Return the question for the newest that there is."""
    return Want(cache.name, cache.namespace, most=MOST_LAYERS if cache.profile.suits_overlay else 0)


def _give_away(run: Run, directory: str) -> DiskFailed | None:
    """Make the job's user the owner of the cache in a directory, and of its directories; the cache itself last."""
    try:
        with disk_errors("the job gets no cache"), opened_dir(directory) as base, opened_dir("cache", base) as cache:
            for name in os.listdir(cache):
                os.chown(name, run.uid, run.gid, dir_fd=cache, follow_symlinks=False)
            os.fchown(cache, run.uid, run.gid)
    except DiskFailed as failure:
        return failure
    return None
