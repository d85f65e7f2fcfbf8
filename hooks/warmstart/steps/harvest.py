"""Step `harvest`: bring back what the job compiled (docs/architecture.md, An epilog; docs/threats.md, rows 5, 7, 13).

Per profile: root copies the new entries into its stage, a process under the validator's uid judges them there,
root packs what is valid, the store's owner publishes it. What fails goes nowhere, with a reason in the audit. What
there is no time for is named in the record's `deferred`: `release` then leaves the cache to maintenance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.audit import events
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.harvest.collect import STAGE_FULL, Collected, HarvestLimits, Stage, collect, collect_view, room
from warmstart.harvest.delivery import Delivery, Late, in_time
from warmstart.harvest.scan import OUT_OF_TIME
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir, remove_tree
from warmstart.profiles.client import Validator
from warmstart.record import Record
from warmstart.seed.overlay import frozen_view
from warmstart.steps.contract import Context, Outcome
from warmstart.store.manifest import Entries

NAME = "harvest"

BUSY_SECONDS = 5.0  # for a process that still writes to the cache to end
CLEANING_SECONDS = 10.0
ASKING_SECONDS = 5.0  # the controller, how the job ended


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


class _Harvested(NamedTuple):
    """What was published of one profile, whether there may be more of it, and what kept it from the store."""

    entries: int
    size: int  # bytes
    late: bool
    failed: StoreError | None


class _Staged(NamedTuple):
    """What one profile's stage holds: `entries/`, later `bundle.sqsh` beside it."""

    path: str
    entries_fd: int
    collected: Collected


def run(context: Context, options: Options) -> Outcome:
    """Harvest every profile of the record, or those that were deferred before.

    A profile that fails is one error of the outcome's `degraded`; the unfinished are the record's `deferred`.
    """
    deadline = context.deadline.within(options.budget)
    profiles = _profiles_to_harvest(context, options, deadline)
    if context.record.seeded and not profiles:
        return Outcome("skipped")
    entries = 0
    size = 0
    deferred: list[str] = []
    degraded: list[WarmstartError] = []
    for profile in profiles:
        # One profile's harvest is one bundle: one that no job could fetch would keep its entries from all.
        room = min(options.max_size - size, context.policy.seed.max_fetch)
        limits = HarvestLimits(room, options.max_entries - entries, deadline)
        try:
            harvested = _harvest(context, profile, limits)
        except Late:
            deferred.append(profile)
        except WarmstartError as error:
            degraded.append(error)
        except OSError as error:
            degraded.append(HarvestFailed(profile=profile, problem=error.strerror or str(error)))
        else:
            entries += harvested.entries
            size += harvested.size
            deferred += [profile] if harvested.late else []
            degraded += [harvested.failed] if harvested.failed else []
    state = "changed" if entries else "unchanged"
    return Outcome(state, detail={"entries": entries}, record={"deferred": deferred}, degraded=degraded)


def _profiles_to_harvest(context: Context, options: Options, deadline: Deadline) -> list[str]:
    """Return the profiles to harvest, without those for which the job had to be a success and was none."""
    of_run = context.record.deferred or context.record.seeded
    wanted = [profile for profile in of_run if options.wanted is None or profile in options.wanted]
    if options.ended and (reason := options.ended(deadline.within(ASKING_SECONDS))):
        left_out = [profile for profile in wanted if options.careful is None or profile in options.careful]
        context.audit.emit(events.HARVEST_LEFT_OUT, reason=reason, profiles=left_out)
        return [profile for profile in wanted if profile not in left_out]
    return wanted


def _harvest(context: Context, profile: str, limits: HarvestLimits) -> _Harvested:
    """Harvest one profile. Half of the time that is left is for collecting: what was taken must get published, too."""
    started = time.monotonic()
    if limits.deadline.expired():
        raise Late
    collecting = limits._replace(deadline=limits.deadline.within(limits.deadline.left() / 2))
    delivery = Delivery(context.policy, context.record, context.audit, context.store, context.paths.spool, profile)
    with _staged(context, delivery, collecting) as staged:
        collected = staged.collected
        valid = delivery.newer(_judged(context, delivery, staged, limits.deadline), context.deadline)
        late = collected.truncated == OUT_OF_TIME
        try:
            published = delivery.publish(staged.path, valid, limits.deadline) if valid else None
        except StoreError as error:  # it is spooled, or not wanted; what was not collected is late all the same
            return _Harvested(0, collected.size, late, error)
        count = len(valid) if published else 0
        context.audit.emit(
            events.CACHE_HARVESTED,
            profile=profile,
            namespace=delivery.place.name,
            scope=delivery.place.scope,
            bundle=published,
            entries=count,
            bytes=collected.size,
            known=collected.skipped,
            ignored=collected.ignored,
            truncated=collected.truncated,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )
        return _Harvested(count, collected.size, late, None)


@contextmanager
def _staged(context: Context, delivery: Delivery, limits: HarvestLimits) -> Iterator[_Staged]:
    """Copy what is new into a stage of this run; the stage is gone afterwards.

    Its name is the run's, so an epilog that is repeated removes what the one before left when it was killed.
    """
    name = f"{context.record.run_name}.{delivery.tool.name}"
    ensure_dir(context.paths.stage, 0o700)
    with opened_dir(context.paths.stage) as parent:
        remove_tree(parent, name, after(CLEANING_SECONDS))
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            with opened_dir(name, parent) as stage:
                limits = limits._replace(max_size=min(limits.max_size, _room(delivery, stage)))
                os.mkdir("entries", 0o755, dir_fd=stage)
                with opened_dir("entries", stage) as entries:
                    path = os.path.join(context.paths.stage, name)
                    yield _Staged(path, entries, _collect(context.record, delivery, Stage(entries), limits))
        finally:
            remove_tree(parent, name, after(CLEANING_SECONDS))


def _room(delivery: Delivery, stage: int) -> int:
    """Return how many bytes may be collected; `HarvestFailed` where there is room for nothing."""
    half = room(stage) // 2  # the bundle that is packed of them lies beside them
    if not half:
        raise HarvestFailed(profile=delivery.tool.name, problem=STAGE_FULL)
    return half


def _collect(record: Record, delivery: Delivery, stage: Stage, limits: HarvestLimits) -> Collected:
    tool = delivery.tool
    entry_of, owner, skip = tool.entry_of, record.uid, set(delivery.known(limits.deadline))
    busy = limits.deadline.within(BUSY_SECONDS)
    with opened_dir(record.run_directory) as base, frozen_view(base, tool.name, tool.subdir, busy) as view:
        if view:
            collected = collect_view(view, owner=owner, entry_of=entry_of, skip=skip, stage=stage, limits=limits)
        else:
            place, lock = f"cache/{tool.subdir}", tool.lock
            collected = collect(
                base, place, owner=owner, entry_of=entry_of, skip=skip, stage=stage, limits=limits, lock=lock
            )
    delivery.reject(collected.rejected, collected.examples)
    return collected


def _judged(context: Context, delivery: Delivery, staged: _Staged, deadline: Deadline) -> Entries:
    """Return the entries that the validator finds valid; the others leave the stage."""
    collected = staged.collected.entries
    if not collected:
        return {}
    entries = {entry: sorted(files) for entry, files in collected.items()}
    asked = (delivery.tool.name, staged.entries_fd, entries)
    with in_time(deadline):
        validator = Validator(context.policy.validate_user)
        verdicts = validator.judge(*asked, defined=context.policy.profiles, deadline=deadline)
    reasons: dict[str, int] = {}
    examples: list[tuple[str, str]] = []
    valid: Entries = {}
    for entry, reason in verdicts.items():
        if reason is None:
            valid[entry] = collected[entry]
            continue
        reasons[reason] = reasons.get(reason, 0) + 1
        examples.append((entry, reason))
        Stage(staged.entries_fd).discard(entries[entry])
    delivery.reject(reasons, examples)
    return valid
