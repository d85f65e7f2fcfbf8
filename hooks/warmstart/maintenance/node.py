"""Maintenance of one node: what its hooks left, and leftovers of dead ones (docs/operations/maintenance.md).

One run per node at a time, under a lock that only root can open. If a part fails, the other parts still run. It runs at
idle priority, and may be killed at any point: the next run skips entries that are published, and an item (`queue`) goes
only when nothing of it is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple

from warmstart import wing
from warmstart.attempts import endings
from warmstart.audit import events
from warmstart.caches.store import gc
from warmstart.ending import release
from warmstart.ending.waiting import ENDINGS
from warmstart.entry import background
from warmstart.host import files, trusted
from warmstart.host.files import names_in, opened_dir, replace_file
from warmstart.images import notes, scratch, unpacking
from warmstart.images.imports import requests
from warmstart.keeper import require_keeper
from warmstart.maintenance.orphans import Orphans
from warmstart.paths import Installation
from warmstart.policy import trust
from warmstart.queue import DONE, MORE, Queue, at_work
from warmstart.seed import eviction
from warmstart.session import MaintenanceBusy, Session, open_session
from warmstart.store import barrier

FAILURES_KEPT_S = 3600.0  # of imports, for the hooks that wait for them
ABANDONED_S = 3600.0  # longer than any file takes to be written
PATIENCE_S = 600.0  # with a process that is at the runs that wait
_LONGEST_PID = 20


class Report(NamedTuple):
    """Counts of what maintenance did on one node."""

    node: str
    finished: int = 0  # runs without an epilog
    ended: int = 0  # runs that waited to be harvested or removed
    removed: int = 0  # orphans: stages, workspaces and views
    pruned: int = 0  # bytes of bundle copies, and of unpacked images
    failed: tuple[str, ...] = ()  # the session's failures


def maintain_node(installation: Installation, node: str, slurm_conf: str) -> Report:
    """Do all maintenance of one node. `slurm_conf` is the path of slurm.conf, "" for Slurm's default.

    Raises `NodeOfAnotherPod`, `MaintenanceBusy` if another run holds the node's lock, and the errors of `open_session`.
    """
    with open_session(installation, "maintain", node) as session, _node_lock(session):
        require_keeper(session.paths, node)
        return _NodeMaintenance(session, slurm_conf).all()


@contextmanager
def _node_lock(session: Session) -> Iterator[None]:
    with files.opened_lock(session.paths.locks, "maintenance") as fd:
        if not files.try_flock(fd):
            holder = os.pread(fd, _LONGEST_PID, 0).decode("ascii", "replace") or "unknown"
            raise MaintenanceBusy(what=f"on node {session.node} (process {holder})")
        with suppress(OSError):  # a full disk; and overwritten before it is cut, it keeps its block
            os.ftruncate(fd, os.pwrite(fd, str(os.getpid()).encode(), 0))
        yield


class _NodeMaintenance:
    """The parts of one node's maintenance. An error in one does not stop the others."""

    def __init__(self, session: Session, slurm_conf: str) -> None:
        self._session = session
        self._orphans = Orphans(session, slurm_conf)
        self._slurm_conf = slurm_conf

    def all(self) -> Report:
        """Run every part."""
        session, orphans = self._session, self._orphans
        wings = wing.with_part("node_maintenance")
        parts: dict[str, Callable[[], int | None]] = {
            "trust": self._trust,
            "runs": orphans.finish_runs,
            "boards": self._boards,
            "leftovers": orphans.remove_leftovers,
            "scratch": self._scratch,
            "uses": self._uses,
            "notes": self._notes,
            "copies": self._copies,
            "temporaries": self._temporaries,
            **{module: partial(wing.load(module).maintain, session) for module in wings},
            # These last: users decide how long they take.
            "endings": self._endings,
            "queue": self._queue,
        }
        done: dict[str, int] = {}
        for name, act in parts.items():
            with session.isolated(name):
                done[name] = act() or 0
        if len(done) == len(parts):
            self._record_success()
        return Report(
            session.node,
            finished=done.get("runs", 0),
            ended=done.get("endings", 0),
            removed=done.get("leftovers", 0),
            pruned=done.get("copies", 0),
            failed=tuple(map(str, session.failures)),
        )

    def _record_success(self) -> None:
        """Record when every part got to its end, for doctor. The failure of one run's work does not count."""
        paths = self._session.paths
        with self._session.isolated("maintained"), opened_dir(paths.root) as fd:
            replace_file(fd, os.path.basename(paths.maintained), b"", 0o600, durable=False)

    def _trust(self) -> None:
        """Read what Slurm enforces. Raises `TrustUnproven` if that is less than the policy declares."""
        policy, installation = self._session.policy, self._session.installation
        trust.remember(policy, installation, self._slurm_conf)
        if problem := trust.problem(trust.proven(policy, installation.enforcement)):
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

    def _uses(self) -> None:
        """Record in the store which bundles this node uses."""
        session = self._session
        if uses := eviction.uses(session.paths.bundles, session.store.path):
            session.store.worker.run(session.store_deadline(), gc.record_uses, uses)

    def _boards(self) -> None:
        """Keep the boards of jobs that run here: steps may meet there after a week."""
        session = self._session
        if runs := sorted({topic.partition("/")[0] for topic in self._orphans.topics}):
            session.store.run(session.store_deadline(), barrier.keep, runs)

    def _notes(self) -> None:
        """Record the uses of images that steps got without a hook (`images.notes`)."""
        session, known = self._session, self._session.paths.uses
        with suppress(FileNotFoundError), self._opened_workspaces() as workspaces:
            for name in os.listdir(workspaces):
                with (
                    session.isolated(f"uses of {name}"),
                    suppress(FileNotFoundError, NotADirectoryError),
                    opened_dir(name, workspaces) as fd,
                ):
                    deadline = session.store_deadline()
                    notes.collect(fd, known, node=session.node, store=session.store, deadline=deadline)

    def _copies(self) -> int:
        session, paths = self._session, self._session.paths
        pruned = eviction.prune(paths.bundles, paths.layers, eviction.keep_of(session.policy), time.time())
        for tree in unpacking.prune(session.policy, paths):
            session.audit.emit(events.IMAGE_TREE_EVICTED, **tree.as_audit(), reason="above images.unpack.keep")
            pruned += tree.about.bytes
        return pruned

    def _temporaries(self) -> None:
        """Remove the temporary files of writers that died."""
        installation, paths = self._session.installation, self._session.paths
        for directory in (
            installation.var,
            installation.metrics,
            paths.root,
            paths.bundles,
            *(f"{paths.queue}/{kind}" for kind in names_in(paths.queue)),
        ):
            files.remove_temporaries(directory, time.time() - ABANDONED_S)

    def _opened_workspaces(self) -> AbstractContextManager[int]:
        return trusted.opened_trusted(self._session.policy.paths.workspace, (0, os.geteuid()))
