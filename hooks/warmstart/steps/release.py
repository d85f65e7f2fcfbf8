"""Step `release`: remove what the prolog made for this run, and only that (design, rule 8).

Every path is recomputed from the record's job id and run id. What a job's process still holds is no
reason to drain: it is left, said, and removed by the next run or by hand. The cache of a run whose harvest is not
finished stays until `tend` has finished it.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from typing import NamedTuple

from warmstart import record as records
from warmstart import view
from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import ResourceError, StoreError
from warmstart.host import ports
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir
from warmstart.host.trees import remove_tree
from warmstart.images import scratch
from warmstart.paths import SEED, NodePaths
from warmstart.record import Record
from warmstart.steps.contract import Context, Outcome
from warmstart.store import aside, kept
from warmstart.store.client import StoreClient

NAME = "release"
SECONDS_FOR_LEDGER = 5.0
SECONDS_FOR_STORE = 5.0
NOT_HARVESTED = ("tmp",)


class WorkspaceBusy(ResourceError):
    """Something under the workspace could not be removed."""

    code = "workspace-busy"
    template = "workspace {path} is not all removed: {problem}"
    hint = "which process or mount holds it (fuser -vm, findmnt)? remove the directory by hand afterwards"


class Options(NamedTuple):
    """Release has no options: everything is in the record."""


def run(context: Context, options: Options) -> Outcome:  # noqa: ARG001 - the shape of a step
    """Remove workspace, view and record; give the rendezvous back."""
    record = context.record
    free_ports(context.paths, record.node, record.job_id, context.audit)
    _mark_served(context)
    if record.aside:
        _set_aside(context)
    else:
        release(context.paths, record, context.deadline)
    kept_of: dict[str, object] = {"kept": record.run_directory} if record.keep else {}
    try:
        withdraw(context.store, record)
    except StoreError as error:
        return Outcome("changed", detail=kept_of, degraded=[error])
    return Outcome("changed", detail=kept_of)


def release(paths: NodePaths, record: Record, deadline: Deadline) -> None:
    """Do it for any record, e.g. that of an earlier run which no epilog followed."""
    view.remove(paths.view, record)
    used = remove_run(paths, record, deadline)
    records.forget(paths.state, record.job_id)
    if used:
        from warmstart.store.overlay import CacheInUse

        raise CacheInUse(path=f"{record.run_directory}/cache", subdirs=", ".join(used))


def remove_run(paths: NodePaths, record: Record, deadline: Deadline) -> list[str]:
    """Remove what there is of a run but the job's view and state, which may be a later run's.

    Return the directories of the cache that a process still used; they were detached.
    """
    used = _remove_workspace(record, deadline) if record.workspace else []
    aside.forget(paths.aside, record.run_name)
    return used


def drop_aside(paths: NodePaths, waiting: aside.Waiting, reason: str, audit: Journal, deadline: Deadline) -> None:
    """Give up a harvest that was set aside; the caller has the `turn`. What it was of is lost, and audited."""
    if waiting.record:
        remove_run(paths, waiting.record, deadline)
    aside.forget(paths.aside, waiting.name)
    profiles = waiting.record.aside if waiting.record else []
    audit.emit(events.HARVEST_DROPPED, run=waiting.name, profiles=profiles, reason=reason)


def free_ports(paths: NodePaths, node: str, job_id: int, audit: Journal) -> None:
    """Give back a job's ports on this node, also those of a prolog that died before it wrote them down."""
    held = ports.held_by(paths.ports, node, job_id)
    if held:
        audit.emit(events.RENDEZVOUS_RELEASED, ports=held)  # first: the next one's event then comes later
        ports.release(paths.ports, node, job_id, after(SECONDS_FOR_LEDGER))


def withdraw(store: StoreClient, record: Record) -> None:
    """Remove what this node told the job's other nodes; a `StoreError` leaves it to `tend`."""
    if record.meeting:
        store.withdraw_rendezvous(record.meeting, after(SECONDS_FOR_STORE))


def _mark_served(context: Context) -> None:
    """Tell the store which images the job's steps were served without a hook; `tend` does it while the job lives."""
    record = context.record
    if not record.workspace:
        return
    from warmstart.images import served
    from warmstart.images.client import ImageStoreClient

    store = ImageStoreClient(context.store.worker, context.policy.paths.store)
    with suppress(OSError, StoreError), opened_dir(record.run_directory) as run_fd:
        deadline = after(SECONDS_FOR_STORE)
        served.collect(run_fd, context.paths.uses, node=record.node, store=store, deadline=deadline)


def _set_aside(context: Context) -> None:
    """Keep the run's cache for `tend`, and nothing else of it; the oldest such runs go where there are too many."""
    record, paths = context.record, context.paths
    aside.keep(paths.aside, record, time.time())
    context.audit.emit(events.HARVEST_SET_ASIDE, run=record.run_name, profiles=record.aside)
    view.remove(paths.view, record)
    _close_run(record, context.deadline)
    records.forget(paths.state, record.job_id)
    with aside.turn(paths.aside) as mine:
        if mine:
            _make_room(context)


def _close_run(record: Record, deadline: Deadline) -> None:
    """Let the job's user no more into the run's directory, and remove what is not to be harvested."""
    try:
        with opened_dir(record.workspace) as root, opened_dir(record.node, root) as node:
            with opened_dir(record.run_name, node) as run_fd:
                os.fchmod(run_fd, 0o700)
                for name in () if record.keep else NOT_HARVESTED:
                    remove_tree(run_fd, name, deadline)
            scratch.remove_left(node, record.run_id, deadline)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WorkspaceBusy(path=record.run_directory, problem=error.strerror) from error


def _make_room(context: Context) -> None:
    """Drop the oldest runs beyond `harvest.aside`, and while the disk is short of space."""
    waiting = aside.waiting(context.paths.aside)
    beyond = len(waiting) - context.policy.harvest.aside
    for number, item in enumerate(waiting):
        reason = aside.NO_ROOM if number < beyond else aside.NO_SPACE
        if number >= beyond and not aside.is_short_of_space(context.record.workspace):
            return
        drop_aside(context.paths, item, reason, context.audit, context.deadline)


def _remove_workspace(record: Record, deadline: Deadline) -> list[str]:
    try:
        with opened_dir(record.workspace) as root, opened_dir(record.node, root) as node:
            used = _unmount_views(node, record.run_name)
            if not (record.keep and kept.keep(node, record.run_name, deadline)):
                remove_tree(node, record.run_name, deadline)
            scratch.remove_left(node, record.run_id, deadline)
            return used
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno == errno.EROFS:
            return []  # nothing was written there, and nothing can be removed
        raise WorkspaceBusy(path=record.run_directory, problem=error.strerror) from error


def _unmount_views(node: int, run_name: str) -> list[str]:
    """Unmount the job's views of bundles; return those that a process still used."""
    try:
        with opened_dir(run_name, node) as run_fd:
            if SEED not in os.listdir(run_fd):
                return []
            from warmstart.store import overlay

            return overlay.take_down(run_fd)
    except FileNotFoundError:
        return []
