"""Step `harvest`: bring back what the job compiled (design, section 5, Harvest; threats, rows 5, 7, 13).

Per profile: root copies the new entries into its stage, a process under the validator's uid judges them there,
root packs what is valid, the store's owner publishes it. What fails goes nowhere, with a reason in the audit. What
there is no time for is named in the record's `aside`: `release` then leaves the cache to `tend`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from warmstart.audit import events
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.host.children import ProgramTooSlow
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir
from warmstart.host.trees import remove_tree
from warmstart.host.worker import Worker, WorkerSilent
from warmstart.profiles import judge, registry
from warmstart.record import Seeded
from warmstart.steps.contract import Context, Outcome
from warmstart.store import bundles, layout, precedence, spool, usage
from warmstart.store.collect import Collected, Limits, collect, collect_view
from warmstart.store.layout import Namespace
from warmstart.store.overlay import settled
from warmstart.store.pack import pack
from warmstart.store.scan import OUT_OF_TIME
from warmstart.store.spool import Spooled
from warmstart.store.stage import Stage

NAME = "harvest"

BUSY_SECONDS = 5.0  # for a process that still writes to the cache to end
CLEANING_SECONDS = 10.0
ASKING_SECONDS = 5.0  # the controller, how the job ended
KNOWN_SECONDS = 5.0  # for the store to say what it has; without that, all that was not seeded counts as new
MOST_EXAMPLES = 20


class HarvestFailed(ResourceError):
    """This node's disk did not take the stage, or the job's cache could not be read."""

    code = "harvest-failed"
    template = "profile {profile}: {problem}"
    hint = "is there space left on the disk of the node's state? the job's new entries are lost"


class Options(NamedTuple):
    """Bounds of one job's harvest: seconds, bytes, entries; and whom to ask how the job ended, if that matters."""

    budget: float
    max_size: int
    max_entries: int
    ended: Callable[[Deadline], str] | None = None  # returns why the job was no success, "" if it was
    careful: frozenset[str] | None = None  # the profiles for which that matters; None: all
    wanted: frozenset[str] | None = None  # the profiles to harvest on this node; None: all


class _Late(Exception):  # never leaves this module
    """The budget was used up before the profile was done."""


class _Harvested(NamedTuple):
    """What was published of one profile, and whether there may be more of it."""

    entries: int
    size: int  # bytes
    late: bool


class _Staged(NamedTuple):
    """What one profile's stage holds: `entries/`, later `bundle.sqsh` beside it."""

    path: str
    entries_fd: int
    collected: Collected


def run(context: Context, options: Options) -> Outcome:
    """Harvest every profile of the record, or those that were set aside before.

    A profile that fails is one error of the outcome's `degraded`; those that are not finished are the record's `aside`.
    """
    deadline = context.deadline.within(options.budget)
    profiles = _wanted(context, options, deadline)
    if context.record.seeded and not profiles:
        return Outcome("skipped")
    entries = 0
    size = 0
    aside: list[str] = []
    degraded: list[WarmstartError] = []
    for profile in profiles:
        limits = Limits(options.max_size - size, options.max_entries - entries, deadline)
        try:
            harvested = _harvest(context, profile, context.record.seeded[profile], limits)
        except _Late:
            aside.append(profile)
        except WarmstartError as error:
            degraded.append(error)
        except OSError as error:
            degraded.append(HarvestFailed(profile=profile, problem=error.strerror or str(error)))
        else:
            entries += harvested.entries
            size += harvested.size
            aside += [profile] if harvested.late else []
    state = "changed" if entries else "unchanged"
    return Outcome(state, detail={"entries": entries}, record={"aside": aside}, degraded=degraded)


def _wanted(context: Context, options: Options, deadline: Deadline) -> list[str]:
    """Return the profiles to harvest, without those for which the job had to be a success and was none."""
    of_run = context.record.aside or context.record.seeded
    wanted = [profile for profile in of_run if options.wanted is None or profile in options.wanted]
    if options.ended and (reason := options.ended(deadline.within(ASKING_SECONDS))):
        left_out = [profile for profile in wanted if options.careful is None or profile in options.careful]
        context.audit.emit(events.HARVEST_LEFT_OUT, reason=reason, profiles=left_out)
        return [profile for profile in wanted if profile not in left_out]
    return wanted


def _harvest(context: Context, profile: str, seeded: Seeded, limits: Limits) -> _Harvested:
    """Harvest one profile. Half of the time that is left is for collecting: what was taken must get published, too."""
    started = time.monotonic()
    if limits.deadline.expired():
        raise _Late
    collecting = limits._replace(deadline=limits.deadline.within(limits.deadline.left() / 2))
    with _staged(context, profile, seeded, collecting) as staged:
        collected = staged.collected
        valid = _judged(context, profile, staged, limits.deadline)
        place = Namespace(context.policy.paths.store, context.record.publish_scope, profile, seeded.namespace)
        if valid and _keeps_newest(context, profile):
            valid = _newer(context, place, staged, valid)
        published = _publish(context, place, staged, valid, limits.deadline) if valid else None
        count = len(valid) if published else 0
        context.audit.emit(
            events.CACHE_HARVESTED,
            profile=profile,
            namespace=seeded.namespace,
            scope=context.record.publish_scope,
            bundle=published,
            entries=count,
            bytes=collected.size,
            known=collected.skipped,
            ignored=collected.ignored,
            truncated=collected.truncated,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )
        return _Harvested(count, collected.size, collected.truncated == OUT_OF_TIME)


@contextmanager
def _staged(context: Context, profile: str, seeded: Seeded, limits: Limits) -> Iterator[_Staged]:
    """Copy what is new into a stage of this run; the stage is gone afterwards.

    Its name is the run's, so an epilog that is repeated removes what the one before left when it was killed.
    """
    name = f"{context.record.run_name}.{profile}"
    ensure_dir(context.paths.stage, 0o700)
    with opened_dir(context.paths.stage) as parent:
        remove_tree(parent, name, after(CLEANING_SECONDS))
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            with opened_dir(name, parent) as stage:
                os.mkdir("entries", 0o755, dir_fd=stage)
                with opened_dir("entries", stage) as entries:
                    path = os.path.join(context.paths.stage, name)
                    yield _Staged(path, entries, _collect(context, profile, seeded, Stage(entries), limits))
        finally:
            remove_tree(parent, name, after(CLEANING_SECONDS))


def _collect(context: Context, profile: str, seeded: Seeded, stage: Stage, limits: Limits) -> Collected:
    record = context.record
    known = _known(context, profile, seeded, limits.deadline)
    tool = registry.get(profile, context.policy.profiles)
    newest = _keeps_newest(context, profile)  # a newer one has the name of what it grew from
    skip = set(known) if newest else {*seeded.entries, *known}
    rules: dict[str, Any] = {
        "owner": record.uid,
        "entry_of": tool.entry_of,
        "skip": skip,
        "stage": stage,
        "limits": limits,
    }
    busy = limits.deadline.within(BUSY_SECONDS)
    with opened_dir(record.run_directory) as base, settled(base, profile, tool.subdir, busy) as view:
        if view:
            collected = collect_view(view, **rules)
        else:
            collected = collect(base, f"cache/{tool.subdir}", lock=tool.lock, **rules)
    _reject(context, profile, collected.rejected, collected.examples)
    return collected


def _known(context: Context, profile: str, seeded: Seeded, deadline: Deadline) -> list[str]:
    """Return what the store has already; nothing where it does not answer, for the harvest is spooled then."""
    record = context.record
    place = Namespace(context.policy.paths.store, record.publish_scope, profile, seeded.namespace)
    try:
        known: list[str] = context.store.call(
            bundles.known_entries,
            *(place, record.user, record.uid, _owner(context), _quota(context), _keeps_newest(context, profile)),
            deadline=deadline.within(KNOWN_SECONDS),
        )
    except (layout.StoreFailed, WorkerSilent):
        return []
    return known


def _judged(context: Context, profile: str, staged: _Staged, deadline: Deadline) -> list[str]:
    """Return the entries that the validator finds valid; the others leave the stage."""
    collected = staged.collected
    if not collected.entries:
        return []
    entries = {entry: sorted(files) for entry, files in collected.entries.items()}
    with _in_time(deadline), Worker(context.policy.validate_user, keep=(staged.entries_fd,), confine=True) as validator:
        asked = (profile, staged.entries_fd, entries, context.policy.profiles)
        answer = validator.call(judge.judge, *asked, deadline=deadline)
    reasons: dict[str, int] = {}
    examples: list[tuple[str, str]] = []
    valid = []
    for entry, reason in judge.believed(answer, entries).items():
        if reason is None:
            valid.append(entry)
            continue
        reasons[reason] = reasons.get(reason, 0) + 1
        examples.append((entry, reason))
        Stage(staged.entries_fd).discard(entries[entry])
    _reject(context, profile, reasons, examples[:MOST_EXAMPLES])
    return valid


def _publish(context: Context, place: Namespace, staged: _Staged, valid: list[str], deadline: Deadline) -> str | None:
    """Pack and publish; return the bundle's id, None where others have published all of it meanwhile."""
    record = context.record
    with _in_time(deadline):
        bundle = pack(f"{staged.path}/entries", f"{staged.path}/bundle.sqsh", deadline)
    try:
        producer = {
            "job": record.job_id,
            "user": record.user,
            "uid": record.uid,
            "node": record.node,
            "cluster": record.cluster,
        }
        entries = {entry: staged.collected.entries[entry] for entry in valid}
        draft = {"producer": producer, "facts": record.facts, "entries": entries}
        if _keeps_newest(context, place.profile):
            draft["based_on"] = _replaced(place, record.seeded[place.profile])
        with Worker(context.policy.store_user, keep=(bundle,)) as worker:
            published = worker.call(
                bundles.publish_bundle,
                *(place, bundle, draft, _owner(context), _quota(context)),
                deadline=deadline,
            )
    except (layout.StoreFull, layout.StoreFailed, WorkerSilent) as error:
        _spool(context, place, staged, draft, error)
        raise
    finally:
        os.close(bundle)
    if published["bundle"] is None and "based_on" in draft:
        _not_newer(context, place, valid, precedence.SUPERSEDED)
    if published["bundle"]:
        context.audit.emit(events.BUNDLE_PUBLISHED, profile=place.profile, namespace=place.name, **published)
    name: str | None = published["bundle"]
    return name


@contextmanager
def _in_time(deadline: Deadline) -> Iterator[None]:
    """Tell what the budget ended from what failed."""
    try:
        yield
    except (WorkerSilent, ProgramTooSlow) as error:
        if deadline.expired():
            raise _Late from error
        raise


def _spool(context: Context, place: Namespace, staged: _Staged, draft: dict[str, Any], error: StoreError) -> None:
    """Keep on this node what the store did not take; a later epilog, or upkeep, publishes it."""
    spooled = Spooled(*place[1:], draft, f"{context.record.run_name}.{place.profile}")
    dropped = spool.keep(context.paths.spool, staged.path, spooled, context.policy.harvest.spool)
    context.audit.emit(
        events.BUNDLE_SPOOLED,
        profile=place.profile,
        namespace=place.name,
        entries=len(draft["entries"]),
        error=error.as_audit(),
    )
    for name in dropped:
        context.audit.emit(events.BUNDLE_DROPPED, spooled=name, reason=spool.NO_ROOM)


def _keeps_newest(context: Context, profile: str) -> bool:
    return registry.get(profile, context.policy.profiles).keeps == "newest"


def _replaced(place: Namespace, seeded: Seeded) -> str:
    """Return the bundle of the place whose content this job's grew from; "" where it began with none of it."""
    return seeded.based_on[1] if seeded.based_on and seeded.based_on[0] == place.scope else ""


def _newer(context: Context, place: Namespace, staged: _Staged, valid: list[str]) -> list[str]:
    """Return the entries that should take the place of what the store has; where it is silent, publishing decides."""
    entries = {entry: staged.collected.entries[entry] for entry in valid}
    based_on = context.record.seeded[place.profile].based_on
    try:
        reason: str = context.store.call(
            precedence.needless,
            *(place, based_on, entries, _owner(context)),
            deadline=context.deadline.within(KNOWN_SECONDS),
        )
    except (layout.StoreFailed, WorkerSilent):
        return valid
    if reason and reason != precedence.UNCHANGED:
        _not_newer(context, place, valid, reason)
    return [] if reason else valid


def _not_newer(context: Context, place: Namespace, entries: list[str], reason: str) -> None:
    _reject(context, place.profile, {reason: len(entries)}, [(entry, reason) for entry in entries[:MOST_EXAMPLES]])


def _reject(context: Context, profile: str, reasons: dict[str, int], examples: list[tuple[str, str]]) -> None:
    if reasons:
        context.audit.emit(events.ENTRY_REJECTED, profile=profile, reasons=reasons, examples=examples)


def _owner(context: Context) -> str:
    return f"{context.record.node}-{context.record.run_id}"


def _quota(context: Context) -> int:
    return usage.quota(context.record.publish_scope, context.policy.tend)
