"""An installation whose accounts are all whoever runs the tests: hooks, maintenance, commands, without root."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.lib import command_line
from tests.lib.alone import run_alone
from tests.lib.runs import a_policy
from warmstart import session as sessions
from warmstart.host import process
from warmstart.paths import Installation, NodePaths
from warmstart.policy import compiled, match
from warmstart.policy.compiled import Limits, Policy, Rule
from warmstart.record import incarnation
from warmstart.seed import overlay
from warmstart.seed.overlay import OverlayUnavailable, Shown
from warmstart.slurm import commands
from warmstart.store import bundles
from warmstart.store.client import StoreClient

NODE = "n1"
SCOPE = f"user-{os.getuid()}-ws-alice"
NUMBA = Rule("everyone", "policy.yaml:1", (), (), ("numba",), "", (), {}, ())


class OsAs:
    """The module `os` for a module that asks who runs it."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever os has
        return getattr(os, name)

    def geteuid(self) -> int:
        """Say what the test wants."""
        return self._uid


class EntrySite:
    """An installation below a directory, with a store and a node of that job 7 runs on."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.patch = monkeypatch
        self.installation = Installation(str(root))
        self.store = root / "store"
        self.store.mkdir()
        self.write(a_policy(root, rules=(NUMBA,), limits=Limits(0)))
        monkeypatch.setattr(sessions, "os", OsAs(0))
        monkeypatch.setattr(process, "run_alone", run_alone)
        monkeypatch.setattr(match, "_exclusion", lambda _policy, _job: "")  # the job's uid is that of the accounts
        monkeypatch.setattr(commands, "with_daemons", frozenset)
        monkeypatch.setattr(overlay, "show", self._refuse)
        self.environ(SLURM_JOB_ID="7", SLURM_JOB_PARTITION="main", SLURM_JOB_NODELIST=NODE, SLURM_CLUSTER_NAME="test")
        self.environ(SLURM_JOB_UID=str(os.getuid()), SLURM_JOB_GID=str(os.getgid()), SLURM_JOB_USER="ws-alice")
        self.environ(SLURMD_NODENAME=NODE)

    @staticmethod
    def _refuse(*_: object) -> Shown:
        """Be a kernel that can't mount."""
        raise OverlayUnavailable(profile="numba", problem="none here")

    def environ(self, **variables: str) -> None:
        """Set variables of a hook."""
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def write(self, policy: Policy) -> None:
        """Have this policy in force."""
        self.policy = policy
        for directory in (self.installation.etc, self.installation.var):
            os.makedirs(directory, exist_ok=True)
        path = Path(self.installation.compiled_policy)
        path.write_bytes(compiled.encode(policy))
        path.chmod(0o600)

    @property
    def paths(self) -> NodePaths:
        """The node's directories."""
        return self.installation.node(NODE)

    def client(self) -> StoreClient:
        """Return a client of the store."""
        return StoreClient(self.policy.store_user, str(self.store), "n1-test")

    def command(self, *arguments: str) -> Result:
        """Run the command line."""
        return command_line.run(self.installation, *arguments)

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - JSON
        """Run the command line with --json; return what it printed."""
        return command_line.answer(self.installation, *arguments)

    def offered(self, scope: str = SCOPE, namespace: str = "ns") -> list[str]:
        """Return the entries that jobs of a scope are offered."""
        found = bundles.offers(str(self.store), [scope], "numba", namespace, "n1-test")
        return [entry for offer in found.offers for entry in offer.entries]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one name, in the audit log or still in a journal, in the order of their times."""
        files = [Path(self.policy.paths.audit), *sorted(self.root.glob("var/lib/warmstart/*/journal/*"))]
        lines = [line for path in files if path.exists() for line in path.read_text().splitlines()]
        found = [event for line in lines if (event := json.loads(line))["event"] == name]
        return sorted(found, key=_moment)


def _moment(event: dict[str, Any]) -> float:
    """Return an event's time; a journal has seconds, the log a text."""
    at = event["ts"]
    return at if isinstance(at, float) else datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


def this_boot() -> str:
    """Return this boot's id, as records have it."""
    return incarnation()
