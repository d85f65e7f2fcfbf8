"""Maintenance of one node: what its hooks left, and leftovers of dead ones (docs/operations/maintenance.md).

One run per node at a time, under a lock that only root can open. If a part fails, the other parts still run.

Orphans: a run of a job that is over is finished as its epilog would have done, or removed. The step daemons and the
controller (`slurm.slurmctld`) decide whether the job is over, never its user or a pattern. A run's directory that no
file names is of an earlier boot or pod, and is removed unless the job has a step daemon. Every removal is by descriptor
and ends at a mount. It holds the lock of the job's state directory, so no hook of the job runs at the same time.

It runs at idle priority, and may be killed at any point: the next run skips entries that are published, and an item
(`queue`) goes only when nothing of it is left.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple

from warmstart import plan
from warmstart.attempts import endings
from warmstart.audit import events
from warmstart.caches.store import gc
from warmstart.ending import release
from warmstart.ending.release import Orphan
from warmstart.ending.waiting import ENDINGS
from warmstart.entry import background
from warmstart.host import files, trusted
from warmstart.host.deadline import after
from warmstart.host.files import names_in, opened_dir, replace_file
from warmstart.images import notes, scratch, unpacking
from warmstart.images.imports import requests
from warmstart.maintenance.wings import of_wings
from warmstart.paths import Installation
from warmstart.policy import trust
from warmstart.queue import DONE, MORE, Queue, at_work
from warmstart.run import state
from warmstart.run.state import JobBusy, RunUnreadable
from warmstart.seed import eviction
from warmstart.seed.eviction import Keep
from warmstart.session import (
    STORE_SECONDS,
    MaintenanceBusy,
    Session,
    open_session,
    require_keeper,
)
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld
from warmstart.steps.contract import Context
from warmstart.store import barrier

FAILURES_KEPT_S = 3600.0  # of imports, for the hooks that wait for them
ABANDONED_S = 3600.0  # longer than any file takes to be written
PATIENCE_S = 600.0  # with a process that is at the runs that wait
MOST_QUERIES = 200  # to the controller, for one node
_LONGEST_PID = 20
_RUN = re.compile(r"(?P<run>(?P<job>\d{1,10})\.[0-9a-f]{8})")
_MARK = re.compile(re.escape(state.MARK) + _RUN.pattern)


class Report(NamedTuple):
    """Counts of what maintenance did on one node."""

    node: str
    finished: int = 0  # runs without an epilog
    ended: int = 0  # runs that waited to be harvested or removed
    removed: int = 0  # orphans: stages, workspaces and views
    pruned: int = 0  # bytes of bundle copies, and of unpacked images
    noted: int = 0  # uses recorded in the store: of bundles, and of images that steps got without a hook
    failed: tuple[str, ...] = ()  # the session's failures


def maintain_node(installation: Installation, node: str, slurm_conf: str) -> Report:
    """Do all maintenance of one node. `slurm_conf` is the path of slurm.conf, "" for Slurm's default.

    Raises `NodeOfAnotherPod`, `MaintenanceBusy` if another run holds the node's lock, and the errors of `open_session`.
    """
    with open_session(installation, "maintain", node) as session, _node_lock(session):
        require_keeper(session.paths, node)
        slurmctld = Slurmctld(Access(session.policy.paths.scontrol, slurm_conf, installation.slurm_libraries))
        return _NodeMaintenance(session, slurmctld, slurm_conf, installation).all()


@contextmanager
def _node_lock(session: Session) -> Iterator[None]:
    with files.opened_lock(session.paths.locks, "maintenance") as fd:
        if not files.try_flock(fd):
            holder = os.pread(fd, _LONGEST_PID, 0).decode("ascii", "replace") or "unknown"
            raise MaintenanceBusy(what=f"on node {session.node} (process {holder})")
        with suppress(OSError):  # a full disk; and overwritten before it is cut, it keeps its block
            os.ftruncate(fd, os.pwrite(fd, str(os.getpid()).encode(), 0))
        yield


def _job_is_over(slurmctld: Slurmctld, daemons: frozenset[int]) -> Callable[[int], bool]:
    """Return a predicate that is true for jobs that are certainly over.

    It caches the controller's answers, and sends no more queries after one that failed.
    """
    answers: dict[int, bool | None] = {}

    def is_over(job_id: int) -> bool:
        if job_id in daemons:
            return False
        if job_id not in answers:
            give_up = None in answers.values() or len(answers) >= MOST_QUERIES
            answers[job_id] = None if give_up else ask(job_id)
        return answers[job_id] is True

    def ask(job_id: int) -> bool | None:
        """Return None without a clear answer, which never means that a job is over."""
        try:
            job = slurmctld.job(job_id, after(QUERY_S))
        except LookUpFailed:
            return None
        return job is None or job.is_over

    return is_over


class _NodeMaintenance:
    """The parts of one node's maintenance. An error in one does not stop the others."""

    def __init__(self, session: Session, slurmctld: Slurmctld, slurm_conf: str, installation: Installation) -> None:
        self._session = session
        self._is_complete = True
        self._orphans = Orphans(session, slurmctld, slurm_conf)
        self._slurm_conf = slurm_conf
        self._installation = installation

    def all(self) -> Report:
        """Run every part."""
        orphans = self._orphans
        self._part("trust", self._trust)
        self._part("runs", orphans.finish_runs)
        self._part("boards", self._boards)
        self._part("leftovers", orphans.remove_leftovers)
        self._part("scratch", self._scratch)
        noted = self._part("uses", self._uses)
        pruned = self._part("copies", self._copies)
        self._part("temporaries", self._temporaries)
        for wing in of_wings():
            for name, act in wing.node.items():
                self._part(name, partial(act, self._session))
        # These last: users decide how long they take.
        ended = self._part("endings", self._endings)
        self._part("queue", self._queue)
        if self._is_complete:
            self._record_success()
        return Report(
            self._session.node,
            finished=orphans.finished,
            ended=ended,
            removed=orphans.removed,
            pruned=pruned,
            noted=noted,
            failed=tuple(map(str, self._session.failures)),
        )

    def _part(self, name: str, act: Callable[[], int | None]) -> int:
        done, is_complete = None, False
        with self._session.isolated(name):
            done = act()
            is_complete = True
        self._is_complete = self._is_complete and is_complete
        return done or 0

    def _record_success(self) -> None:
        """Record when every part got to its end, for doctor. The failure of one run's work does not count."""
        paths = self._session.paths
        with self._session.isolated("maintained"), opened_dir(paths.root) as fd:
            replace_file(fd, os.path.basename(paths.maintained), b"", 0o600, durable=False)

    def _trust(self) -> None:
        """Read what Slurm enforces. Raises `TrustUnproven` if that is less than the policy declares."""
        session = self._session
        enforcement = self._installation.enforcement
        trust.remember(session.policy, self._installation, self._slurm_conf)
        if problem := trust.problem(trust.proven(session.policy, enforcement)):
            raise problem

    def _endings(self) -> int:
        """End the runs that wait, whenever their next attempts would begin; return how many are ended."""
        session, done = self._session, 0
        queue = Queue(session.paths, ENDINGS)
        with at_work(session.paths, ENDINGS.name, PATIENCE_S) as is_ours:
            for item in queue.all() if is_ours else ():
                with session.isolated(f"run {item.key}", step=release.STEP):
                    while (outcome := background.attempt(session, endings, item.key)) == MORE:
                        continue
                    if outcome == DONE:
                        queue.drop(item.key)
                        done += 1
        return done

    def _queue(self) -> None:
        """Start the programs for what else is due, which takes longer than maintenance may."""
        session = self._session
        for kind in background.kinds():
            Queue(session.paths, background.load(kind).KIND).start_due()

    def _scratch(self) -> None:
        """Remove what dead imports left on the disk, and old notes of how imports failed."""
        session = self._session
        with suppress(FileNotFoundError), self._opened_workspaces() as fd:
            scratch.remove_abandoned(fd)
        requests.forget_failures(session.paths, FAILURES_KEPT_S)

    def _uses(self) -> int:
        session = self._session
        uses = eviction.uses(session.paths.bundles, session.store.path)
        recorded = session.store.worker.run(session.store_deadline(), gc.record_uses, uses) if uses else 0
        return recorded + self._notes()

    def _boards(self) -> None:
        """Keep the boards of jobs that run here: steps may meet there after a week."""
        session = self._session
        if runs := sorted({topic.partition("/")[0] for topic in self._orphans.topics}):
            session.store.run(session.store_deadline(), barrier.keep, runs)

    def _notes(self) -> int:
        """Record the uses of images that steps got without a hook (`images.notes`)."""
        session, recorded = self._session, 0
        with suppress(FileNotFoundError), self._opened_workspaces() as workspaces:
            for name in os.listdir(workspaces):
                with (
                    session.isolated(f"uses of {name}"),
                    suppress(FileNotFoundError, NotADirectoryError),
                    opened_dir(name, workspaces) as fd,
                ):
                    recorded += notes.collect(
                        fd, session.paths.uses, node=session.node, store=session.store, deadline=after(STORE_SECONDS)
                    )
        return recorded

    def _copies(self) -> int:
        session, paths = self._session, self._session.paths
        pruned = eviction.prune(paths.bundles, paths.layers, Keep.of(session.policy), time.time())
        for tree in unpacking.prune(session.policy, paths):
            session.audit.emit(events.IMAGE_TREE_EVICTED, **tree.as_audit(), reason="above images.unpack.keep")
            pruned += tree.about.bytes
        return pruned

    def _temporaries(self) -> None:
        """Remove the temporary files of writers that died."""
        installation, paths = self._installation, self._session.paths
        for directory in (
            installation.var,
            installation.metrics,
            paths.root,
            paths.bundles,
            paths.imports,
            *(f"{paths.queue}/{kind}" for kind in names_in(paths.queue)),
        ):
            files.remove_temporaries(directory, time.time() - ABANDONED_S)

    def _opened_workspaces(self) -> AbstractContextManager[int]:
        return trusted.opened_trusted(self._session.policy.paths.workspace, (0, os.geteuid()))


class Orphans:
    """Leftovers of jobs that are over: runs without an epilog, and directories without a run."""

    def __init__(self, session: Session, slurmctld: Slurmctld, slurm_conf: str) -> None:
        self._session = session
        self._daemons = commands.with_daemons()
        self._is_over = _job_is_over(slurmctld, self._daemons)
        self._slurm_conf = slurm_conf
        self.topics: list[str] = []  # of runs that are not over
        self.finished = 0  # runs
        self.removed = 0  # directories

    def finish_runs(self) -> None:
        """Harvest and release the runs whose epilog never ran, or was killed."""
        for name in names_in(self._session.paths.state):
            if name.isdigit():
                with self._session.isolated(f"run of job {name}"), suppress(JobBusy):
                    self._finish_run(int(name))

    def remove_leftovers(self) -> None:
        """Remove stages, workspaces and views without a run."""
        self._remove_stages()
        self._remove_workspaces()
        self._remove_views()

    def _finish_run(self, job_id: int) -> None:
        session = self._session
        if not self._may_be_finished(job_id):
            return
        with state.job_lock(session.paths.state, job_id, after(0)):
            run = state.load(session.paths.state, job_id)
            if run is None or not self._is_over(job_id):
                return
            audit = session.audit.for_job(**run.job_labels)
            audit.emit(events.RUN_ABANDONED)
            deadline = after(plan.epilog_budget(session.policy))
            context = Context(session.policy, session.paths, run, audit, deadline, session.store)
            failure = release.release(context, plan.to_harvest(session.policy, run, self._slurm_conf)).failure
            audit.finish(outcome="failed" if failure else "ok", run=run.name)
            if failure and state.load(session.paths.state, job_id):  # the run is not even in the queue
                session.failures.append(failure)
            else:
                self.finished += 1

    def _may_be_finished(self, job_id: int) -> bool:
        """Check without the lock, so that the hooks of a running job do not wait for it."""
        run = state.load(self._session.paths.state, job_id)
        if run is None or self._is_over(job_id):
            return True
        self.topics += run.all_topics
        return False

    def _remove_stages(self) -> None:
        directory = self._session.paths.stage
        for name in names_in(directory):
            if match := _RUN.match(name):
                self._end(Orphan(directory, name, int(match["job"]), match["run"]))

    def _remove_workspaces(self) -> None:
        directory, names = self._session.policy.paths.workspace, list[str]()
        with suppress(FileNotFoundError), trusted.opened_trusted(directory, (0, os.geteuid())) as fd:
            names = os.listdir(fd)
        for name in names:
            if match := _RUN.fullmatch(name.removeprefix(".")):
                marks = filter(None, map(_MARK.fullmatch, names_in(f"{directory}/{name}")))
                of = match if name[0] == "." else next(marks, None)
                self._end(Orphan(directory, name, int((of or match)["job"]), of["run"] if of else ""))

    def _end(self, orphan: Orphan) -> None:
        session = self._session
        with session.isolated(orphan.path), suppress(JobBusy):
            # A run that no file names is of an earlier boot or pod, unless its job still has a step here.
            is_over = self._has_no_step if orphan.run_name else self._is_over
            self.removed += release.end_orphan(session.paths, orphan, is_over)

    def _has_no_step(self, job_id: int) -> bool:
        return job_id not in self._daemons

    def _remove_views(self) -> None:
        directory = self._session.paths.view
        for name in names_in(directory):
            view_id = name if name.isdigit() else name.removeprefix(".new-").partition(".")[0]
            with self._session.isolated(f"{directory}/{name}"):
                if view_id.isdigit() and self._is_over(int(view_id)) and int(view_id) not in self._view_ids():
                    release.remove_orphan(directory, name)
                    self.removed += 1

    def _view_ids(self) -> set[int]:
        """Return the view ids of all jobs that have a run."""
        ids = set()
        for name in names_in(self._session.paths.state):
            with suppress(RunUnreadable):
                run = state.load(self._session.paths.state, int(name)) if name.isdigit() else None
                if run:
                    ids.add(run.view_id)
        return ids
