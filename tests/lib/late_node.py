"""A node of a site with runs whose epilogs have no time for a harvest. No Slurm, but needs root."""

from __future__ import annotations

import os
from pathlib import Path

from warmstart.harvest.deferred import HARVESTS

from tests.lib.left_runs import runs_left
from tests.lib.node import NODE, Node
from tests.lib.numba_entries import numba_entries, write_as
from tests.lib.runs import a_run, ran
from warmstart.audit.log import Log
from warmstart.host.deadline import after
from warmstart.policy.current import current_policy
from warmstart.run import state as runs
from warmstart.run.state import Run, Seeded
from warmstart.steps import harvest, release
from warmstart.steps.contract import Context
from warmstart.store.client import StoreClient

Entries = dict[str, dict[str, bytes]]
BOOT = runs.incarnation()


class LateNode(Node):
    """A node whose epilogs have no time, unless a test gives them some."""

    def __init__(self, base: Path, more: str = "", name: str = NODE) -> None:
        super().__init__(base, more, name)
        for path, mode in ((self.paths.state, 0o700), (self.paths.view, 0o711), (self.paths.stage, 0o700)):
            os.makedirs(path, mode=mode, exist_ok=True)
        self.workspace = base / ("workspace" if name == NODE else f"workspace.{name}")
        self.workspace.mkdir()

    def run_of(self, number: int, boot_id: str = BOOT, entries: Entries | None = None) -> Run:
        """Make a run with its record and new entries, by default one."""
        record = a_run(
            job_id=number,
            view_id=number,
            run_id=f"{number:08x}",
            restarts=number,  # so that it has one name in all places
            boot_id=boot_id,
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

    def epilog(self, record: Run, budget: float = 0.0) -> list[str]:
        """Run the steps of an epilog. Return the codes of its non-fatal errors."""
        policy = current_policy(self.installation, keep=True).policy
        audit = Log(self.policy.paths.audit, {"hook": "epilog", "run_id": record.run_id, "node": self.name})
        locked = runs.job_lock(self.paths.state, record.job_id, after(1))
        with StoreClient(self.owner, policy.paths.store, record.name) as store, locked:
            context = Context(policy, self.paths, record, audit, after(30), store)
            outcome = harvest.run(context, harvest.Options(budget, 1 << 30))
            context = context._replace(run=ran(outcome))
            runs.save(self.paths.state, context.run)
            release.run(context, release.Options())
            audit.finish()
        return [error.code for error in outcome.degraded]

    def waiting(self) -> list[str]:
        """Return the deferred harvests."""
        return [item.name for item in runs_left(self.paths, HARVESTS)]

    def left(self) -> list[str]:
        """Return the runs' directories and the contents of the jobs' state."""
        return sorted([*os.listdir(self.workspace), *os.listdir(self.paths.state), *os.listdir(self.paths.stage)])

    def maintain(self, status: int = 0) -> None:
        """Maintain the node."""
        assert self.command("maintain", "--node", "n1").exit_code == status

    def dropped(self) -> dict[str, str]:
        """Return which runs were dropped, with the reason."""
        return {event["run"]: event["reason"] for event in self.events("harvest.dropped")}
