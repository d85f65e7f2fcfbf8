"""The end of a run on a node: all ways in which it can end, and the order of removal. Runs as root.

| a run ends by                      | called by                       | what stays on the node                     |
|------------------------------------|---------------------------------|--------------------------------------------|
| `release`                          | the epilog                      | nothing                                    |
| `defer`                            | `release`, harvest not finished | the cache                                  |
| `supersede`                        | the prolog of a requeued job    | nothing                                    |
| `undo`                             | a prolog that failed            | what wings hold for it, until the epilog   |
| `finish_deferred`, `drop_deferred` | maintenance                     | nothing                                    |
| `end_orphan`                       | maintenance                     | nothing                                    |

Before it is removed the run's directory, which is root's, gets a name of its own (`Run.going`), and only root can
enter it. A hook removes for a second, however much a job left; then the removal goes on off the clock
(`finish_removal`). The directories of the job are never moved by themselves: rename(2) fails between two project ids,
and users can set those of their own. A user may have eight such runs on a node, and none waits on a disk that is short
of space; then the hook goes on until its deadline.

The order of removal:

1. What wings hold for the job. It is the job's, not the run's, and depends on nothing else.
2. The view (`view/<jobid>`), so that no task starts with variables that name removed paths.
3. The mounts below the run's directory, once nobody makes any there. Each is made read-only first, so that a process
   that outlived the job can change nothing. Removing a tree would detach its mounts, too, but would not report
   which ones were in use.
4. The run's directory; then what the run's imports left beside it.
5. The file of a deferred harvest, once the cache that it names is gone, or the file of a removal names the run.
6. The run's state (`run.state`). It is the last thing on this node.
7. What the run's nodes have said to each other in the store. It comes last because the store may be unreachable.

A process that dies between two of these leaves nothing unknown. While anything of 1 to 5 is left, the run, or the
file of a deferred harvest or of a removal, names the run, and a repeated epilog, the prolog of a requeued job, the
background or maintenance starts over. So a part that fails leaves the run in place, and does not keep the other
parts from being done. Only that can outlive both; maintenance of the store removes old ones. The file is
written first and the run removed last, so at least one of them names the run at all times. A tree that none names is
an orphan. After `undo`, which leaves what wings hold, the epilog has them release it without a run.

Every part accepts that its object is already gone, so a run may be ended twice. Two processes never end one run at the
same time: hooks hold the lock on the job's state (`run.job_lock`), maintenance holds that or is at work on deferred
harvests (`errand.at_work`), and one process at a time goes on with removals.

Every path is computed from the run's job and run id, never found by user or by pattern. Whatever a process or a
mount holds is left in place, audited, and removed by the next attempt. It never drains the node.

Not imported by a warm prolog.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart import errand, view, wing
from warmstart.audit import events
from warmstart.audit.log import Log
from warmstart.errand import Errands, at_work
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS, REMOVALS, DeferredHarvest
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import (
    end_flock_holders,
    opened_dir,
    remove_tree,
)
from warmstart.host.space import Held, fair_order
from warmstart.images import scratch
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager, suppress
from warmstart.paths import CACHES, MOUNTED, SEED, NodePaths
from warmstart.policy.keys import Policy
from warmstart.run import state
from warmstart.run.state import Caches, Run, RunUnreadable
from warmstart.store.client import StoreClient

if TYPE_CHECKING:
    from typing import Protocol

    class EndPart(Protocol):
        """`end.py` of a wing. Hot path."""

        def job_over(self, paths: NodePaths, node: str, job_id: int, audit: Log, deadline: Deadline) -> None:
            """Take down what the wing holds for a job; called also for jobs without a run, and twice."""


STEP = "release"  # the step's name in the audit, for every way to end a run
MAINTENANCE_SECONDS = 300.0  # for removing one run or tree
AT_ONCE_S = 1.0  # for which a hook removes what a job left, before it leaves the rest

_TMP = "tmp"
LEDGER_SECONDS = 5.0
_STORE_SECONDS = 5.0
_MAKER_SECONDS = 1.0  # for a killed process to end


class WorkspaceBusy(ResourceError):
    """A run's workspace, or another directory of the run, could not be removed."""

    code = "workspace-busy"
    template = "{path} could not be removed completely: {problem}"
    hint = "find the process or mount that holds it (fuser -vm, findmnt), then remove the directory by hand"


class _Removed(NamedTuple):
    """How far a removal has come."""

    in_use: list[str] = []  # noqa: RUF012 - directories of the cache that a process still used; never mutated
    is_whole: bool = True


class Ending(NamedTuple):
    """A run to be ended, and what ending it needs."""

    policy: Policy
    paths: NodePaths
    run: Run
    audit: Log
    store: StoreClient


class JobOnNode(NamedTuple):
    """A job that is over on a node, and the wings whose steps its run had."""

    node: str
    job_id: int
    wings: list[str]


class Orphan(NamedTuple):
    """A tree of a run that maintenance found: `<directory>/<name>`."""

    directory: str
    name: str
    job_id: int
    run_name: str  # "" if a prolog died before it could say whose it is

    @property
    def path(self) -> str:
        """The tree's absolute path."""
        return f"{self.directory}/{self.name}"


def release(ending: Ending, deadline: Deadline) -> list[WarmstartError]:
    """End a run after its job: remove it, or defer its harvest if the run says so (`deferred`).

    Returns the errors of the parts that failed; the others are done.
    """
    failures: list[WarmstartError] = []
    _end_wings(ending, after(LEDGER_SECONDS), failures)
    _collect_notes(ending)
    if ending.run.left:
        defer(ending, deadline, failures)
    else:
        _remove(ending, deadline, failures)
    _withdraw(ending, after(_STORE_SECONDS), failures)
    return failures


def supersede(ending: Ending, deadline: Deadline) -> None:
    """End an earlier run of the job whose prolog runs: the job was requeued, or the run's epilog never came.

    Failures are audited and not raised, because the new run has its own directory.
    """
    ending.audit.remark("an earlier run of the job was removed: the job was requeued", ending.run.run_id)
    failures: list[WarmstartError] = []
    _end_wings(ending, deadline, failures)
    _remove(ending, deadline, failures)
    _withdraw(ending, deadline, failures)
    _audit(ending, failures)


def undo(ending: Ending, deadline: Deadline) -> None:
    """End a run whose prolog failed, so that the job gets all of its preparation or none.

    What wings hold stays until the epilog, since another node may already know of it. Failures are audited and not
    raised: the failure that the caller handles matters more.
    """
    failures: list[WarmstartError] = []
    _remove(ending, deadline, failures)
    _withdraw(ending, deadline, failures)
    _audit(ending, failures)


def defer(ending: Ending, deadline: Deadline, failures: list[WarmstartError]) -> None:
    """Defer a run's harvest: leave its cache to maintenance and remove the rest of the run.

    Drops deferred harvests if there are too many. The errors of parts are added to `failures`.
    """
    run, paths = ending.run, ending.paths
    _end_live(ending)
    with _collected(f"{paths.errands}/{run.name}", failures):
        deferred.defer(paths, HARVESTS, run, time.time())
        ending.audit.remark("the epilog had no time or no space; maintenance harvests it", ", ".join(run.left))
    _remove_view(ending, failures)
    with _collected(run.directory, failures):
        _close_to_user(run, deadline)
    _forget(ending, failures)
    with _collected(paths.errands, failures), at_work(paths, HARVESTS.name) as is_ours:
        if is_ours:
            _drop_deferred_beyond_limits(ending, deadline, failures)


def finish_deferred(paths: NodePaths, run: Run, deadline: Deadline) -> list[str]:
    """Remove what is left of a run after its deferred harvest. The caller is at work on `HARVESTS`.

    Leaves the job's view and run, which may belong to a later run. Returns the directories of the cache that a
    process still used; they were detached. Raises `WorkspaceBusy`.
    """
    in_use = _remove_whole(run, deadline)
    Errands(paths, HARVESTS).drop(run.name)
    return in_use


def finish_removal(paths: NodePaths, run: Run, deadline: Deadline) -> bool:
    """Go on with the removal of a run; return whether nothing of it is left. Raises `WorkspaceBusy`."""
    removed = _remove_workspace(run, deadline)
    if removed.is_whole:
        Errands(paths, REMOVALS).drop(run.name)
    return removed.is_whole


def drop_deferred(paths: NodePaths, harvest: DeferredHarvest, reason: str, audit: Log, deadline: Deadline) -> None:
    """Drop a deferred harvest, remove its run and audit the loss. The caller is at work on `HARVESTS`."""
    audit = audit.for_job(**harvest.job_labels)
    if harvest.run:
        _remove_or_leave(paths, harvest.run, deadline)
    Errands(paths, HARVESTS).drop(harvest.name)
    profiles = harvest.run.left if harvest.run else []
    audit.emit(events.HARVEST_DROPPED, run=harvest.name, profiles=profiles, reason=reason)


def end_orphan(paths: NodePaths, orphan: Orphan, is_over: Callable[[int], bool]) -> bool:
    """Remove a tree that neither a run nor a deferred harvest names. Return whether it was removed.

    `is_over` returns whether a job has certainly left the cluster. Raises `JobBusy` while a hook of the job is running,
    and `WorkspaceBusy`.
    """
    with state.job_lock(paths.state, orphan.job_id, after(0)):
        if not _is_removable(paths, orphan, is_over):
            return False
        remove_orphan(orphan.directory, orphan.name)
        return True


def remove_orphan(directory: str, name: str) -> None:
    """Remove a tree. Raises `WorkspaceBusy`."""
    try:
        with opened_dir(directory) as fd:
            remove_tree(fd, name, after(MAINTENANCE_SECONDS))
    except OSError as error:
        raise WorkspaceBusy(path=f"{directory}/{name}", problem=error.strerror) from error


def end_wings(policy: Policy, paths: NodePaths, job: JobOnNode, audit: Log, deadline: Deadline) -> None:
    """Have wings take down what they hold for a job: those that the policy uses, and those that the run has used."""
    for known in policy.wings:
        if known.end and (known.used or known.name in job.wings):
            end: EndPart = wing.load(known.end)
            end.job_over(paths, job.node, job.job_id, audit, deadline)


def _remove(ending: Ending, deadline: Deadline, failures: list[WarmstartError]) -> None:
    """Remove a run from this node: 2 to 6 of the module's order."""
    run = ending.run
    in_use: list[str] = []
    _end_live(ending)
    _remove_view(ending, failures)
    with _collected(run.directory, failures):
        in_use = _remove_or_leave(ending.paths, run, deadline)
        Errands(ending.paths, HARVESTS).drop(run.name)
    _forget(ending, failures)
    if in_use:
        from warmstart.seed.overlay_end import CacheInUse

        problem = f"used {', '.join(in_use)}; the overlay was detached, and is gone when that process ends"
        failures.append(CacheInUse(what=f"{run.directory}/cache", problem=problem))


def _end_wings(ending: Ending, deadline: Deadline, failures: list[WarmstartError]) -> None:
    job = JobOnNode(ending.run.node, ending.run.job_id, ending.run.wings)
    with _collected(ending.paths.root, failures):
        end_wings(ending.policy, ending.paths, job, ending.audit, deadline)


def _end_live(ending: Ending) -> None:
    if ending.run.live:
        from warmstart.harvest import live

        live.end(ending.paths, ending.run)


def _remove_view(ending: Ending, failures: list[WarmstartError]) -> None:
    with _collected(f"{ending.paths.view}/{ending.run.view_id}", failures):
        view.remove(ending.paths.view, ending.run)


def _forget(ending: Ending, failures: list[WarmstartError]) -> None:
    """Forget the run, unless a part failed: then its state names what is left for the next attempt."""
    if not failures:
        with _collected(f"{ending.paths.state}/{ending.run.job_id}", failures):
            state.forget(ending.paths.state, ending.run.job_id)


@contextmanager
def _collected(path: str, failures: list[WarmstartError]) -> Iterator[None]:
    """Add what a part raises to `failures`, so that the others are done. `path` is what an `OSError` is about."""
    try:
        yield
    except WarmstartError as error:
        failures.append(error)
    except OSError as error:
        failures.append(WorkspaceBusy(path=path, problem=error.strerror or str(error)))


def _audit(ending: Ending, failures: list[WarmstartError]) -> None:
    for failure in failures:
        ending.audit.failed(failure, STEP)


def _remove_or_leave(paths: NodePaths, run: Run, deadline: Deadline) -> list[str]:
    """Remove what belongs only to the run, 3 and 4, or leave what takes longer than `AT_ONCE_S` to the background.

    Returns the directories of the cache that a process still used. Raises `WorkspaceBusy`.
    """
    removed = _remove_workspace(run, deadline.within(AT_ONCE_S))
    if removed.is_whole:
        return removed.in_use
    if _may_wait(paths, run):
        _leave(paths, run)
    else:
        _remove_whole(run, deadline)
    return removed.in_use


def _may_wait(paths: NodePaths, run: Run) -> bool:
    """Return whether the removal of a run may go on later: the node has space, and its user few such runs."""
    if deferred.is_short_of_space(run.workspace):
        return False
    return Errands(paths, REMOVALS).count(str(run.uid)) < REMOVALS.most


def _leave(paths: NodePaths, run: Run) -> None:
    """Have the rest of a run removed off the clock; raises `FileSystemBroken` or `StateFull`."""
    # Without what a removal does not need: users choose the names of entries.
    needed = run._replace(environment={}, images={}, own=Caches(), others=[])
    deferred.defer(paths, REMOVALS, needed, time.time())
    errand.start(paths, REMOVALS.name)


def _remove_whole(run: Run, deadline: Deadline) -> list[str]:
    """Remove a run as `_remove_workspace` does; raises `WorkspaceBusy` also if something is left at the deadline."""
    removed = _remove_workspace(run, deadline)
    if not removed.is_whole:
        raise WorkspaceBusy(path=run.directory, problem="not all removed before the deadline")
    return removed.in_use


def _remove_workspace(run: Run, deadline: Deadline) -> _Removed:
    """Remove the run's directory: 3 and 4. A second call goes on where the first one ended."""
    if not run.workspace:
        return _Removed()
    try:
        with opened_dir(run.workspace) as root:
            is_there = _is_its(root, run)
            in_use = _unmount(root, run.place) if is_there else []
            try:
                remove_tree(root, _moved(root, run) if is_there else run.going, deadline)
                scratch.remove_left(root, run.run_id, deadline)
            except OSError as error:
                if error.errno != errno.ETIME:
                    raise
                return _Removed(in_use, is_whole=False)
            return _Removed(in_use)
    except FileNotFoundError:
        return _Removed()
    except OSError as error:
        if error.errno == errno.EROFS:
            return _Removed()  # a read-only file system: nothing was written, and nothing can be removed
        raise WorkspaceBusy(path=run.directory, problem=error.strerror) from error


def _is_its(root: int, run: Run) -> bool:
    """Return whether the directory at a run's place is the run's, and not one that was there before it.

    One without anything in it is that of a prolog that died before it could mark it.
    """
    try:
        os.stat(f"{run.place}/{run.mark}", dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(run.place, dir_fd=root)
        return False
    return True


def _moved(root: int, run: Run) -> str:
    """Give a run's directory the name under which it is removed, and close it to its user; return its name now.

    If this process dies meanwhile, the harvest is repeated. It must not take what is gone for what the job removed.
    """
    try:
        with opened_dir(run.place, root) as fd:
            os.fchmod(fd, 0o700)
        os.rename(run.place, run.going, src_dir_fd=root, dst_dir_fd=root)
    except OSError:
        return run.place
    return run.going


def _of_images(run: int) -> Iterator[int]:
    """Yield descriptors of the directories of a run's caches: that of the run itself, then those of other images."""
    yield run
    with suppress(FileNotFoundError), opened_dir(CACHES, run) as top:
        for name in os.listdir(top):
            with opened_dir(name, top) as fd:
                yield fd


def _unmount(root: int, place: str) -> list[str]:
    """Unmount the overlays and what else is mounted for a run. Return the overlays that a process still used."""
    try:
        with opened_dir(place, root) as run:
            names = os.listdir(run)
            if MOUNTED in names:
                view.take_down(run)
            if SEED not in names and CACHES not in names:
                return []
            from warmstart.seed import overlay_end

            in_use: list[str] = []
            for fd in _of_images(run):
                end_flock_holders(fd, after(_MAKER_SECONDS))  # who still makes the caches
                in_use += overlay_end.take_down(fd)
            return in_use
    except FileNotFoundError:
        return []


def _withdraw(ending: Ending, deadline: Deadline, failures: list[WarmstartError]) -> None:
    """Take down the topics that this node began. After a `StoreError` maintenance of the store does it."""
    for path in ending.run.all_topics:
        from warmstart.store import barrier  # most runs have no topic

        with _collected(path, failures):
            ending.store.run(deadline, barrier.take_down, path)


def _collect_notes(ending: Ending) -> None:
    """Record in the store which images the job's steps used without a hook. Maintenance does this for running jobs.

    Comes before any removal, because the notes about these images are in the run's TMPDIR.
    """
    run = ending.run
    if not run.workspace:
        return
    from warmstart.images import notes
    from warmstart.images.store.client import ImageStoreClient

    store = ImageStoreClient(ending.store.worker, ending.policy.paths.store)
    with suppress(OSError, StoreError), opened_dir(run.directory) as fd:
        notes.collect(fd, ending.paths.uses, node=run.node, store=store, deadline=after(_STORE_SECONDS))


def _close_to_user(run: Run, deadline: Deadline) -> None:
    """Make the run's directory inaccessible to the job's user; remove leftovers of imports and TMPDIR."""
    try:
        with opened_dir(run.workspace) as root:
            if _is_its(root, run):
                with opened_dir(run.place, root) as fd:
                    os.fchmod(fd, 0o700)
                    _remove_tmp(fd, deadline)
            scratch.remove_left(root, run.run_id, deadline)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WorkspaceBusy(path=run.directory, problem=error.strerror) from error


def _remove_tmp(run: int, deadline: Deadline) -> None:
    """Remove a TMPDIR, or some of it if that takes longer than `AT_ONCE_S`; the rest goes with the cache."""
    try:
        remove_tree(run, _TMP, deadline.within(AT_ONCE_S))
    except OSError as error:
        if error.errno != errno.ETIME:
            raise


def _drop_deferred_beyond_limits(ending: Ending, deadline: Deadline, failures: list[WarmstartError]) -> None:
    """Drop deferred harvests above the policy's number, and more while the disk is short of space.

    Those of the user who has most go first, the oldest of them at first. One that cannot be dropped does not keep the
    others.
    """
    paths = ending.paths
    waiting = sorted(Errands(paths, HARVESTS).all(), key=lambda left: (left.due, left.key))
    beyond = len(waiting) - ending.policy.harvest.deferred
    for dropped, number in enumerate(fair_order([Held(left.owner, 1) for left in waiting])):
        if dropped >= beyond and not deferred.is_short_of_space(ending.run.workspace):
            return
        reason = deferred.NO_ROOM if dropped < beyond else deferred.NO_SPACE
        with _collected(f"{paths.errands}/{waiting[number].key}", failures):
            if harvest := deferred.read(paths, HARVESTS, waiting[number]):
                drop_deferred(paths, harvest, reason, ending.audit, deadline)


def _is_removable(paths: NodePaths, orphan: Orphan, is_over: Callable[[int], bool]) -> bool:
    """Return whether nothing names a tree any more."""
    try:
        run = state.load(paths.state, orphan.job_id)
    except RunUnreadable:
        return False
    if any(Errands(paths, kind).find(orphan.run_name) for kind in (HARVESTS, REMOVALS)):
        return False
    if run and run.name == orphan.run_name:
        return False
    # If the job has another run now, this one is over even if the job is not.
    return run is not None or is_over(orphan.job_id)
