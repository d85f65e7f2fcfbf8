"""Jobs of a `Node` between their prolog and their epilog: each has a shell, and several can be at work in any order."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lib import accounts, installation
from tests.lib.accounts import ALICE
from tests.lib.last_lines import Found, LastLines
from tests.lib.node import OWN_JOBS, POLICY, Node
from tests.lib.processes import SETPRIV
from tests.lib.runs import a_job

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = count(OWN_JOBS + 1000)


def with_rules(base: Path, rules: str) -> Node:
    """Return a node whose policy ends with these rules, or with any further keys before them."""
    node = Node(base, text=POLICY.partition("rules:")[0])
    write_rules(node, rules)
    return node


def write_rules(node: Node, rules: str) -> None:
    """Have other rules in force."""
    text = POLICY.partition("rules:")[0].format(base=node.base)
    installation.write_policy(node.base, f"{text}{rules}")


class NodeJob(LastLines):
    """A job whose prolog has run."""

    def __init__(self, node: Node, user: str, host: str, **changes: str) -> None:
        uid = accounts.UIDS[user]
        self.node = node
        self.job = a_job(id=next(_NUMBERS), user=user, uid=uid, gid=uid, node=host, nodelist=host, **changes)
        self._hook("prolog")
        environment = Path(node.installation.node(host).view, str(self.job.id), "environment")
        lines = environment.read_text().splitlines()[3:] if environment.exists() else []
        self.variables = dict(line.removeprefix("!").split("=", 1) for line in lines)

    def _hook(self, name: str) -> None:
        done = self.node.run(name, self.job)
        assert done.status == 0, done.stderr

    def place(self, name: str) -> Path:
        """Return where a variable leads to."""
        return Path(self.variables[name])

    def run(self, script: str) -> str:
        """Run a shell script as the job's user, with the job's variables; return what it prints."""
        ids = [f"--reuid={self.job.uid}", f"--regid={self.job.gid}", "--clear-groups"]
        environment = {"PATH": os.defpath, "PYTHONFAULTHANDLER": "1", **self.variables}
        argv = [SETPRIV, *ids, "--", "/bin/sh", "-euc", script]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment, cwd="/", timeout=300)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def end(self) -> None:
        """Run the epilog, and what it leaves to the background."""
        self._hook("epilog")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return its events of a name."""
        return self.node.events(name, self.job.id)

    def lines(self, job: int = 0) -> Found:
        """Return its lines."""
        return self.node.lines(job or self.job.id)

    def by_profile(self, field: str) -> dict[str, Any]:
        """Return a field of what is logged of the harvest of each profile."""
        return {cache["profile"]: cache[field] for cache in self.harvested() if field in cache}

    def rejected(self) -> dict[str, int]:
        """Return what the epilog turned away, by reason."""
        counts: dict[str, int] = {}
        for cache in self.caches():
            counts.update(cache.get("rejected", {}))
        return counts

    def explained(self) -> str:
        """Return what `explain` says, in one line."""
        return " ".join(self.node.command("explain", str(self.job.id)).stdout.split())


@contextmanager
def a_run(node: Node, host: str = "n1", *, user: str = ALICE, **changes: str) -> Iterator[NodeJob]:
    """Give a job on one of the hosts n1 and n2; its epilog runs at the end of the `with`."""
    job = NodeJob(node, user, host, **changes)
    try:
        yield job
    finally:
        job.end()
