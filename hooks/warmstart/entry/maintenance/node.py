"""Maintenance of one node: finishes what its hooks left for later, and what dead hooks left (docs/maintenance.md).

One run for each node at a time; the lock is the node's own directory. Each part is done whatever became of the others.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart import record as records
from warmstart.audit import events
from warmstart.entry import unfinished
from warmstart.entry.maintenance.session import STORE_SECONDS, MaintenanceSession, maintenance_session
from warmstart.entry.orphans import Orphans
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host import files, process
from warmstart.host.deadline import after
from warmstart.host.files import DIRECTORY, opened_dir
from warmstart.images import scratch, user_import
from warmstart.images.client import ImageStoreClient
from warmstart.paths import Installation
from warmstart.seed import node_cache
from warmstart.slurm import commands
from warmstart.steps import spool

IONICE = "/usr/bin/ionice"
SPOOL_SECONDS = 600.0
MOST_QUESTIONS = 200  # to the controller, for each node and run


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
        finished = unfinished.finish_deferred(self._run, records.boot_id())
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
        if not files.try_take(fd):
            raise MaintenanceBusy(what=f"on node {node}")
        yield
    finally:
        os.close(fd)
