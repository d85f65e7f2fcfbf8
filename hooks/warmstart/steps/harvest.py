"""The harvest of a run: publish what the job compiled (docs/architecture.md, An epilog; threats 5, 7, 13).

For each profile of the run's caches: root copies the new entries into its stage (`collect`), a process
with the validator's uid judges them there (`judge`), root packs the valid ones, and the store's owner publishes the
bundle (`publish`). Invalid entries are dropped, with a reason in the audit.

A repeat does no harm: what is published is known, and left out. So a harvest for which there was no time begins anew,
and has a profile's entries published in parts if it never has time for all.

A job that runs is harvested by the same functions (`harvest.live`). What has changed lately is left out then, and
nothing is retired or said to be rejected.
"""

from __future__ import annotations

import errno
import math
import os
import time

from warmstart.caches.store import quota
from warmstart.caches.store.layout import MOST_BYTES, MOST_ENTRIES, Entries, Namespace, content_digest
from warmstart.errors import StoreError, WarmstartError
from warmstart.harvest import publish
from warmstart.harvest.collect import STAGE_FULL, Collected, HarvestLimits, Stage, collect, collect_overlay
from warmstart.harvest.publish import Given
from warmstart.harvest.scan import OUT_OF_TIME, Tally
from warmstart.harvest.seeded import NOTHING_SEEDED, KnownEntries, SeededEntries
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import FULL, DiskFailed, closing, ensure_dir, opened_dir
from warmstart.host.identity import WorkerSilent
from warmstart.host.remove import remove_tree
from warmstart.host.space import Reservation
from warmstart.host.untrusted import opened_of_job
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, Mapping, NamedTuple, contextmanager, partial, suppress
from warmstart.profiles import contract, naming, registry
from warmstart.profiles.contract import Profile
from warmstart.run.state import Caches, Run, Seeded
from warmstart.seed.overlay_end import opened_overlay, was_shown
from warmstart.steps.contract import CacheFailed, Context
from warmstart.store.layout import StoreFailed, StoreFull, is_user_scope

if TYPE_CHECKING:
    from warmstart.caches.store.bundles import Draft

NAME = "harvest"
BUNDLE = "bundle.sqsh"
CLEANED_UP = "removed with most others, as by a cleaner; it stays published"
CUT_SHORT = "removed, but the harvest was cut short; it stays published"
# Before a variable's name, in the cache: a value of the job's own stood there (task prolog, enroot's hook).
OWN = ".own-"
MOST_RETIRED = 5  # names in an event
MOST_OWN = 256  # names of the cache's directory that are looked at

BUSY_SECONDS = 5.0  # wait for a process that still writes to the cache
CLEANING_SECONDS = 10.0
CONTROLLER_SECONDS = 5.0  # for slurmctld to say how the job ended


class _Late(Exception):
    """The time is over before there is anything to publish."""


class Limits(NamedTuple):
    """Bounds of one harvest."""

    size: int  # bytes
    deadline: Deadline
    part_s: float  # that collecting a profile's entries may take, and judging: so that what is there is published
    settled_ns: int = 0  # of a job that runs: by ctime, what changed later is left out; 0 after its end
    entries: int = MOST_ENTRIES


class Options(NamedTuple):
    """Bounds of an epilog's harvest, and which profiles it takes."""

    budget: float  # seconds
    failure: Callable[[Deadline], str] | None = None  # returns why the job failed, "" if it succeeded
    after_success: frozenset[str] | None = None  # the profiles to harvest only after success; None: all
    of_head: frozenset[str] = frozenset()  # the profiles to harvest on the first node of its caches alone


class Harvested(NamedTuple):
    """What became of a run's caches, or of one profile."""

    run: Run  # with the profiles of which something is left to do
    is_done: bool  # whether nothing is left, and the job's other nodes know
    degraded: list[WarmstartError]
    entries: int = 0  # that were published
    lost: bool = False  # whether something is not published, and will not be


class Done(NamedTuple):
    """What became of one profile, or of several."""

    late: bool  # whether something is left
    entries: int = 0  # that were published
    size: int = 0  # bytes that were collected
    degraded: list[WarmstartError] = []  # noqa: RUF012 - never mutated
    lost: bool = False  # whether something is not published, and will not be


def run(context: Context, options: Options) -> Harvested:
    """Harvest the run's profiles, as its epilog does.

    Left are those for which there is no time, no room in the stage, or no store. What fails for good is lost.
    """
    deadline = context.deadline.within(options.budget)
    context = context._replace(run=_chosen(context, options, deadline))
    return harvest(context, Limits(context.policy.harvest.max_size, deadline, math.inf))


def _chosen(context: Context, options: Options, deadline: Deadline) -> Run:
    """Return the run with the profiles to harvest as those that are left."""
    names = {
        caches.key: [name for name in caches.seeded if context.run.leads(caches) or name not in options.of_head]
        for caches in context.run.caches
    }
    if options.failure and (reason := options.failure(deadline.within(CONTROLLER_SECONDS))):
        every = dict.fromkeys(name for of_caches in names.values() for name in of_caches)
        left_out = [name for name in every if options.after_success is None or name in options.after_success]
        for name in left_out:
            context.audit.put("caches", name, left_out=reason)
        names = {key: [name for name in of_caches if name not in left_out] for key, of_caches in names.items()}
    return with_left(context.run, names)


def with_left(run: Run, names: Mapping[str, list[str]]) -> Run:
    """Return a run with what is left of its caches, by their keys."""
    return run.with_caches({caches.key: caches._replace(left=names[caches.key]) for caches in run.caches})


def harvest(context: Context, limits: Limits) -> Harvested:
    """Harvest what is left of a run. Of a job on several nodes, say in the end that this one has ended."""
    run, left = context.run, dict[str, list[str]]()
    total = Done(late=False)
    for caches in run.caches:
        own = _own_variables(run.directory_of(caches)) if caches.left else frozenset()
        left[caches.key] = []
        for name in caches.left:
            bounds = limits._replace(size=limits.size - total.size, entries=limits.entries - total.entries)
            is_silent = any(isinstance(failure, WorkerSilent) for failure in total.degraded)  # and would be again
            done = Done(late=True) if is_silent else _attempt(context, caches, name, bounds, own)
            left[caches.key] += [name] if done.late else []
            total = Done(
                late=total.late or done.late,
                entries=total.entries + done.entries,
                size=total.size + done.size,
                degraded=[*total.degraded, *done.degraded],
                lost=total.lost or done.lost,
            )
    is_done = not total.late
    if is_done:
        try:
            publish.ended(context.store, context.audit, run, context.deadline)
        except StoreError as error:
            total, is_done = total._replace(degraded=[*total.degraded, error]), False
    return Harvested(with_left(run, left), is_done, total.degraded, total.entries, total.lost)


def _attempt(context: Context, caches: Caches, name: str, limits: Limits, own: frozenset[str]) -> Done:
    """Harvest one profile as `one` does, and say of what it raises whether another attempt may do better."""
    try:
        return one(context, caches, name, limits, own)
    except _Late:
        return Done(late=True)
    except (StoreFull, StoreFailed, WorkerSilent) as error:
        return Done(late=True, degraded=[error])
    except WarmstartError as error:
        return Done(late=False, degraded=[error], lost=True)
    except OSError as error:
        if error.errno in FULL:
            return Done(late=True)
        where = f"{error.filename}: " if error.filename else ""
        problem = CacheFailed(profile=name, problem=f"{where}{error.strerror or error}")
        return Done(late=False, degraded=[problem], lost=True)


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


class _Cache(NamedTuple):
    """A profile's cache, and what its job was given."""

    profile: Profile
    where: Namespace
    quota: int
    given: Seeded
    seeded: SeededEntries  # of which the job's version, or that it is gone, counts
    known: KnownEntries
    own: list[str]  # the profile's variables that the job has set itself


def _cache_of(context: Context, caches: Caches, name: str, own: frozenset[str], deadline: Deadline) -> _Cache:
    run, store, given = context.run, context.store, caches.seeded[name]
    where = Namespace(store.path, caches.publish_scope, name, given.namespace)
    most = quota.quota(where.scope, context.policy.maintenance)
    read = partial(publish.entries_of, store, context.paths, where, deadline)
    every = SeededEntries(given.bundles, read, given.hidden)
    seeded = every if run.leads(caches) else NOTHING_SEEDED  # what the nodes find stale is the first one's word alone
    known = KnownEntries(every, partial(publish.known, store, run, caches, where, most, deadline))
    profile = registry.get(name, context.policy.profiles)
    led = [variable for variable, value in profile.variables.items() if "{home}" not in value]
    return _Cache(profile, where, most, given, seeded, known, [variable for variable in led if variable in own])


def one(context: Context, caches: Caches, name: str, limits: Limits, own: frozenset[str] = frozenset()) -> Done:
    """Harvest one profile; `own` are variables that the job has set itself.

    Raises `_Late`, `CacheFailed`, `OSError`, and errors of the store and mksquashfs.
    """
    started, deadline = time.monotonic(), limits.deadline
    if deadline.expired():
        raise _Late
    cache, rejected, degraded = _cache_of(context, caches, name, own, deadline), Tally(), list[WarmstartError]()
    tell = partial(_tell, context, caches, cache.where)
    place = context.run.directory_of(caches)
    try:
        with _staged(context, caches, name, degraded) as (path, entries_fd), Reservation(entries_fd) as space:
            collected, is_overlaid = _collect(cache, place, context.run.uid, Stage(entries_fd, space), limits)
            rejected.take(collected.rejected, collected.examples)
            valid, all_judged = _judge(context, name, entries_fd, collected.entries, limits, rejected)
            retired = [] if limits.settled_ns else _retired(cache, collected, rejected)
            changed = [entry for entry in collected.changed if entry in valid]
            given = Given(told={"entries": 0})
            if valid or retired:
                draft = _draft(context.run, caches, cache, valid, changed, retired)
                give = partial(publish.publish, context.store, context.run, caches, cache.where)
                deadline = deadline.within(2 * limits.part_s)
                with _packed(path, valid, deadline, space) as squashfs:
                    given = give(squashfs, draft, cache.quota, deadline)
    finally:
        if rejected.counts and not limits.settled_ns:  # of a job that runs, what is not whole yet is no fault
            tell(rejected=rejected.counts, rejected_examples=rejected.examples)
    late = not all_judged or collected.truncated in (OUT_OF_TIME, STAGE_FULL)
    tell(
        **given.told,
        bytes=collected.size,
        changed=len(changed),
        retired=len(retired),
        retired_examples=retired[:MOST_RETIRED],
        known=collected.skipped,
        seeded=cache.given.number,
        use="" if late or limits.settled_ns else _use(cache, collected, is_overlaid=is_overlaid),
        own=cache.own,
        ignored=collected.ignored,
        ignored_examples=collected.ignored_examples,
        truncated=collected.truncated if all_judged else OUT_OF_TIME,
        ms=round((time.monotonic() - started) * 1000, 3),
        running=bool(limits.settled_ns) or None,
    )
    return Done(late, len(valid) if given.sha256 else 0, collected.size, degraded)


@contextmanager
def _packed(stage: str, entries: Entries, deadline: Deadline, space: Reservation) -> Iterator[int | None]:
    """Pack the stage's entries; yields a descriptor of the squashfs. `space` is what is reserved for it."""
    if not entries:
        yield None
        return
    from warmstart.harvest.pack import pack

    bundle = f"{stage}/{BUNDLE}"
    with _in_time(deadline):
        squashfs = pack(f"{stage}/entries", bundle, deadline, space.while_written(bundle))
    space.hold(0)
    with closing(squashfs):
        yield squashfs


def _collect(cache: _Cache, place: str, owner: int, stage: Stage, limits: Limits) -> tuple[Collected, bool]:
    """Copy new entries into the stage; return also whether they are an overlay's."""
    name = cache.profile.name
    # A profile's harvest is one bundle. If it were larger than a job may fetch, nobody would get its entries.
    size, deadline = min(limits.size, MOST_BYTES), limits.deadline.within(limits.part_s)
    bounds = HarvestLimits(size, limits.entries, deadline, limits.settled_ns)
    entry_of, freeze = partial(naming.entry_of, cache.profile), deadline.within(BUSY_SECONDS)
    with (
        opened_dir(place) as base,
        opened_overlay(base, name, None if limits.settled_ns else freeze) as overlay,
    ):
        if overlay:
            found = collect_overlay(
                overlay,
                owner=owner,
                entry_of=entry_of,
                skip=cache.known,
                seeded=cache.seeded,
                stage=stage,
                limits=bounds,
            )
            return found, True
        found = collect(
            base,
            f"cache/{name}",
            owner=owner,
            entry_of=entry_of,
            skip=cache.known,
            # An overlay that is not mounted any more shows nothing: not what the job removed.
            seeded=NOTHING_SEEDED if was_shown(base, name) else cache.seeded,
            stage=stage,
            limits=bounds,
            lock=cache.profile.lock,
        )
        return found, False


def _judge(  # noqa: PLR0917 - what is judged, by whom, and until when
    context: Context, profile: str, entries_fd: int, collected: Entries, limits: Limits, rejected: Tally
) -> tuple[Entries, bool]:
    """Return the entries that the validator finds valid, and whether all were judged. Removes the others.

    Raises `_Late` if there was time for none, `CacheFailed` if the validator dies.
    """
    if not collected:
        return {}, True
    from warmstart.profiles.client import Validator

    policy, deadline, stage = context.policy, limits.deadline.within(limits.part_s), Stage(entries_fd)
    files = {entry: sorted(paths) for entry, paths in collected.items()}
    verdicts: dict[str, str | None] = {}
    try:
        with suppress(_Late), _in_time(deadline):
            for entry, reason in Validator(policy.validate_user).judge(
                profile, entries_fd, files, defined=policy.profiles, deadline=deadline
            ):
                verdicts[entry] = reason  # noqa: PERF403 - those before a time-out stand
    except WorkerSilent as error:  # no other attempt would end better
        raise CacheFailed(profile=profile, problem=str(error)) from error
    if not verdicts or limits.deadline.expired():
        raise _Late
    for entry, paths in files.items():
        reason = verdicts.get(entry, OUT_OF_TIME)
        if reason is not None:
            stage.discard(paths)
        if reason is not None and entry in verdicts:
            rejected.add(entry, reason)
    valid = {entry: collected[entry] for entry, reason in verdicts.items() if reason is None}
    return valid, len(verdicts) == len(files)


def _retired(cache: _Cache, collected: Collected, rejected: Tally) -> list[str]:
    """Return what the job removed and no later job is to get: at most half of what it was given (ADR 66).

    Who removes more cleans up: a site's epilog, a reaper by age, `rm -rf` at a script's end.
    """
    removed = [entry for entry in collected.changed if entry not in collected.entries]
    given = cache.seeded.given() if removed else set()
    kept = [entry for entry in removed if entry in given]
    if 2 * len(kept) <= len(given) and collected.saw_changed:
        return removed
    reason = CLEANED_UP if collected.saw_changed else CUT_SHORT
    rejected.take({reason: len(kept)}, [(entry, reason) for entry in kept])
    return [entry for entry in removed if entry not in given]


def _use(cache: _Cache, collected: Collected, *, is_overlaid: bool) -> str:
    """Return what became of the cache: one of `contract.USES`. What was seen counts more than the job's word."""
    seen = _seen(cache, collected, is_overlaid=is_overlaid)
    return contract.AROUND if cache.own and seen in (contract.UNTOUCHED, contract.UNKNOWN) else seen


def _seen(cache: _Cache, collected: Collected, *, is_overlaid: bool) -> str:
    """Return what can be seen of it."""
    if collected.entries or collected.rejected or cache.known.was_asked:
        return contract.BUILT
    if not cache.given.number:
        return contract.UNTOUCHED if collected.is_empty else contract.UNKNOWN
    # Without an overlay, files that are read and files that are not look alike.
    if not is_overlaid or collected.hides:
        return contract.UNKNOWN
    if not collected.is_empty:
        return contract.HIT
    return contract.UNTOUCHED if cache.profile.leaves_trace else contract.UNKNOWN


def _draft(  # noqa: PLR0917 - what is known of a bundle
    run: Run, caches: Caches, cache: _Cache, entries: Entries, changed: list[str], retired: list[str]
) -> Draft:
    """Return what root itself knows of a bundle (docs/architecture.md, rule 3), and what is to leave the listing.

    What another scope provides leaves none: it is hidden where the scope is the user's own, whom alone that concerns.
    """
    from warmstart.caches.store.bundles import Draft
    from warmstart.caches.store.merge import Removal

    source = {entry: cache.seeded.source(entry) for entry in retired}
    scope = cache.where.scope
    given = {
        entry: content_digest(cache.seeded.files(entry)) for entry, bundle in source.items() if bundle.scope == scope
    }
    removal = Removal(given, [entry for entry in retired if entry not in given] if is_user_scope(scope) else [])
    name = caches.facts.get("cache", "")
    whose = (run.user, run.uid, run.job_id)
    return Draft(*whose, entries, name, changed, run.fresh, removal, caches.facts)


def _tell(context: Context, caches: Caches, where: Namespace, **fields: object) -> None:
    """Add to what the log says of a cache."""
    name = f"{where.profile}@{caches.key}" if caches.key else where.profile
    image = {"image": caches.image} if caches.key else {}
    context.audit.put("caches", name, **image, namespace=where.name, scope=where.scope, **fields)


@contextmanager
def _staged(
    context: Context, caches: Caches, profile: str, degraded: list[WarmstartError]
) -> Iterator[tuple[str, int]]:
    """Make a stage of this run; yield its path and a descriptor of its `entries/`. Remove it afterwards.

    The name contains the run's name, so a repeat removes what a killed process left. Raises `_Late` if that takes too
    long. `degraded` gets the error if it cannot be removed.
    """
    directory = context.paths.stage
    name = ".".join(filter(None, (context.run.name, caches.key, profile)))
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
    """Raise `_Late` instead of a time-out if the time is over."""
    from warmstart.host.process import ProgramTooSlow

    try:
        yield
    except (WorkerSilent, ProgramTooSlow) as error:
        if deadline.expired():
            raise _Late from error
        raise
