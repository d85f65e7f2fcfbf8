"""Leftovers of jobs that are over: runs without an epilog, and directories that nothing names. Runs as root.

A run of a job that is over is finished as its epilog would have done it. A directory that neither a run's state nor the
queue names is of an earlier boot or pod, and is removed unless the job has a step daemon. The step daemons and the
controller (`slurm.slurmctld`) decide whether a job is over, never its user or a pattern. Every removal is by descriptor
and ends at a mount. It holds the lock of the job's state directory, so no hook of the job runs at the same time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from warmstart.audit import events
from warmstart.ending import harvesting
from warmstart.ending.release import release
from warmstart.ending.removal import WorkspaceBusy
from warmstart.ending.waiting import ENDINGS
from warmstart.host import trusted
from warmstart.host.deadline import after
from warmstart.host.files import names_in, opened_dir
from warmstart.host.remove import remove_tree
from warmstart.queue import Queue
from warmstart.run import state
from warmstart.run.state import JobBusy, Run, RunUnreadable
from warmstart.session import Session
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld
from warmstart.steps.contract import Context

REMOVAL_S = 300.0  # for one tree
_RUN = re.compile(r"(?P<run>(?P<job>\d{1,10})\.[0-9a-f]{8})")
_MARK = re.compile(re.escape(state.MARK) + _RUN.pattern)


def remove(directory: str, name: str) -> None:
    """Remove a tree. Raises `WorkspaceBusy`."""
    try:
        with opened_dir(directory) as fd:
            remove_tree(fd, name, after(REMOVAL_S))
    except OSError as error:
        raise WorkspaceBusy(path=f"{directory}/{name}", problem=error.strerror) from error


class Orphans:
    """Leftovers on one node. One that cannot be removed keeps no other."""

    def __init__(self, session: Session, slurm_conf: str) -> None:
        self._session = session
        self._slurm_conf = slurm_conf
        self._daemons = commands.with_daemons()
        access = Access(session.policy.paths.scontrol, slurm_conf, session.installation.slurm_libraries)
        self._is_over = _job_is_over(Slurmctld(access), self._daemons)
        self._removed = 0  # directories
        self.topics: list[str] = []  # of runs that are not over

    def finish_runs(self) -> int:
        """Harvest and release the runs whose epilog never ran, or was killed; return how many."""
        finished = 0
        for name in filter(str.isdigit, names_in(self._session.paths.state)):
            with self._session.isolated(f"run of job {name}"), suppress(JobBusy):
                finished += self._finish_run(int(name))
        return finished

    def remove_leftovers(self) -> int:
        """Remove stages, workspaces and views without a run; return how many."""
        self._remove_stages()
        self._remove_workspaces()
        self._remove_views()
        return self._removed

    def _finish_run(self, job_id: int) -> bool:
        session = self._session
        # Without the lock first, so that the hooks of a running job do not wait for it.
        run = state.load(session.paths.state, job_id)
        if run and not self._is_over(job_id):
            self.topics += run.topics
            return False
        with state.job_lock(session.paths.state, job_id, after(0)):
            run = state.load(session.paths.state, job_id)
            if run is None or not self._is_over(job_id):
                return False
            audit = session.audit.for_job(**run.job_labels)
            audit.emit(events.RUN_ABANDONED)
            deadline = after(harvesting.epilog_budget(session.policy))
            context = Context(session.policy, session.paths, run, audit, deadline, session.store)
            failure = release(context, harvesting.to_harvest(session.policy, run, self._slurm_conf)).failure
            audit.finish(outcome="failed" if failure else "ok", run=run.name)
            if failure and state.load(session.paths.state, job_id):  # the run is not even in the queue
                session.failures.append(failure)
                return False
            return True

    def _remove_stages(self) -> None:
        directory = self._session.paths.stage
        for name in names_in(directory):
            if match := _RUN.match(name):
                self._remove_unnamed(directory, name, int(match["job"]), match["run"])

    def _remove_workspaces(self) -> None:
        directory, names = self._session.policy.paths.workspace, list[str]()
        with suppress(FileNotFoundError), trusted.opened_trusted(directory, (0, os.geteuid())) as fd:
            names = os.listdir(fd)
        for name in names:
            if match := _RUN.fullmatch(name.removeprefix(".")):
                marks = filter(None, map(_MARK.fullmatch, names_in(f"{directory}/{name}")))
                of = match if name[0] == "." else next(marks, None)
                self._remove_unnamed(directory, name, int((of or match)["job"]), of["run"] if of else "")

    def _remove_unnamed(self, directory: str, name: str, job_id: int, run_name: str) -> None:
        """Remove a tree that nothing names; `run_name` is "" if a prolog died before it could say whose it is."""
        lock = state.job_lock(self._session.paths.state, job_id, after(0))
        with self._session.isolated(f"{directory}/{name}"), suppress(JobBusy), lock:
            if self._is_unnamed(job_id, run_name):
                remove(directory, name)
                self._removed += 1

    def _is_unnamed(self, job_id: int, run_name: str) -> bool:
        try:
            run = state.load(self._session.paths.state, job_id)
        except RunUnreadable:
            return False
        if Queue(self._session.paths, ENDINGS).find(run_name) or (run and run.name == run_name):
            return False
        # If the state is of another run of the job, this one is over even if the job is not.
        return run is not None or (job_id not in self._daemons if run_name else self._is_over(job_id))

    def _remove_views(self) -> None:
        directory = self._session.paths.view
        names, seen = names_in(directory), [run.view_id for run in self._runs()]  # a run is written before its view
        for name in names:
            view_id = name if name.isdigit() else name.removeprefix(".new-").partition(".")[0]
            with self._session.isolated(f"{directory}/{name}"):
                if view_id.isdigit() and int(view_id) not in seen and self._is_over(int(view_id)):
                    remove(directory, name)
                    self._removed += 1

    def _runs(self) -> list[Run]:
        found = []
        for name in filter(str.isdigit, names_in(self._session.paths.state)):
            with suppress(RunUnreadable):
                found.append(state.load(self._session.paths.state, int(name)))
        return [run for run in found if run]


def _job_is_over(slurmctld: Slurmctld, daemons: frozenset[int]) -> Callable[[int], bool]:
    """Return whether a job is certainly over, as a function that asks once for each job, and no more after a failure.

    No clear answer never means that a job is over.
    """
    is_silent = False

    @cache
    def is_over(job_id: int) -> bool:
        nonlocal is_silent
        if is_silent or job_id in daemons:
            return False
        try:
            job = slurmctld.job(job_id, after(QUERY_S))
        except LookUpFailed:
            is_silent = True
            return False
        return job is None or job.is_over

    return is_over
