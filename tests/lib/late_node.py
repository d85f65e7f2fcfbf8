"""A node of a site with runs whose epilogs have no time for a harvest. No Slurm, but needs root."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lib.node import NODE, Node
from tests.lib.numba_entries import numba_entries, write_as
from tests.lib.runs import a_run
from warmstart.audit.log import Log
from warmstart.ending.release import release
from warmstart.ending.waiting import ENDINGS
from warmstart.host.deadline import after
from warmstart.policy.current import current_policy
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.run.state import Run, Seeded
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.store.client import StoreClient

Entries = dict[str, dict[str, bytes]]


class LateNode(Node):
    """A node whose epilogs have no time, unless a test gives them some."""

    def __init__(self, base: Path, more: str = "", name: str = NODE) -> None:
        super().__init__(base, more, name)
        for path, mode in ((self.paths.state, 0o700), (self.paths.view, 0o711), (self.paths.stage, 0o700)):
            os.makedirs(path, mode=mode, exist_ok=True)
        self.workspace = base / ("workspace" if name == NODE else f"workspace.{name}")
        self.workspace.mkdir()

    def run_of(self, number: int, entries: Entries | None = None) -> Run:
        """Make a run with its record and new entries, by default one."""
        record = a_run(
            job_id=number,
            view_id=number,
            run_id=f"{number:08x}",
            restarts=number,  # so that it has one name in all places
            node=self.name,
            workspace=str(self.workspace),
            publish_scope="user-1-a",
            seeded={"numba": Seeded("ns", [])},
            path="/x",
        )
        os.makedirs(f"{self.paths.state}/{number}", mode=0o700, exist_ok=True)
        runs.save(self.paths.state, record)
        for name in ("tmp", "cache/numba"):
            os.makedirs(f"{record.directory}/{name}")
        Path(record.directory, record.mark).touch()
        write_as(record.uid, record.gid, Path(record.directory, "cache/numba"), entries or numba_entries(number))
        return record

    def epilog(self, run: Run, budget: float = 0.0) -> list[str]:
        """End a run as its epilog does. Return the codes of its errors."""
        policy, before = current_policy(self.installation, keep=True).policy, len(self.failures())
        audit = Log(self.policy.paths.audit, {"hook": "epilog", "run_id": run.run_id, "node": self.name})
        locked = runs.job_lock(self.paths.state, run.job_id, after(1))
        store = StoreClient(self.owner, policy.paths.store, run.name)
        with locked:
            release(Context(policy, self.paths, run, audit, after(30), store), harvest.Options(budget))
            audit.finish()
        return [str(failure["code"]) for failure in self.failures()[before:]]

    def waiting(self) -> list[str]:
        """Return the runs that wait."""
        return sorted(item.key for item in Queue(self.paths, ENDINGS).all())

    def later(self, seconds: int) -> None:
        """Have the next attempts begin so many seconds later."""
        queue = Queue(self.paths, ENDINGS)
        for item in queue.all():
            later = item._replace(due=item.due + seconds)
            os.rename(f"{queue.directory}/{item.name}", f"{queue.directory}/{later.name}")

    def left(self) -> list[str]:
        """Return the runs' directories and the contents of the jobs' state."""
        return sorted([*os.listdir(self.workspace), *os.listdir(self.paths.state), *os.listdir(self.paths.stage)])

    def maintain(self, status: int = 0) -> None:
        """Maintain the node."""
        assert self.command("maintain", "--node", "n1").exit_code == status

    def dropped(self) -> dict[str, str]:
        """Return which runs were dropped, with the reason."""
        return {event["run"]: event["reason"] for event in self.events("harvest.dropped")}
