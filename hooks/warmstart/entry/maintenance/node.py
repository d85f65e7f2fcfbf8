"""A node's part of `warmstart maintain`: what its hooks left for later, and what died hooks left (docs/maintenance.md).

One run per node at a time; the lock is the node's own directory. Each part runs whatever became of the others.

Orphans: a job that is gone is finished as its epilog would have done it, or removed. That is judged by the job's own
record, this boot's id, the step daemons and the controller (`slurm.commands`), never by user or pattern; every
removal is by descriptor and ends at a mount. The job's state directory is locked meanwhile, so no hook of that job is
at work.

Deferred harvests are finished at idle priority. Any step may be the last: the next run subtracts what is published,
and a run is forgotten only when nothing of it is left on the node.
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from warmstart import plan, run_end
from warmstart import record as records
from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.entry.epilog import SECONDS_BESIDES
from warmstart.entry.maintenance.session import STORE_SECONDS, MaintenanceSession, maintenance_session
from warmstart.errors import ResourceError, WarmstartError
from warmstart.harvest import deferred
from warmstart.harvest.deferred import DeferredHarvest
from warmstart.host import files, process
from warmstart.host.deadline import after
from warmstart.host.files import DIRECTORY, names_in, opened_dir
from warmstart.images import scratch, user_import
from warmstart.images.client import ImageStoreClient
from warmstart.paths import Installation
from warmstart.record import JobBusy, Record, RecordUnreadable
from warmstart.run_end import Orphan, WorkspaceBusy
from warmstart.runner import run_epilog
from warmstart.seed import node_cache
from warmstart.slurm import commands
from warmstart.steps import harvest, spool
from warmstart.steps.contract import Context

IONICE = "/usr/bin/ionice"
SPOOL_SECONDS = 600.0
MOST_QUESTIONS = 200  # to the controller, for each node and run
_RUN = re.compile(r"(?P<run>(?P<job>\d{1,10})\.[0-9a-f]{8})")
RUN_SECONDS = 600.0  # for one run's harvest; what is not done then is the next run's


class MaintenanceBusy(ResourceError):
    """Another maintenance run is at work on the node."""

    code = "maintenance-busy"
    template = "another maintenance run is at work: {what}"
    hint = "nothing; it does the same"


class MaintenanceFailed(ResourceError):
    """A part of maintenance failed on this node's disk."""

    code = "maintenance-failed"
    template = "{part}: {problem}"
    hint = "read the reason; the next run goes on"


class Report(NamedTuple):
    """What was done on one node."""

    node: str
    spooled: int = 0  # bundles that left the spool
    finished: int = 0  # runs without an epilog
    harvested: int = 0  # deferred harvests that were finished
    removed: int = 0  # stages, workspaces and views of nobody
    pruned: int = 0  # bytes of bundle copies
    noted: int = 0  # uses of bundles, and of images that steps were served, written to the store
    failed: tuple[str, ...] = ()


def be_idle() -> None:
    """Give this process the idle I/O class and a low priority, where the kernel lets it."""
    os.nice(10)
    with suppress(WarmstartError):
        process.run([IONICE, "-c", "3", "-p", str(os.getpid())], deadline=after(5))


def maintain_node(installation: Installation, node: str, slurm_conf: str) -> Report:
    """Do it all for one node; `NodeBusy`, and what `upkeep_run` raises. Journals are moved at its end."""
    with _alone(installation.node(node).root, node), maintenance_session(installation, "maintain", node) as run:
        return _NodeMaintenance(run, _over(run, slurm_conf), slurm_conf).all()


class _NodeMaintenance:
    def __init__(self, run: MaintenanceSession, is_over: Callable[[int], bool], slurm_conf: str) -> None:
        self._run = run
        self._orphans = Orphans(run, records.boot_id(), is_over, slurm_conf)
        self._failed: list[str] = []

    def all(self) -> Report:
        """Do every part."""
        run, orphans = self._run, self._orphans
        spooled = self._part("spool", self._spool)
        self._part("runs", orphans.finish_runs)
        harvested = self._part("harvests", self._harvests)
        self._part("trees", orphans.remove_trees)
        self._part("imports", self._imports)
        noted = self._part("uses", self._uses)
        pruned = self._part("copies", self._copies)
        return Report(
            *(run.node, spooled, orphans.finished, harvested, orphans.removed, pruned, noted),
            failed=tuple(self._failed),
        )

    def _part(self, name: str, act: Callable[[], int | None]) -> int:
        try:
            return act() or 0
        except WarmstartError as error:
            failure = error
        except OSError as error:
            failure = MaintenanceFailed(part=name, problem=error.strerror or str(error))
        except Exception:  # noqa: BLE001 - a bug met in one job's things keeps nothing else from being done
            self._run.audit.emit(events.HOOK_CRASHED, traceback=traceback.format_exc())
            failure = MaintenanceFailed(
                part=name, problem="a bug in warmstart; its traceback is in the audit, `hook.crashed`"
            )
        self._failed.append(str(failure))
        self._run.failed("maintenance", failure)
        return 0

    def _harvests(self) -> int:
        finished = finish_deferred(self._run, records.boot_id())
        self._failed += [str(failure) for failure in finished.failures]
        return finished.runs

    def _spool(self) -> int:
        run = self._run
        return spool.publish(run.paths.spool, run.store, run.policy.maintenance, run.audit, after(SPOOL_SECONDS))

    def _copies(self) -> int:
        run = self._run
        return node_cache.prune(run.paths.bundles, run.paths.layers, run.policy.seed.keep, time.time())

    def _uses(self) -> int:
        run = self._run
        uses = node_cache.uses(run.paths.bundles)
        noted = run.store.note_uses(uses, run.store_deadline()) if uses else 0
        return noted + self._served()

    def _served(self) -> int:
        """Mark the images that steps were served without a hook (images/user_import.py)."""
        run, marked = self._run, 0
        store = ImageStoreClient(run.store.worker, run.policy.paths.store)
        with suppress(FileNotFoundError), opened_dir(f"{run.policy.paths.workspace}/{run.node}") as node_fd:
            for name in os.listdir(node_fd):
                with suppress(FileNotFoundError, NotADirectoryError), opened_dir(name, node_fd) as fd:
                    marked += user_import.mark_noted(
                        fd, run.paths.uses, node=run.node, store=store, deadline=after(STORE_SECONDS)
                    )
        return marked

    def _imports(self) -> None:
        with suppress(FileNotFoundError), opened_dir(f"{self._run.policy.paths.workspace}/{self._run.node}") as fd:
            scratch.remove_abandoned(fd)


def _over(run: MaintenanceSession, slurm_conf: str) -> Callable[[int], bool]:
    """Return what tells whether a job is over for sure; after one question without an answer none is asked."""
    daemons = commands.with_daemons()
    answers: dict[int, bool | None] = {}

    def is_over(job_id: int) -> bool:
        if job_id in daemons:
            return False
        if job_id not in answers:
            silent = None in answers.values() or len(answers) >= MOST_QUESTIONS
            answers[job_id] = None if silent else commands.is_over(run.policy.paths.scontrol, job_id, slurm_conf)
        return answers[job_id] is True

    return is_over


@contextmanager
def _alone(directory: str, node: str) -> Iterator[None]:
    fd = os.open(directory, DIRECTORY)
    try:
        if not files.try_flock(fd):
            raise MaintenanceBusy(what=f"on node {node}")
        yield
    finally:
        os.close(fd)


class Orphans:
    """The orphans of one node."""

    def __init__(self, run: MaintenanceSession, boot_id: str, is_over: Callable[[int], bool], slurm_conf: str) -> None:
        """`is_over` tells whether a job has left this cluster for sure."""
        self._slurm_conf = slurm_conf
        self._run = run
        self._boot_id = boot_id
        self._is_over = is_over
        self.finished = 0  # runs
        self.removed = 0  # trees

    def finish_runs(self) -> None:
        """Harvest and release the runs whose epilog never came, or was killed."""
        for name in names_in(self._run.paths.state):
            if name.isdigit():
                with suppress(JobBusy):
                    self._finish(int(name))

    def remove_trees(self) -> None:
        """Remove stages, workspaces and views that no record names."""
        self._remove_stages()
        self._remove_workspaces()
        self._remove_views()

    def _finish(self, job_id: int) -> None:
        if not self._may_be_finished(job_id):
            return
        with records.job_lock(self._run.paths.state, job_id, after(0)):
            record = self._record(job_id)
            if record is None or not (record.boot_id != self._boot_id or self._is_over(job_id)):
                return
            audit = self._run.audit.bind(job_id=job_id, uid=record.uid, user=record.user)
            audit.emit(events.RUN_ABANDONED, rebooted=record.boot_id != self._boot_id)
            seconds = self._run.policy.harvest.budget + SECONDS_BESIDES
            context = Context(self._run.policy, self._run.paths, record, audit, after(seconds), self._run.store)
            run_epilog(context, plan.epilog(self._run.policy, record, self._slurm_conf))
            self.finished += 1

    def _may_be_finished(self, job_id: int) -> bool:
        """Look without the lock: a job that is at work is not made to wait."""
        try:
            record = records.load(self._run.paths.state, job_id)
        except RecordUnreadable:
            return self._is_over(job_id)
        return record is None or record.boot_id != self._boot_id or self._is_over(job_id)

    def _record(self, job_id: int) -> Record | None:
        """Return the record; a damaged one of a job that is over is audited and forgotten."""
        try:
            return records.load(self._run.paths.state, job_id)
        except RecordUnreadable as error:
            self._run.audit.bind(job_id=job_id).emit(events.RECORD_DAMAGED, error=error.as_audit())
            records.forget(self._run.paths.state, job_id)
            return None

    def _remove_stages(self) -> None:
        for name in names_in(self._run.paths.stage):
            if match := _RUN.match(name):
                self._end(Orphan("stage", self._run.paths.stage, name, int(match["job"]), match["run"]))

    def _remove_workspaces(self) -> None:
        directory = os.path.join(self._run.policy.paths.workspace, self._run.node)
        matches = [match for name in names_in(directory) if (match := _RUN.fullmatch(name))]
        for match in sorted(matches, key=lambda match: int(match["job"])):  # where space is short, the oldest go first
            self._end(Orphan("workspace", directory, match["run"], int(match["job"]), match["run"]))

    def _end(self, orphan: Orphan) -> None:
        run = self._run
        with suppress(JobBusy), self._reported():
            self.removed += run_end.end_orphan(run.paths, orphan, run.policy.limits.keep or 0, self._is_over, run.audit)

    def _remove_views(self) -> None:
        directory = self._run.paths.view
        for name in names_in(directory):
            view_id = name if name.isdigit() else name.removeprefix(".new-").partition(".")[0]
            if view_id.isdigit() and self._is_over(int(view_id)) and int(view_id) not in self._views():
                with self._reported():
                    run_end.remove_orphan("view", directory, name, self._run.audit)
                    self.removed += 1

    def _views(self) -> set[int]:
        """Return the ids under which the records' jobs find their views."""
        found = set()
        for name in names_in(self._run.paths.state):
            with suppress(RecordUnreadable):
                record = records.load(self._run.paths.state, int(name)) if name.isdigit() else None
                if record:
                    found.add(record.view_id)
        return found

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except WorkspaceBusy as error:
            self._run.failed("maintenance", error)


class DeferredOutcome(NamedTuple):
    """What became of the deferred harvests."""

    runs: int  # done with
    failures: list[WarmstartError]  # of profiles, and of whole runs; all are in the audit


def finish_deferred(run: MaintenanceSession, boot_id: str) -> DeferredOutcome:
    """Finish the deferred harvests, the oldest first; what fails keeps nothing else from being done."""
    done, failures = 0, list[WarmstartError]()
    with deferred.exclusive(run.paths.deferred) as mine:
        for waiting in deferred.deferred_harvests(run.paths.deferred) if mine else []:
            try:
                done += _finish(run, waiting, boot_id, failures)
            except WarmstartError as error:
                run.failed(harvest.NAME, error)
                failures.append(error)
    return DeferredOutcome(done, failures)


def _finish(run: MaintenanceSession, waiting: DeferredHarvest, boot_id: str, failures: list[WarmstartError]) -> bool:
    """Harvest one run and remove it; False where there is more to do. Adds what failed of it to `failures`."""
    drop = partial(run_end.drop_deferred, run.paths, waiting, deadline=after(run_end.MAINTENANCE_SECONDS))
    record = waiting.record
    if record is None:
        drop(deferred.DAMAGED, run.audit)
        return True
    audit = run.audit.bind(job_id=record.job_id, uid=record.uid, user=record.user)
    if record.boot_id != boot_id:
        drop(deferred.REBOOTED, audit)
    elif waiting.since < time.time() - deferred.LONGEST_SECONDS:
        drop(deferred.TOO_OLD, audit)
    elif left := _harvest(run, record, audit, failures):
        deferred.defer(run.paths.deferred, record._replace(deferred=left), waiting.since)
        return False
    else:
        run_end.finish_deferred(run.paths, record, after(run_end.MAINTENANCE_SECONDS))
    return True


def _harvest(run: MaintenanceSession, record: Record, audit: Journal, failures: list[WarmstartError]) -> list[str]:
    """Return the profiles that are not done yet."""
    rules = run.policy.harvest
    options = harvest.Options(RUN_SECONDS, rules.max_size, rules.max_entries)
    context = Context(run.policy, run.paths, record, audit.bind(step=harvest.NAME), after(RUN_SECONDS), run.store)
    outcome = harvest.run(context, options)
    for failure in outcome.degraded:
        audit.emit(events.STEP_FAILED, step=harvest.NAME, error=failure.as_audit())
    failures += outcome.degraded
    audit.emit(events.STEP_FINISHED, step=harvest.NAME, outcome=outcome.state, **outcome.detail)
    return outcome.record["deferred"]
