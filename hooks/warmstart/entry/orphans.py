"""Find what jobs left on a node that are not there any more, and have it ended: as their epilog would, or by `run_end`.

Runs are judged by the job's own record, this boot's id, the step daemons and the controller (`slurm.live`), never by
user or by pattern. A job's state directory is locked meanwhile, so no hook of the same job is at work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from warmstart import plan, run_end
from warmstart import record as records
from warmstart.audit import events
from warmstart.entry.epilog import SECONDS_BESIDES
from warmstart.entry.maintenance.session import MaintenanceSession
from warmstart.host.deadline import after
from warmstart.host.files import names_in
from warmstart.record import JobBusy, Record, RecordUnreadable
from warmstart.run_end import Orphan, WorkspaceBusy
from warmstart.runner import run_epilog
from warmstart.steps.contract import Context

_RUN = re.compile(r"(?P<run>(?P<job>\d{1,10})\.[0-9a-f]{8})")


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
