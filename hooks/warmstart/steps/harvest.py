"""Step `harvest`: publish what the job compiled (docs/architecture.md, An epilog; docs/threats.md, rows 5, 7, 13).

For each profile of the run's caches, those of the job's own image first, root copies the new entries into its stage, a
process with the validator's uid judges them there, root packs the valid ones, and the store's owner publishes the
bundle. A bundle that the store does not accept is spooled on the node. Invalid entries are dropped, with a reason in
the audit. Profiles for which there is no time are listed in `Caches.left`, and in `judged` how far they came;
`release` then leaves the caches to maintenance.

Of a run on several nodes each node hands its bundles in (`store.parts`), and says so when it has no more. The last one
starts `entry.background`, which publishes what all nodes have handed in.

A job that runs is harvested in the same way (`run_live`), but for what its end alone tells: nothing is retired, spooled
or put off, and what has changed lately is left out. The epilog then takes what was taken for seeded (docs/adr/0061).
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.audit import events
from warmstart.errors import StoreError, WarmstartError
from warmstart.harvest import spool
from warmstart.harvest.collect import STAGE_FULL, Collected, HarvestLimits, Stage, collect, collect_overlay, place_of
from warmstart.harvest.pack import pack
from warmstart.harvest.scan import MOST_EXAMPLES, OUT_OF_TIME
from warmstart.harvest.seeded import NOTHING_SEEDED, SeededEntries
from warmstart.harvest.spool import Spooled
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import FULL, DiskFailed, ensure_dir, opened_dir, remove_tree
from warmstart.host.identity import WorkerSilent
from warmstart.host.process import ProgramTooSlow
from warmstart.host.space import Reservation
from warmstart.host.untrusted import opened_of_job
from warmstart.lean import (
    TYPE_CHECKING,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    contextmanager,
    partial,
    suppress,
)
from warmstart.profiles import contract, naming, registry
from warmstart.profiles.client import Validator
from warmstart.run.state import Caches, SeededBundle
from warmstart.seed import node_cache
from warmstart.seed.overlay_end import opened_overlay, was_shown
from warmstart.steps.contract import CacheFailed, Context, Outcome
from warmstart.store import bundles, parts
from warmstart.store.layout import Namespace, StoreFailed, StoreFull, is_user_scope
from warmstart.store.manifest import MOST_ENTRIES, Draft, Entries, Producer, content_digest
from warmstart.store.parts import RunParts

if TYPE_CHECKING:
    from warmstart.harvest.live import Taken

NAME = "harvest"
SUPERSEDED = "superseded"  # another job's version took the place of the seeded one meanwhile
CLEANED_UP = "removed with most others, as by a cleaner; it stays published"
CUT_SHORT = "removed, but the harvest was cut short; it stays published"
# Before a variable's name, in the cache: a value of the job's own stood there (task prolog, enroot's hook).
OWN = ".own-"
MOST_RETIRED = 5  # names in an event
MOST_OWN = 256  # names of the cache's directory that are looked at

_LAST = "last"  # a stage and an item of the spool: that this node hands in nothing more

BUSY_SECONDS = 5.0  # wait for a process that still writes to the cache
CLEANING_SECONDS = 10.0
CONTROLLER_SECONDS = 5.0  # for slurmctld to say how the job ended
STORE_SECONDS = 5.0  # for the store to list its entries; without the list, everything that was not seeded is new


class _Late(Exception):
    """The time budget was used up before the profile was done."""


class Options(NamedTuple):
    """Limits of one job's harvest, and which profiles to harvest."""

    budget: float  # seconds
    max_size: int  # bytes
    failure: Callable[[Deadline], str] | None = None  # returns why the job failed, "" if it succeeded
    after_success: frozenset[str] | None = None  # the profiles to harvest only after success; None: all
    of_head: frozenset[str] = frozenset()  # the profiles to harvest on the first node of caches alone
    settled_ns: int = 0  # of a job that runs: by ctime, what changed later is left out; 0 after its end
    number: int = 0  # … the round's


class _Harvested(NamedTuple):
    """The result of one profile's harvest."""

    entries: int  # published
    size: int  # bytes collected
    late: bool  # whether time or the stage's disk ran out before everything was collected and judged
    judged: str  # up to which place it was, if it is late
    failed: StoreError | None = None  # why the bundle is not in the store
    is_whole: bool = True  # whether no entry was left out because it has changed lately, or for want of room


def run(context: Context, options: Options) -> Outcome:
    """Harvest the profiles of all caches, or only those that are left if there are any.

    Each failed profile is an error in the outcome's `degraded`. Unfinished profiles are left, and so are those for
    which the stage's disk has no room.
    """
    run = context.run
    if run.live:
        from warmstart.harvest import live

        live.end(context.paths, run)
        if place := _place(context):
            with suppress(StoreError):  # then maintenance of the store does it
                context.store.run(context.deadline.within(STORE_SECONDS + 1), parts.end_rounds, place.name)
    deadline = context.deadline.within(options.budget)
    chosen = _to_harvest(context, options, deadline)
    total = _Total()
    own, *others = [_harvest(context, caches, options, deadline, names, total) for caches, names in chosen]
    run = run._replace(own=own, others=others)
    if run.nodelist and not run.left:
        total.degraded += _finish(context, options)
    if own.seeded and not any(names for _, names in chosen):
        return Outcome(degraded=total.degraded)
    return Outcome(run=run, degraded=total.degraded, lost=total.lost)


def run_live(context: Context, options: Options) -> Outcome:
    """Harvest a job that runs. The caller holds a flock on the run's directory. Errors as of `run`."""
    from warmstart.harvest import live  # most jobs are harvested at their end alone

    deadline, total, is_late = context.deadline.within(options.budget), _Total(), False
    for caches in context.run.caches:
        names = live.profiles(context.policy, caches)
        is_late = bool(_harvest(context, caches, options, deadline, names, total).left) or is_late
    if context.run.nodelist and not (is_late or total.degraded):  # else the round lacks this node, and is dropped
        total.degraded += _finish(context, options)
    return Outcome(degraded=total.degraded)


class _Given(NamedTuple):
    """What is known of caches before their profiles are harvested."""

    own: frozenset[str]  # variables that the job set itself, by its word
    place: RunParts | None  # where the nodes of the run hand in; None: there is only one, which publishes


class _Total:
    """What was harvested so far, of all caches."""

    def __init__(self) -> None:
        self.entries = 0
        self.size = 0  # bytes
        self.degraded: list[WarmstartError] = []
        self.lost = False


def _harvest(  # noqa: PLR0917 - caches of a run, and what is left for them
    context: Context, caches: Caches, options: Options, deadline: Deadline, profile_names: list[str], total: _Total
) -> Caches:
    """Harvest caches, within what the others have left; return them with what is left to do."""
    left: list[str] = []
    judged: dict[str, str] = {}
    given = _Given(_own_variables(context.run.directory_of(caches)), _place(context, options.number))
    whole: set[str] = set()
    for profile_name in profile_names:
        if options.settled_ns and not _may_refer(context, caches, profile_name, whole):
            continue
        # The harvest of a profile is one bundle. If it were larger than a job may fetch, nobody would get its entries.
        max_size = min(options.max_size - total.size, bundles.MOST_BYTES)
        before = caches.judged.get(profile_name, "")
        limits = HarvestLimits(max_size, MOST_ENTRIES - total.entries, deadline, before, options.settled_ns)
        try:
            harvested = _ProfileHarvest(context, caches, profile_name, limits, given, total.degraded).run()
        except _Late:
            left.append(profile_name)
            judged |= {profile_name: before} if before else {}
        except WarmstartError as error:
            total.degraded.append(error)
            total.lost = True
        except OSError as error:
            if error.errno in FULL:
                left.append(profile_name)
                judged |= {profile_name: before} if before else {}
                continue
            where = f"{error.filename}: " if error.filename else ""
            problem = f"{where}{error.strerror or error}"
            total.degraded.append(CacheFailed(profile=profile_name, problem=problem))
            total.lost = True
        else:
            total.entries += harvested.entries
            total.size += harvested.size
            if harvested.late:
                left.append(profile_name)
                judged |= {profile_name: harvested.judged} if harvested.judged else {}
            total.degraded += [harvested.failed] if harvested.failed else []
            if harvested.is_whole and not (harvested.late or harvested.failed):
                whole.add(profile_name)
    return caches._replace(left=left, judged=judged)


def _may_refer(context: Context, caches: Caches, name: str, whole: set[str]) -> bool:
    """Return whether all was taken of the other profiles to which entries of this one refer."""
    others = {*registry.get(name, context.policy.profiles).refers_to} - {name}
    return whole.issuperset(others & caches.seeded.keys())


def _own_variables(directory: str) -> frozenset[str]:
    """Return the variables of which a job says that they had a value of its own. It is its user's word, and no more.

    The directory is the job's: of one with too many names only the first are looked at.
    """
    with (
        suppress(OSError),
        opened_dir(directory) as base,
        opened_of_job("cache", base) as fd,
        os.scandir(fd) as found,
    ):
        names = [entry.name for _, entry in zip(range(MOST_OWN), found, strict=False)]
        return frozenset(name.removeprefix(OWN) for name in names if name.startswith(OWN))
    return frozenset()


def _to_harvest(context: Context, options: Options, deadline: Deadline) -> list[tuple[Caches, list[str]]]:
    """Return the profiles to harvest of all caches. If the job failed, leaves out those that require success."""
    run = context.run
    names = {caches.key: caches.left if run.left else [*caches.seeded] for caches in run.caches}
    for caches in run.caches:
        if not run.leads(caches):
            names[caches.key] = [name for name in names[caches.key] if name not in options.of_head]
    if options.failure and (reason := options.failure(deadline.within(CONTROLLER_SECONDS))):
        every = dict.fromkeys(name for of_image in names.values() for name in of_image)
        left_out = [name for name in every if options.after_success is None or name in options.after_success]
        for name in left_out:
            context.audit.put("caches", name, left_out=reason)
        names = {key: [name for name in of_image if name not in left_out] for key, of_image in names.items()}
    return [(caches, names[caches.key]) for caches in run.caches]


def _place(context: Context, number: int = 0) -> RunParts | None:
    """Return where the nodes of the run hand in, in a round or at its end; None if there is only one node."""
    run = context.run
    if not run.nodelist:
        return None
    name = parts.name_of(run.uid, run.cluster, run.job_id, run.restarts, number)
    return RunParts(context.store.path, name)


def _finish(context: Context, options: Options) -> list[WarmstartError]:
    """Say that this node hands in nothing more, after what it has spooled. If it is the last, start the merge."""
    run, place = context.run, _place(context, options.number)
    if place is None:
        return []
    degraded: list[WarmstartError] = []
    if options.number or not spool.holds(context.paths.spool, run.name):
        try:
            deadline = context.deadline.within(STORE_SECONDS)
            standing = context.store.run_in(deadline, parts.finish, place, run.node, run.nodelist)
        except (StoreFull, StoreFailed, WorkerSilent) as error:
            degraded.append(error)
        else:
            if standing.parts and not standing.missing:
                from warmstart import errand

                errand.start(context.paths, parts.PARTS)
        if options.number or not degraded:
            return degraded
    producer = Producer(run.job_id, run.user, run.uid, run.node, run.cluster)
    name, scope = f"{run.name}.{_LAST}", run.own.publish_scope
    last = Spooled(scope, "", "", Draft(producer, {}, {}), name, "", place.name, run.nodelist)
    try:
        with _staged(context, _LAST, degraded) as (stage, _):
            os.close(os.open(f"{stage}/{spool.BUNDLE}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
            _add_to_spool(context, stage, last)
    except WarmstartError as error:
        degraded.append(error)
    except (OSError, _Late) as error:  # the run is merged without this node's word, later
        degraded.append(DiskFailed(what=context.paths.spool, problem=str(error) or "no time was left"))
    return degraded


class KnownEntries:
    """The entries to skip: those that the job was seeded with, those in the store, and what other nodes handed in.

    The store is asked at the first entry that was not seeded. Its answer takes longer the more it has, and the epilog
    of a warm job does not wait for it. Seeded entries that the job changed are collected all the same
    (`SeededEntries`).
    """

    def __init__(self, seeded: Container[str], ask: Callable[[], Iterable[str]]) -> None:
        """`ask` returns the entries in the store."""
        self._seeded = seeded
        self._ask = ask
        self._stored: frozenset[str] | None = None

    @property
    def was_asked(self) -> bool:
        """Whether there was an entry that was not seeded."""
        return self._stored is not None

    def __contains__(self, entry: object) -> bool:
        if entry in self._seeded:
            return True
        if self._stored is None:
            self._stored = frozenset(self._ask())
        return entry in self._stored


class _ProfileHarvest:
    """The harvest of one profile of one run, from the job's cache to the store."""

    def __init__(  # noqa: PLR0917 - what is harvested, and the bounds
        self,
        context: Context,
        caches: Caches,
        profile_name: str,
        limits: HarvestLimits,
        given: _Given,
        degraded: list[WarmstartError],
    ) -> None:
        """`degraded` gets the errors that do not change the result."""
        policy, run = context.policy, context.run
        seeded = caches.seeded[profile_name]
        self._context = context
        self._caches = caches
        self._directory = run.directory_of(caches)
        self._name = f"{caches.key}.{profile_name}" if caches.key else profile_name
        self._limits = limits
        self._profile = registry.get(profile_name, policy.profiles)
        led = [name for name, value in self._profile.variables.items() if "{home}" not in value]
        self._own = [name for name in led if name in given.own]
        self._namespace = Namespace(policy.paths.store, caches.publish_scope, profile_name, seeded.namespace)
        self._quota = bundles.quota(caches.publish_scope, policy.maintenance)
        self._place = given.place
        # What the nodes of a job find stale is the head node's word alone, but for what they have handed in themselves.
        self._leads = run.leads(caches)
        self._is_heard = self._leads or self._place is None
        bundles_heard = self._replaceable(seeded.bundles) if self._is_heard else []
        self._is_live = bool(limits.settled_ns)
        self._taken = self._taken_so_far() if run.live else None
        if self._taken:
            own = SeededBundle(caches.publish_scope, "", "", [*self._taken.entries])
            bundles_heard = [*bundles_heard, own]
        self._all_seeded = SeededEntries(seeded.bundles, self._entries_of)
        self._seeded = self._all_seeded
        if bundles_heard != seeded.bundles:
            self._seeded = SeededEntries(bundles_heard, self._entries_of)
        self._seeded_number = seeded.number
        self._skip = KnownEntries(self._all_seeded, self._stored_entries)
        self._is_overlaid = False
        self._changed: list[str] = []  # seeded entries that the job rewrote or removed
        self._degraded = degraded
        self._rejected: dict[str, int] = {}  # reason → entries
        self._examples: list[tuple[str, str]] = []

    def _replaceable(self, bundles: list[SeededBundle]) -> list[SeededBundle]:
        """Return the bundles of which the job's version can take the place in the scope that it publishes to.

        What another scope provides comes first for the readers of a shared scope. A user's own scope may supersede
        other scopes, because that user alone reads it.
        """
        scope = self._namespace.scope
        return bundles if is_user_scope(scope) else [bundle for bundle in bundles if bundle.scope == scope]

    def _entries_of(self, bundle: SeededBundle) -> Entries:
        """Return the entries of a bundle that the job was seeded from: from the node's copy, else from the store."""
        if not bundle.bundle:
            return self._taken.entries if self._taken else {}
        with suppress(OSError, ValueError):
            return node_cache.entries_of(self._context.paths.bundles, bundle.sha256)
        where, deadline = self._namespace._replace(scope=bundle.scope), self._limits.deadline.within(STORE_SECONDS)
        with suppress(StoreError):
            return self._context.store.manifest(where, bundle.bundle, deadline).entries
        return {}

    def run(self) -> _Harvested:
        """Harvest the profile.

        Collecting may take half of the remaining time, and judging half of what is left then, so that there is time to
        publish. Raises `_Late`, `CacheFailed`, `OSError`, and errors of the store, the validator and mksquashfs.
        """
        started = time.monotonic()
        deadline = self._limits.deadline
        if deadline.expired():
            raise _Late
        collecting = self._limits._replace(deadline=deadline.within(deadline.left() / 2))
        stage = _staged(self._context, f"live.{self._name}" if self._is_live else self._name, self._degraded)
        with stage as (path, entries_fd), Reservation(entries_fd) as space:
            collected = self._collect(Stage(entries_fd, space), collecting)
            is_whole = not (collected.unsettled or collected.truncated)
            valid, last = self._judge(entries_fd, collected.entries)
            changed = {*collected.changed}
            judged = place_of(last, changed) if last else collected.reached or self._limits.after
            retired = self._retired(collected)
            self._changed = [*retired, *(entry for entry in collected.changed if entry in valid)]
            late = bool(last) or collected.truncated in (OUT_OF_TIME, STAGE_FULL)
            if self._is_live:
                if not valid or (self._profile.refers_to and (last or not is_whole)):
                    return _Harvested(0, collected.size, late, "", is_whole=is_whole)
                self._take(valid)
            try:
                bundle = self._hand_over(path, valid, space) if valid or retired else None
            except StoreError as error:  # spooled, or refused; `late` still reports what was not collected
                return _Harvested(0, collected.size, late, judged, error)
            count = len(valid) if bundle else 0
            is_published = self._place is None
            self._tell(
                entries=count if is_published else 0,
                bytes=collected.size,
                changed=len(self._changed) - len(retired),
                retired=len(retired),
                retired_examples=retired[:MOST_RETIRED],
                known=collected.skipped,
                seeded=self._seeded_number,
                use="" if late or self._is_live else self._use(collected),
                own=self._own,
                ignored=collected.ignored,
                ignored_examples=collected.ignored_examples,
                truncated=OUT_OF_TIME if last else collected.truncated,
                ms=round((time.monotonic() - started) * 1000, 3),
                running=self._is_live or None,
            )
            if self._is_live and bundle and is_published:
                self._take(valid, self._absorbed(bundle))
            return _Harvested(count, collected.size, late, judged, is_whole=is_whole)

    def _taken_so_far(self) -> Taken | None:
        """Return what was taken while the job ran, None if nothing was."""
        from warmstart.harvest import live

        taken, there = live.taken(self._directory, self._profile.name), []
        if taken.pending:
            digests = {entry: content_digest(files) for entry, files in taken.pending.items()}
            with suppress(StoreFailed, WorkerSilent):
                deadline = self._limits.deadline.within(STORE_SECONDS)
                there = self._context.store.worker.run(deadline, bundles.provided, self._namespace, digests)
        entries = {**taken.entries, **{entry: files for entry, files in taken.pending.items() if entry in there}}
        pending = {entry: files for entry, files in taken.pending.items() if entry not in there}
        return live.Taken(taken.bundle, entries, pending) if entries or pending else None

    def _take(self, entries: Entries, bundle: str = "") -> None:
        """Write down what is taken while the job runs: before it is published, and with the bundle afterwards."""
        from warmstart.harvest import live

        before = self._taken or live.Taken()
        pending = {**before.pending, **entries}
        taken = live.Taken(bundle, {**before.entries, **entries}) if bundle else before._replace(pending=pending)
        live.note(self._directory, self._profile.name, taken)

    def _absorbed(self, bundle: str) -> str:
        """Make one bundle of what was taken now and before: an overlay has few layers. Return the last one's id."""
        if not self._taken or not self._taken.bundle:
            return bundle
        from warmstart.repack import rewrite

        context, both = self._context, [self._taken.bundle, bundle]
        settings = rewrite.RepackSettings(context.paths.absorbing, context.store, context.policy.validate_user)
        most, deadline = bundles.MOST_BYTES, self._limits.deadline
        try:
            if (made := rewrite.absorb(settings, self._namespace, both, most, deadline)).bundle:
                where, told = self._namespace, made._asdict()
                context.audit.emit(
                    events.BUNDLE_COMPACTED, profile=where.profile, namespace=where.name, scope=where.scope, **told
                )
                return made.bundle
        except WarmstartError as error:
            self._degraded.append(error)
        return bundle

    def _collect(self, stage: Stage, limits: HarvestLimits) -> Collected:
        """Copy new entries into the stage."""
        run, profile = self._context.run, self._profile
        entry_of, owner = partial(naming.entry_of, profile), run.uid
        freeze = None if self._is_live else limits.deadline.within(BUSY_SECONDS)
        with opened_dir(self._directory) as base, opened_overlay(base, profile.name, freeze) as overlay:
            self._is_overlaid = overlay is not None
            if overlay:
                collected = collect_overlay(
                    overlay,
                    owner=owner,
                    entry_of=entry_of,
                    skip=self._skip,
                    seeded=self._seeded,
                    stage=stage,
                    limits=limits,
                )
            else:
                collected = collect(
                    base,
                    f"cache/{profile.name}",
                    owner=owner,
                    entry_of=entry_of,
                    skip=self._skip,
                    # An overlay that is not mounted any more shows nothing: not what the job removed.
                    seeded=NOTHING_SEEDED if was_shown(base, profile.name) else self._seeded,
                    stage=stage,
                    limits=limits,
                    lock=profile.lock,
                )
        self._reject(collected.rejected, collected.examples)
        return collected

    def _retired(self, collected: Collected) -> list[str]:
        """Return what the job removed and no later job is to get: at most half of what it was given (ADR 66).

        Who removes more cleans up: a site's epilog, a reaper by age, `rm -rf` at a script's end.
        """
        removed = [entry for entry in collected.changed if entry not in collected.entries]
        if not removed or self._is_live or not self._is_heard or self._limits.after:
            return []  # a harvest that goes on does not see all that was removed
        given = self._seeded.given()
        kept = [entry for entry in removed if entry in given]
        if 2 * len(kept) <= len(given) and collected.saw_changed:
            return removed
        self._reject_all(kept, CLEANED_UP if collected.saw_changed else CUT_SHORT)
        return [entry for entry in removed if entry not in given]

    def _use(self, collected: Collected) -> str:
        """Return what became of the cache: one of `contract.USES`. What was seen counts more than the job's word."""
        seen = self._seen(collected)
        return contract.AROUND if self._own and seen in (contract.UNTOUCHED, contract.UNKNOWN) else seen

    def _seen(self, collected: Collected) -> str:
        """Return what can be seen of it."""
        if collected.entries or collected.rejected or self._skip.was_asked or self._taken:
            return contract.BUILT
        if not self._seeded_number:
            return contract.UNTOUCHED if collected.is_empty else contract.UNKNOWN
        # Without an overlay, files that are read and files that are not look alike.
        if not self._is_overlaid or collected.hides:
            return contract.UNKNOWN
        if not collected.is_empty:
            return contract.HIT
        return contract.UNTOUCHED if self._profile.leaves_trace else contract.UNKNOWN

    def _stored_entries(self) -> list[str]:
        """Return the entries that the store has; none if it does not answer, and the harvest will be spooled.

        With those that other nodes of the run have handed in, but not on the head node: its version counts.
        """
        run, store = self._context.run, self._context.store
        answer_by = self._limits.deadline.within(STORE_SECONDS)
        known: list[str] = []
        with suppress(StoreFailed, WorkerSilent):
            known += store.run_in(
                answer_by, bundles.known_entries, self._namespace, run.user, run.uid,
                quota=self._quota, fresh=run.fresh,
            )  # fmt: skip
            if self._place and not self._leads:
                known += store.worker.run(answer_by, parts.entries, self._place, self._namespace)
        return known

    def _judge(self, entries_fd: int, collected: Entries) -> tuple[Entries, str]:
        """Return the entries that the validator finds valid. Removes the others from the stage.

        Also returns the last one that was judged if there was no time for all of them, else "". Raises `_Late` if there
        was time for none.
        """
        if not collected:
            return {}, ""
        policy, deadline = self._context.policy, self._limits.deadline
        deadline = deadline.within(deadline.left() / 2)
        files = {entry: sorted(paths) for entry, paths in collected.items()}
        verdicts: dict[str, str | None] = {}
        with suppress(_Late), _in_time(deadline):
            validator = Validator(policy.validate_user)
            for entry, reason in validator.judge(
                self._profile.name, entries_fd, files, defined=policy.profiles, deadline=deadline
            ):
                verdicts[entry] = reason  # noqa: PERF403 - those before a time-out stand
        if not verdicts:
            raise _Late
        stage = Stage(entries_fd)
        reasons: dict[str, int] = {}
        examples: list[tuple[str, str]] = []
        valid: Entries = {}
        for entry, paths in files.items():
            reason = verdicts.get(entry, OUT_OF_TIME)
            if reason is None:
                valid[entry] = collected[entry]
                continue
            stage.discard(paths)
            if entry in verdicts:
                reasons[reason] = reasons.get(reason, 0) + 1
                examples.append((entry, reason))
        self._reject(reasons, examples)
        return valid, "" if len(verdicts) == len(files) else next(reversed(verdicts))

    def _hand_over(self, stage: str, entries: Entries, space: Reservation) -> str | None:
        """Pack `stage`/entries, and publish the bundle or hand it in.

        Return its id, or None if the store already has every entry. `space` is what is reserved for the bundle. Raises
        `_Late`, and the store's errors; after most of these the bundle is spooled.
        """
        deadline = self._limits.deadline
        with _in_time(deadline):
            bundle = f"{stage}/{spool.BUNDLE}"
            fd = pack(f"{stage}/entries", bundle, deadline, space.while_written(bundle))
        space.hold(0)
        draft = self._draft(entries)
        try:
            return self._publish(fd, draft) if self._place is None else self._hand_in(self._place, fd, draft)
        except (StoreFull, StoreFailed, WorkerSilent) as error:
            if not self._is_live:
                self._spool(stage, draft, error)
            raise
        finally:
            os.close(fd)

    def _publish(self, fd: int, draft: Draft) -> str | None:
        published = self._context.store.publish(self._namespace, fd, draft, self._limits.deadline, quota=self._quota)
        if published.bundle:
            self._tell(**{**published._asdict(), "superseding": len(published.superseding)})
        if late := sorted({*self._changed} - {*published.superseding}):
            self._reject_all(late, SUPERSEDED)
        return published.bundle

    def _hand_in(self, place: RunParts, fd: int, draft: Draft) -> str:
        nodelist, deadline = self._context.run.nodelist, self._limits.deadline
        part = self._context.store.hand_in(place, self._namespace, fd, draft, nodelist, deadline, quota=self._quota)
        self._tell(handed_in=len(draft.entries))
        return part

    def _draft(self, entries: Entries) -> Draft:
        """Return the content of the manifest, all of it known to root itself (docs/architecture.md, rule 3)."""
        run = self._context.run
        producer = Producer(run.job_id, run.user, run.uid, run.node, run.cluster)
        based_on = {entry: self._seeded.base(entry) for entry in self._changed}
        return Draft(producer, self._caches.facts, entries, based_on=based_on, fresh=run.fresh)

    def _spool(self, stage: str, draft: Draft, error: StoreError) -> None:
        """Move the bundle into this node's spool. A later epilog or maintenance publishes it."""
        context, place = self._context, self._place
        nodelist = context.run.nodelist
        run = f"{context.run.name}.{self._name}"
        spooled = Spooled(*self._namespace[1:], draft, run, "", place.name if place else "", nodelist)
        _add_to_spool(context, stage, spooled)
        self._tell(spooled=len(draft.entries), why=str(error))

    def _reject_all(self, entries: Collection[str], reason: str) -> None:
        if entries:
            self._reject({reason: len(entries)}, [(entry, reason) for entry in entries])

    def _reject(self, reasons: Mapping[str, int], examples: list[tuple[str, str]]) -> None:
        """Log rejected entries: `reasons` maps a reason to a count; `examples` are pairs of name and reason."""
        if reasons and not self._is_live:  # then what is not whole yet is no fault, and the epilog tells of the rest
            for reason, count in reasons.items():
                self._rejected[reason] = self._rejected.get(reason, 0) + count
            self._examples = [*self._examples, *examples][:MOST_EXAMPLES]
            self._tell(rejected=self._rejected, rejected_examples=self._examples)

    def _tell(self, **fields: object) -> None:
        """Add to what the log says of this cache."""
        caches, where = self._caches, self._namespace
        name = f"{where.profile}@{caches.key}" if caches.key else where.profile
        image = {"image": caches.image} if caches.key else {}
        self._context.audit.put("caches", name, **image, namespace=where.name, scope=where.scope, **fields)


def _add_to_spool(context: Context, stage: str, spooled: Spooled) -> None:
    for one in spool.add(context.paths.spool, stage, spooled, context.policy.harvest.spool):
        audit = context.audit.for_job(**one.job_labels)
        audit.emit(events.BUNDLE_DROPPED, run=one.run, spooled=one.name, reason=one.reason)


@contextmanager
def _staged(context: Context, what: str, degraded: list[WarmstartError]) -> Iterator[tuple[str, int]]:
    """Make a stage of this run; yield its path and a descriptor of its `entries/`. Remove it afterwards.

    The name contains the run's name, so a repeated epilog removes what a killed one left. Raises `_Late` if that takes
    too long. `degraded` gets the error if it cannot be removed.
    """
    directory = context.paths.stage
    name = f"{context.run.name}.{what}"
    ensure_dir(directory, 0o700)
    with opened_dir(directory) as parent:
        try:
            remove_tree(parent, name, after(CLEANING_SECONDS))
        except OSError as error:
            if error.errno == errno.ETIME:
                raise _Late from error
            raise
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            with opened_dir(name, parent) as stage:
                os.mkdir("entries", 0o755, dir_fd=stage)
                with opened_dir("entries", stage) as entries_fd:
                    yield os.path.join(directory, name), entries_fd
        finally:
            try:
                remove_tree(parent, name, after(CLEANING_SECONDS))
            except OSError as error:
                problem = f"could not be removed: {error.strerror or error}"
                degraded.append(DiskFailed(what=f"{directory}/{name}", problem=problem))


@contextmanager
def _in_time(deadline: Deadline) -> Iterator[None]:
    """Raise `_Late` instead of a time-out if the budget is used up."""
    try:
        yield
    except (WorkerSilent, ProgramTooSlow) as error:
        if deadline.expired():
            raise _Late from error
        raise
