"""The harvest of a run: publish what the job compiled (docs/architecture.md, An epilog; threats 5, 7, 13).

For each profile of the run's caches: root copies the new entries into its stage (`collect`), a process with the
validator's uid judges them there (`_judge`), root packs the valid ones, and the store's owner publishes the bundle
(`publish`). Invalid entries are dropped, with a reason in the audit.

A repeat does no harm: what is published is known, and left out. So a harvest for which there was no time begins anew.
Collecting may take most of the time that is left, and judging half of the rest, so that what is there is published.

A job that runs is harvested by the same functions (`harvest.live`): of what has changed lately nothing is taken, and
nothing is retired or said to be rejected.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.caches.store import quota
from warmstart.caches.store.layout import MOST_BYTES, MOST_ENTRIES, Entries, Namespace, content_digest
from warmstart.errors import StoreError, WarmstartError
from warmstart.harvest import publish, stage
from warmstart.harvest.collect import Collected, Limits, Place, collect
from warmstart.harvest.known import Known
from warmstart.harvest.publish import Target
from warmstart.harvest.scan import OUT_OF_TIME
from warmstart.harvest.stage import STAGE_FULL, LimitReached, Stage
from warmstart.host.deadline import Deadline
from warmstart.host.files import FULL, opened_dir
from warmstart.host.identity import WorkerSilent
from warmstart.host.untrusted import opened_of_job
from warmstart.lean import TYPE_CHECKING, Callable, Mapping, NamedTuple, partial, suppress
from warmstart.profiles import contract, naming, registry
from warmstart.profiles.contract import Profile
from warmstart.run.state import Caches, Run
from warmstart.seed.overlay_end import opened_overlay, was_shown
from warmstart.steps.contract import CacheFailed, Context
from warmstart.store.layout import StoreFailed, StoreFull, is_user_scope

if TYPE_CHECKING:
    from warmstart.caches.store.bundles import Draft

NAME = "harvest"
CLEANED_UP = "removed with most others, as by a cleaner; it stays published"
CUT_SHORT = "removed, but the harvest was cut short; it stays published"
# Before a variable's name, in the cache: a value of the job's own stood there (task prolog, enroot's hook).
OWN = ".own-"
MOST_RETIRED = 5  # names in an event
MOST_OWN = 256  # names of the cache's directory that are looked at

COLLECTING = 0.75  # of the time that is left; up to a half of it goes by with waiting for the first node
BUSY_SECONDS = 5.0  # wait for a process that still writes to the cache
CONTROLLER_SECONDS = 5.0  # for slurmctld to say how the job ended


class Options(NamedTuple):
    """Bounds of an epilog's harvest, and which profiles it takes."""

    budget: float  # seconds
    failure: Callable[[Deadline], str] | None = None  # returns why the job failed, "" if it succeeded
    after_success: frozenset[str] = frozenset()  # the profiles to harvest only after success
    of_head: frozenset[str] = frozenset()  # the profiles to harvest on the first node of its caches alone


class Harvested(NamedTuple):
    """What became of a run's caches."""

    run: Run  # with the profiles of which something is left to do
    is_done: bool  # whether nothing is left, and the job's other nodes know
    degraded: list[WarmstartError]
    lost: bool = False  # whether something is not published, and will not be


def run(context: Context, options: Options) -> Harvested:
    """Harvest the run's profiles, as its epilog does.

    Left are those for which there is no time, no room in the stage, or no store. What fails for good is lost.
    """
    context = context._replace(deadline=context.deadline.within(options.budget))
    return harvest(context._replace(run=_chosen(context, options)))


def _chosen(context: Context, options: Options) -> Run:
    """Return the run with the profiles to harvest as those that are left."""
    run, reason = context.run, ""
    if options.failure:
        reason = options.failure(context.deadline.within(CONTROLLER_SECONDS))
    left_out = options.after_success if reason else frozenset()
    for name in sorted(left_out):
        context.audit.put("caches", name, left_out=reason)

    def left(caches: Caches) -> list[str]:
        here = (name for name in caches.seeded if run.leads(caches) or name not in options.of_head)
        return [name for name in here if name not in left_out]

    return run.with_caches({caches.key: caches._replace(left=left(caches)) for caches in run.caches})


def harvest(context: Context, settled_ns: int = 0) -> Harvested:
    """Harvest what is left of a run. Of a job on several nodes, say in the end that this one has ended.

    Of a job that runs, what has changed after `settled_ns` is left out, as in `Limits`.
    """
    work = _Work(context, Limits(context.policy.harvest.max_size, MOST_ENTRIES, context.deadline, settled_ns))
    run = context.run.with_caches({caches.key: work.harvest(caches) for caches in context.run.caches})
    is_done = not run.left
    if is_done:
        try:
            publish.ended(context.store, context.audit, run, context.deadline)
        except StoreError as error:
            work.degraded.append(error)
            is_done = False
    return Harvested(run, is_done, work.degraded, work.lost)


class _Cache(NamedTuple):
    """One profile's cache, on its way from the job to the store."""

    caches: Caches
    profile: Profile
    target: Target
    known: Known
    own: list[str]  # the profile's variables that the job has set itself

    @property
    def number(self) -> int:
        """The number of entries that the job was given."""
        return self.caches.seeded[self.profile.name].number


class _Work:
    """The harvest of one run: what is left of its limits, and what went wrong so far."""

    def __init__(self, context: Context, limits: Limits) -> None:
        self.degraded: list[WarmstartError] = []
        self.lost = False
        self._context = context
        self._limits = limits
        self._is_store_silent = False  # it would be again

    def harvest(self, caches: Caches) -> Caches:
        """Harvest what is left of caches; return them with what still is."""
        own = _own_variables(self._context.run.directory_of(caches)) if caches.left else frozenset()
        return caches._replace(left=[name for name in caches.left if not self._attempt(caches, name, own)])

    def _attempt(self, caches: Caches, name: str, own: frozenset[str]) -> bool:
        """Harvest one profile; return whether nothing is left for another attempt."""
        if self._is_store_silent or self._limits.deadline.expired():
            return False
        try:
            return self._one(self._cache_of(caches, name, own))
        except (StoreFull, StoreFailed, WorkerSilent) as error:
            self._is_store_silent = isinstance(error, WorkerSilent)
            self.degraded.append(error)
            return False
        except LimitReached:
            return False
        except WarmstartError as error:
            self.degraded.append(error)
        except OSError as error:
            if error.errno in (*FULL, errno.ETIME):
                return False
            where = f"{error.filename}: " if error.filename else ""
            self.degraded.append(CacheFailed(profile=name, problem=f"{where}{error.strerror or error}"))
        self.lost = True
        return True

    def _cache_of(self, caches: Caches, name: str, own: frozenset[str]) -> _Cache:
        context, given = self._context, caches.seeded[name]
        where = Namespace(context.store.path, caches.publish_scope, name, given.namespace)
        most, deadline = quota.quota(where.scope, context.policy.maintenance), self._limits.deadline
        target = Target(context.store, context.run, caches, where, most)
        known = Known(
            given,
            partial(publish.entries_of, target, context.paths, deadline),
            partial(publish.known, target, deadline),
        )
        profile = registry.get(name, context.policy.profiles)
        led = [variable for variable, value in profile.variables.items() if "{home}" not in value]
        return _Cache(caches, profile, target, known, [variable for variable in led if variable in own])

    def _one(self, cache: _Cache) -> bool:
        """Harvest one profile; return whether nothing is left. Raises errors of all that it calls."""
        context, limits, started = self._context, self._limits, time.monotonic()
        name = ".".join(filter(None, (context.run.name, cache.caches.key, cache.profile.name)))
        with stage.made(context.paths.stage, name, self.degraded) as staged:
            collected = _collect(context.run, cache, staged, limits)
            use = _use(cache, collected)
            valid, all_judged = _judge(context, cache.profile, staged, collected, limits.deadline)
            retired = [] if limits.settled_ns else _retired(cache.known, collected)
            changed = [entry for entry in collected.changed if entry in valid]
            published: dict[str, object] = {"entries": 0}
            if valid or retired:
                draft = _draft(context.run, cache, valid, changed, retired)
                if valid:
                    with staged.packed(limits.deadline) as squashfs:
                        published = publish.publish(cache.target, squashfs, draft, limits.deadline)
                else:
                    published = publish.publish(cache.target, None, draft, limits.deadline)
        self._limits = limits._replace(size=limits.size - collected.size, entries=limits.entries - len(valid))
        is_done = all_judged and collected.truncated not in (OUT_OF_TIME, STAGE_FULL)
        found = collected.found
        told = {
            **published,
            "changed": len(changed),
            "ignored": found.ignored.counts,
            "ignored_examples": found.ignored.examples,
            "truncated": collected.truncated if all_judged else OUT_OF_TIME,
            "ms": round((time.monotonic() - started) * 1000, 3),
        }
        if limits.settled_ns:  # what is not whole yet is no fault, and how the cache is used is not known
            told["running"] = True
        else:
            told |= {
                "retired": len(retired),
                "retired_examples": retired[:MOST_RETIRED],
                "rejected": found.rejected.counts,
                "rejected_examples": found.rejected.examples,
                "use": use if is_done else "",
                "own": cache.own,
            }
        _tell(context, cache, told)
        return is_done


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


def _collect(run: Run, cache: _Cache, staged: Stage, limits: Limits) -> Collected:
    """Copy new entries into the stage."""
    name, is_running = cache.profile.name, bool(limits.settled_ns)
    deadline = limits.deadline.within(limits.deadline.left() * COLLECTING)
    # A profile's harvest is one bundle. If it were larger than a job may fetch, nobody would get its entries.
    bounds = limits._replace(size=min(limits.size, MOST_BYTES), deadline=deadline)
    entry_of = partial(naming.entry_of, cache.profile)
    compare = run.leads(cache.caches) and not is_running  # what the nodes find stale is the first one's word alone
    with (
        opened_dir(run.directory_of(cache.caches)) as base,
        opened_overlay(base, name, None if is_running else deadline.within(BUSY_SECONDS)) as overlay,
    ):
        if overlay:
            place = Place(overlay.merged, "", run.uid, overlay.upper, compare=compare)
        else:  # an overlay that is not mounted any more shows nothing: not what the job removed
            compare = compare and not was_shown(base, name)
            place = Place(base, f"cache/{name}", run.uid, lock=cache.profile.lock, compare=compare)
        return collect(place, entry_of, cache.known, staged, bounds)


def _judge(
    context: Context, profile: Profile, staged: Stage, collected: Collected, deadline: Deadline
) -> tuple[Entries, bool]:
    """Return the entries that the validator finds valid, and whether all were judged. Removes the others.

    Raises `CacheFailed` if the validator dies.
    """
    if not collected.entries:
        return {}, True
    from warmstart.profiles.client import judged

    policy, deadline = context.policy, deadline.within(deadline.left() / 2)
    files = {entry: sorted(paths) for entry, paths in collected.entries.items()}
    verdicts: dict[str, str | None] = {}
    try:
        answers = judged(
            policy.validate_user, profile.name, staged.fd, files, defined=policy.profiles, deadline=deadline
        )
        for entry, reason in answers:
            verdicts[entry] = reason  # noqa: PERF403 - those before a time-out stand
    except WorkerSilent as error:
        if not deadline.expired():  # no other attempt would end better
            raise CacheFailed(profile=profile.name, problem=str(error)) from error
    for entry, paths in files.items():
        reason = verdicts.get(entry, OUT_OF_TIME)
        if reason is not None:
            staged.discard(paths)
        if reason is not None and entry in verdicts:
            collected.found.reject(entry, reason, entry)
    valid = {entry: collected.entries[entry] for entry, reason in verdicts.items() if reason is None}
    return valid, len(verdicts) == len(files)


def _retired(known: Known, collected: Collected) -> list[str]:
    """Return what the job removed and no later job is to get: at most half of what it was given (ADR 66).

    Who removes more cleans up: a site's epilog, a reaper by age, `rm -rf` at a script's end.
    """
    removed = collected.removed
    if not removed or (2 * len(removed) <= len(known.sources) and not collected.truncated):
        return removed
    for entry in removed:
        collected.found.reject(entry, CUT_SHORT if collected.truncated else CLEANED_UP, entry)
    return []


def _use(cache: _Cache, collected: Collected) -> str:
    """Return what became of the cache: one of `contract.USES`. What was seen counts more than the job's word."""
    found = collected.found
    if collected.entries or found.rejected.counts or cache.known.was_asked:
        return contract.BUILT
    # Without an overlay, files that are read and files that are not look alike.
    can_tell = found.upper and not found.has_whiteouts and not collected.changed
    if cache.number and can_tell and not found.is_empty:
        return contract.HIT
    if cache.own:
        return contract.AROUND
    if found.is_empty and (not cache.number or (can_tell and cache.profile.leaves_trace)):
        return contract.UNTOUCHED
    return contract.UNKNOWN


def _draft(run: Run, cache: _Cache, entries: Entries, changed: list[str], retired: list[str]) -> Draft:
    """Return what root itself knows of a bundle (docs/architecture.md, rule 3), and what is to leave the listing.

    What another scope provides leaves none: it is hidden where the scope is the user's own, whom alone that concerns.
    """
    from warmstart.caches.store.bundles import Draft
    from warmstart.caches.store.merge import Removal

    known, scope = cache.known, cache.target.where.scope
    ours = [entry for entry in retired if known.sources[entry].scope == scope]
    others = [entry for entry in retired if entry not in ours] if is_user_scope(scope) else []
    removal = Removal({entry: content_digest(known.files(entry)) for entry in ours}, others)
    facts = cache.caches.facts
    return Draft(run.user, run.uid, run.job_id, entries, changed, run.fresh, removal, facts)


def _tell(context: Context, cache: _Cache, fields: Mapping[str, object]) -> None:
    """Add to what the log says of a cache."""
    caches, where = cache.caches, cache.target.where
    name = f"{where.profile}@{caches.key}" if caches.key else where.profile
    image = {"image": caches.image} if caches.key else {}
    context.audit.put("caches", name, **image, namespace=where.name, scope=where.scope, **fields)
