"""The end of a run on a node: the ways in which it can end, and the order of removal. Runs as root.

| a run ends by | called by                                                              | harvest                 |
|---------------|------------------------------------------------------------------------|-------------------------|
| `release`     | the epilog; maintenance, where no epilog came                          | within `harvest.budget` |
|               | the prolog of a requeued job; a prolog that failed (what features hold | none                    |
|               | for the job stays until the epilog then)                               |                         |
| an attempt    | `background endings`, for what `release` has left in the queue         | what is left            |
| `remove`      | maintenance, for a tree that nothing names (`maintenance.orphans`)     | none                    |

The order:

1. What features hold for the job. It is the job's, not the run's, and depends on nothing else.
2. The view (`view/<jobid>`), so that no task starts with variables that name removed paths.
3. The harvest. What it has no time for is left.
4. The run goes from its state to an item of the queue `endings`: the item is written first, and the state removed then.
5. The run's directory with its mounts (`removal`). What takes longer than a second goes on off the clock.
6. The item of the queue. It is the last thing on this node.
7. The run's board in the store. It comes last because the store may be unreachable.

A process that dies between two of these leaves nothing unknown: the run's state or the queue names it. Where both do,
the item counts, and the state has only 1, 2 and 4 ahead of it. A harvest may be repeated, as what is published is
known, but never once 5 has begun: what is gone then would look like what the job removed. So 4 stands before it. A part
that fails leaves the state in place, and does not keep the other parts from being done. Only the board can outlive a
run; maintenance of the store removes old ones.

Every part accepts that its object is already gone, so a run may be ended twice. Two processes never end one run at the
same time: hooks and maintenance hold the lock on the job's state (`run.state.job_lock`), and one attempt at a time is
made at an item, the first one by who has written it.

What a process or a mount holds is left in place, audited, and removed by the next attempt. It never drains the node.

Not imported by a warm prolog.
"""

from __future__ import annotations

import time

from warmstart import view, wing
from warmstart.audit.log import Log
from warmstart.ending import waiting
from warmstart.ending.removal import AT_ONCE_S, WorkspaceBusy, close, remove
from warmstart.ending.waiting import ENDINGS
from warmstart.errors import NodeError, StoreError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.lean import TYPE_CHECKING, Iterator, NamedTuple, contextmanager, suppress
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.queue import Item, Queue
from warmstart.run import state
from warmstart.run.state import Run
from warmstart.steps.contract import Context

if TYPE_CHECKING:
    from typing import Protocol

    from warmstart.steps.harvest import Options

    class EndPart(Protocol):
        """`end.py` of a wing. Hot path."""

        def job_over(self, paths: NodePaths, job_id: int, audit: Log) -> None:
            """Take down what the wing holds for a job; called also for jobs without a run, and twice."""


STEP = "release"  # the step's name in the audit, for every way to end a run
MOST_REMOVALS = 8  # of a user that wait on a node
WAITS = "the epilog had no time, no space or no store for it; it is harvested in the background"
_STORE_SECONDS = 5.0


class Ended(NamedTuple):
    """The end of a run."""

    failure: WarmstartError | None = None  # the worst: a `NodeError`, else the first; all are audited
    lost: bool = False  # whether something that the job made was lost


def release(context: Context, options: Options | None, *, with_wings: bool = True) -> Ended:
    """End a run after its job: harvest it with these options, if any, and remove it, or leave it to the queue.

    The caller holds the job's lock. All failures are audited.
    """
    run, paths, queue = context.run, context.paths, Queue(context.paths, ENDINGS)
    blocking, failures = list[WarmstartError](), list[WarmstartError]()  # the first ones keep the run's state
    if run.live:
        from warmstart.harvest import live

        run = live.end(paths, run)
        context = context._replace(run=run)
    _hide(context, blocking, with_wings=with_wings)
    is_done, lost, item, began = True, False, None, time.monotonic()
    waits = True  # where the queue cannot be listed, perhaps
    with _collected(queue.directory, blocking), state.using_state(queue.directory):
        waits = queue.find(run.name) is not None
    if run.workspace and not waits:
        if options:
            run, is_done, lost = _harvest(context, options, failures)
            began = time.monotonic()
        with _collected(queue.directory, blocking), state.using_state(queue.directory):
            item = waiting.leave(queue, run, is_done=is_done)
    if not blocking:
        with _collected(f"{paths.state}/{run.job_id}", blocking):
            state.forget(paths.state, run.job_id)
    is_away, is_whole = any(isinstance(failure, StoreError) for failure in failures), False
    if item:
        with _collected(run.directory, failures):
            if is_done:
                is_whole = _remove_or_wait(context, queue, item, failures)
            else:
                context.audit.remark(WAITS, ", ".join(run.left))
                close(run, context.deadline)
                failures += waiting.make_room(context.policy, context.audit, queue)
    with _collected(queue.directory, failures):
        if item and not is_whole and not is_away:
            queue.hasten(item)
        queue.start_due()
    _withdraw(context, failures)
    for failure in (failures := [*blocking, *failures]):
        context.audit.failed(failure, STEP)
    context.audit.took(STEP, began)
    return Ended(next((one for one in failures if isinstance(one, NodeError)), next(iter(failures), None)), lost)


def _hide(context: Context, failures: list[WarmstartError], *, with_wings: bool) -> None:
    """Take down what the job had of its run."""
    run, paths = context.run, context.paths
    if with_wings:
        with _collected(paths.root, failures):
            end_wings(context.policy, paths, run.job_id, run.wings, context.audit)
    _collect_notes(context)
    with _collected(f"{paths.view}/{run.view_id}", failures):
        view.remove(paths.view, run)


def _harvest(context: Context, options: Options, failures: list[WarmstartError]) -> tuple[Run, bool, bool]:
    """Harvest a run. Return it with what is left, whether that is nothing, and whether something is lost."""
    from warmstart.steps import harvest  # slow to import, and most jobs have no cache

    began, audit = time.monotonic(), context.audit.bind(step=harvest.NAME)
    try:
        done = harvest.run(context._replace(audit=audit), options)
    finally:
        audit.took(harvest.NAME, began)
    for failure in done.degraded:
        audit.failed(failure)
    failures += done.degraded
    return done.run, done.is_done, done.lost


def _remove_or_wait(context: Context, queue: Queue, item: Item, failures: list[WarmstartError]) -> bool:
    """Remove a run, or leave what takes longer than `AT_ONCE_S` to the queue; return whether nothing is left.

    Raises `WorkspaceBusy` and `OSError`.

    A user may have eight such runs on a node, and none waits on a disk that is short of space; then the hook goes on
    until its deadline.
    """
    run, deadline = context.run, context.deadline
    removed = remove(run, deadline.within(AT_ONCE_S))
    is_whole = removed.is_whole
    if not is_whole and (queue.count(item.owner) > MOST_REMOVALS or waiting.is_short_of_space(run.workspace)):
        is_whole = remove(run, deadline).is_whole
    if is_whole:
        queue.drop(item.key)
    if removed.in_use:
        from warmstart.seed.overlay_end import CacheInUse

        problem = f"used {', '.join(removed.in_use)}; the overlay was detached, and is gone when that process ends"
        failures.append(CacheInUse(what=f"{run.directory}/cache", problem=problem))
    return is_whole


def end_wings(policy: Policy, paths: NodePaths, job_id: int, used: list[str], audit: Log) -> None:
    """Have wings take down what they hold for a job: those that the policy uses, and those that the run has used."""
    for known in policy.wings:
        if known.end and (known.used or known.name in used):
            end: EndPart = wing.load(known.end)
            end.job_over(paths, job_id, audit)


@contextmanager
def _collected(path: str, failures: list[WarmstartError]) -> Iterator[None]:
    """Add what a part raises to `failures`, so that the others are done. `path` is what an `OSError` is about."""
    try:
        yield
    except WarmstartError as error:
        failures.append(error)
    except OSError as error:
        failures.append(WorkspaceBusy(path=path, problem=error.strerror or str(error)))


def _withdraw(context: Context, failures: list[WarmstartError]) -> None:
    """Take down what this node has put on the run's board. After a `StoreError` maintenance of the store does it."""
    for path in context.run.topics:
        from warmstart.store import barrier  # most runs have no topic

        with _collected(path, failures):
            context.store.run(after(_STORE_SECONDS), barrier.take_down, path)


def _collect_notes(context: Context) -> None:
    """Record in the store which images the job's steps used without a hook. Maintenance does this for running jobs.

    Comes before any removal, because the notes about these images are in the run's TMPDIR.
    """
    run = context.run
    if not run.workspace:
        return
    from warmstart.images import notes

    with suppress(OSError, StoreError), opened_dir(run.directory) as fd:
        notes.collect(fd, context.paths.uses, node=run.node, store=context.store, deadline=after(_STORE_SECONDS))
