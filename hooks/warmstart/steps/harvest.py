"""Step `harvest`: bring back what the job compiled (design, section 5, Harvest; threats, rows 5, 7, 13).

Per profile: root copies the new entries into its stage, a process under the validator's uid judges them there,
root packs what is valid, the store's owner publishes it. What fails goes nowhere, with a reason in the audit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from warmstart.audit import events
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir
from warmstart.host.trees import remove_tree
from warmstart.host.worker import Worker, WorkerSilent
from warmstart.profiles import judge, registry
from warmstart.record import Seeded
from warmstart.steps.contract import Context, Outcome
from warmstart.store import bundles, layout, spool
from warmstart.store.collect import Collected, Limits, collect
from warmstart.store.layout import Namespace
from warmstart.store.pack import pack
from warmstart.store.spool import Spooled
from warmstart.store.stage import Stage

NAME = "harvest"

CLEANING_SECONDS = 10.0
KNOWN_SECONDS = 5.0  # for the store to say what it has; without that, all that was not seeded counts as new
MOST_EXAMPLES = 20


class HarvestFailed(ResourceError):
    """This node's disk did not take the stage, or the job's cache could not be read."""

    code = "harvest-failed"
    template = "profile {profile}: {problem}"
    hint = "is there space left on the disk of the node's state? the job's new entries are lost"


class Options(NamedTuple):
    """Bounds of one job's harvest: seconds, bytes, entries."""

    budget: float
    max_size: int
    max_entries: int


class _Staged(NamedTuple):
    """What one profile's stage holds: `entries/`, later `bundle.sqsh` beside it."""

    path: str
    entries_fd: int
    collected: Collected


def run(context: Context, options: Options) -> Outcome:
    """Harvest every profile of the record; a profile that fails is one error of the outcome's `degraded`."""
    deadline = context.deadline.within(options.budget)
    entries = 0
    size = 0
    degraded: list[WarmstartError] = []
    for profile, seeded in context.record.seeded.items():
        limits = Limits(options.max_size - size, options.max_entries - entries, deadline)
        try:
            harvested = _harvest(context, profile, seeded, limits)
        except WarmstartError as error:
            degraded.append(error)
        except OSError as error:
            degraded.append(HarvestFailed(profile=profile, problem=error.strerror or str(error)))
        else:
            entries += harvested[0]
            size += harvested[1]
    return Outcome("changed" if entries else "unchanged", detail={"entries": entries}, degraded=degraded)


def _harvest(context: Context, profile: str, seeded: Seeded, limits: Limits) -> tuple[int, int]:
    """Return how many entries were published for one profile, and their bytes."""
    started = time.monotonic()
    with _staged(context, profile, seeded, limits) as staged:
        collected = staged.collected
        valid = _judged(context, profile, staged, limits.deadline)
        place = Namespace(context.policy.paths.store, context.record.publish_scope, profile, seeded.namespace)
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
        return count, collected.size


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
    tool = registry.get(profile)
    with opened_dir(record.run_directory) as base:
        collected = collect(
            base,
            f"cache/{tool.subdir}",
            owner=record.uid,
            entry_of=tool.entry_of,
            skip={*seeded.entries, *known},
            stage=stage,
            limits=limits,
        )
    _reject(context, profile, collected.rejected, collected.examples)
    return collected


def _known(context: Context, profile: str, seeded: Seeded, deadline: Deadline) -> list[str]:
    """Return what the store has already; nothing where it does not answer, for the harvest is spooled then."""
    record = context.record
    place = Namespace(context.policy.paths.store, record.publish_scope, profile, seeded.namespace)
    try:
        known: list[str] = context.store.call(
            bundles.known_entries,
            *(place, record.user, record.uid, _owner(context)),
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
    with Worker(context.policy.validate_user, keep=(staged.entries_fd,), confine=True) as validator:
        answer = validator.call(judge.judge, profile, staged.entries_fd, entries, deadline=deadline)
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
        with Worker(context.policy.store_user, keep=(bundle,)) as worker:
            published = worker.call(
                bundles.publish_bundle,
                *(place, bundle, draft, _owner(context)),
                deadline=deadline,
            )
    except (layout.StoreFull, layout.StoreFailed, WorkerSilent) as error:
        _spool(context, place, staged, draft, error)
        raise
    finally:
        os.close(bundle)
    if published["bundle"]:
        context.audit.emit(events.BUNDLE_PUBLISHED, profile=place.profile, namespace=place.name, **published)
    name: str | None = published["bundle"]
    return name


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


def _reject(context: Context, profile: str, reasons: dict[str, int], examples: list[tuple[str, str]]) -> None:
    if reasons:
        context.audit.emit(events.ENTRY_REJECTED, profile=profile, reasons=reasons, examples=examples)


def _owner(context: Context) -> str:
    return f"{context.record.node}-{context.record.run_id}"
