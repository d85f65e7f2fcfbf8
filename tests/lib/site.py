"""A whole site for tests and the demo: accounts, a store, an installation of warmstart, and a policy in force."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lib import command_line, installation, mounts, processes
from tests.lib.accounts import ALICE, STORE
from tests.lib.cluster import Cluster, JobResult
from tests.lib.last_lines import Found, LastLines
from tests.lib.numba_entries import numba_entries
from warmstart.paths import Installation

_JOBS = Path(__file__).resolve().parents[1] / "tools" / "jobs"

POLICY = """\
version: 1
paths:
  workspace: {workspace}
  store: {store}
  cache: {cache}
  audit: {base}/audit/audit.jsonl
  metrics: {base}/metrics
store_user: warmstart
import_user: warmstart-import
validate_user: warmstart-validate
constant_path: {constant}
images:
  registries: ["http://{registry}"]
  wait: 60s
  tag_ttl: 24h
{rules}
"""
RULES = """\
rules:
  - name: everyone
    profiles: [numba, inductor]
    scope: user
"""


class Site(LastLines):
    """An installation of warmstart in a running cluster."""

    def __init__(
        self,
        cluster: Cluster,
        registry: str = "registry.invalid",
        store: Path | None = None,
        install: Callable[[Path], None] = installation.install,
    ) -> None:
        """Install warmstart with `install` and write a policy. `registry` is the one that the policy allows."""
        self.cluster = cluster
        self.registry = registry
        self.store = store or cluster.base / "store"
        self.jobs = cluster.base / "jobs"
        if not self.jobs.is_dir():
            shutil.copytree(_JOBS, self.jobs, ignore=shutil.ignore_patterns("__pycache__"))
            for name, content in (file for entry in numba_entries(901, 902).values() for file in entry.items()):
                target = self.jobs / "entries" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            self.new_store(self.store)
            self.metrics.mkdir()
            install(cluster.prefix)
        self.write_policy()

    def new_store(self, path: Path) -> Path:
        """Make an empty directory that belongs to the store's owner."""
        owner = self.cluster.account("warmstart")
        path.mkdir(exist_ok=True)
        os.chown(path, owner.uid, owner.gid)
        return path

    @contextmanager
    def squashed_store(self, name: str) -> Iterator[tuple[Path, Path]]:
        """Yield an empty store that refuses all uids but its owner's, and the same directory unsquashed."""
        base = self.cluster.base
        source = self.new_store(base / f"{name}.source")
        with mounts.squashed(base, source, base / f"{name}.store", self.cluster.account(STORE)) as target:
            try:
                os.listdir(target)
            except PermissionError:
                yield target, source
            else:
                raise RuntimeError(f"{target} does not refuse root")
            self.cluster.wait_idle()

    @contextmanager
    def full_node_cache(self, node: str) -> Iterator[None]:
        """Let a node have no space for bundles."""
        with mounts.tmpfs(self.var / node / "bundles", "4k") as place:
            place.chmod(0o700)
            yield

    def write_policy(self, rules: str = RULES, **changes: str) -> None:
        """Write a policy. `rules` is its end, from `rules:` on, or any further keys."""
        base = self.cluster.base
        paths = {"base": base, "workspace": self.workspace, "store": self.store, "cache": self.constant}
        fields = {"registry": self.registry, "constant": "none", "rules": rules}
        text = POLICY.format(**{**paths, **fields, **changes})
        installation.write_policy(self.cluster.prefix, text)

    @property
    def constant(self) -> Path:
        """The policy's constant path. Caches appear there only if the policy and Slurm are set up for it."""
        return self.cluster.base / "constant"

    @property
    def workspace(self) -> Path:
        """The default policy's directory for jobs' workspaces."""
        return self.cluster.base / "workspace"

    @property
    def metrics(self) -> Path:
        """The directory in which maintenance writes metrics."""
        return self.cluster.base / "metrics"

    @property
    def etc(self) -> Path:
        """The directory of the policy and the `off` switch."""
        return Path(Installation(str(self.cluster.prefix)).etc)

    @property
    def var(self) -> Path:
        """The directory of warmstart's state that lasts."""
        return Path(Installation(str(self.cluster.prefix)).var)

    def runtime(self, node: str) -> Path:
        """Return where this process finds the state of a node's runs; of all nodes' for ""."""
        return Path(Installation(str(self.cluster.prefix)).runtime, node, node)

    def audit(self, *filters: str) -> list[dict[str, Any]]:
        """Return the audit events that `warmstart audit --json` prints for these filters; no process is started."""
        done = command_line.run(Installation(str(self.cluster.prefix)), "audit", "--json", *filters)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def lines(self, job: int = 0) -> Found:
        """Return all lines of a job, or of all jobs."""
        return self.audit(*(("--job", str(job)) if job else ()))

    def events(self, job_id: int, event: str) -> list[dict[str, Any]]:
        """Return a job's events of one kind."""
        return self.audit("--job", str(job_id), "--event", event)

    def command(
        self, *arguments: str, env: Mapping[str, str] | None = None, node: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run the installed command line as root, with only these variables; on `node`, or the one of `--node`."""
        if not node and "--node" in arguments:
            node = arguments[arguments.index("--node") + 1]
        program = self.cluster.prefix / "bin" / "warmstart"
        argv: list[str | Path] = [*(self.cluster.enter(node) if node else ()), program, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=env or {})

    def background(self, kind: str, *nodes: str) -> None:
        """Do on each node, or some, what waits there of a kind, as systemd's timers have it done."""
        program = self.cluster.prefix / "libexec/warmstart/background"
        known = Installation(str(self.cluster.prefix)).nodes()
        for node in nodes or filter(self.cluster.nodes.__contains__, known):
            argv = [*self.cluster.enter(node), str(program), kind, node]
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), done

    def elsewhere(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a user of a host with the installation and the store, on which no job has run."""
        account = self.cluster.account(user)
        ids = [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups", "--inh-caps=-all"]
        command = shlex.join(["setpriv", *ids, str(self.cluster.prefix / "bin/warmstart"), *words])
        argv = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o mode=755 none {self.var} && cd / && exec {command}"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    def compile_job(self, tool: str, user: str, node: str, *arguments: str, python: str = "") -> int:
        """Submit a sample job on one node; returns its id.

        `tool`: the TOOL of tests/tools/jobs/TOOL_job.py, and after a blank its argument. `arguments`: sbatch's.
        `python`: the interpreter that has the tool; the tests' own without one.
        """
        name, _, argument = tool.partition(" ")
        script = f"#!/bin/sh\nexec {python or self.cluster.python} {self.jobs}/{name}_job.py {argument}\n"
        options = (f"--nodelist={node}", f"--job-name={name}", "--cpus-per-task=2")
        return self.cluster.submit(script, user, *options, *arguments)

    def variables(self, job_id: int, user: str = ALICE, node: str = "n1", **more: str) -> dict[str, str]:
        """Return the variables that a hook needs of those that Slurm sets, and `more`."""
        account = self.cluster.account(user)
        return {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": str(account.uid),
            "SLURM_JOB_GID": str(account.gid),
            "SLURM_JOB_USER": user,
            "SLURMD_NODENAME": node,
            **more,
        }

    def start_hook(
        self, hook: str, variables: Mapping[str, str], prefix: Path | None = None, *, session: bool = False
    ) -> subprocess.Popen[str]:
        """Start a hook by hand, as root, with only these variables (`env -i`); in a `session` of its own as slurmd."""
        program = (prefix or self.cluster.prefix) / "libexec" / "warmstart" / hook
        pipe = subprocess.PIPE
        node = variables.get("SLURMD_NODENAME", "")
        return subprocess.Popen(
            [*(self.cluster.enter(node) if node in self.cluster.nodes else ()), program],
            env=dict(variables), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd="/",
            start_new_session=session,
        )  # fmt: skip

    def run_hook(
        self, hook: str, variables: Mapping[str, str], prefix: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a hook by hand to its end; see `start_hook`."""
        with self.start_hook(hook, variables, prefix) as process:
            stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def finish(self, job_id: int, deadline_s: float = 240) -> JobResult:
        """Wait until a job has ended, and no hook and nothing in the background runs."""
        ended = self.cluster.wait(job_id, deadline_s)
        self.cluster.wait_idle()
        self.wait_imports()
        return ended

    def imports(self) -> list[int]:
        """Return the pids of this installation's background imports, without those that they forked."""
        found = {pid for pid, (kind, *_, key) in self._background().items() if kind == b"imports" and b"." in key}
        parents = processes.parents()  # looked at last: what began meanwhile is no import of `found`
        return [pid for pid in found & parents.keys() if parents[pid] not in found]

    def _background(self) -> dict[int, list[bytes]]:
        """Return the arguments of all processes of this installation that work in the background."""
        program, found = f"{self.cluster.prefix}/libexec/warmstart/background".encode(), {}
        for pid in processes.parents():
            arguments = processes.arguments(pid)
            if program in arguments:
                found[pid] = arguments[arguments.index(program) + 1 : -1]
        return found

    def wait_imports(self, deadline_s: float = 60) -> None:
        """Wait until nothing of this installation works in the background."""
        processes.wait_until("the end of all imports", lambda: not self._background(), deadline_s)

    def forget_imports(self) -> None:
        """Remove the requests that maintenance would still start, and notes of failures."""
        for path in (*self.runtime("").glob("*/*/imports/*"), *self.runtime("").glob("*/*/queue/imports/*")):
            path.unlink()

    def on_host(self, node: str, path: str | Path) -> Path:
        """Return where this process finds what a node's jobs have at a path, which may be in the workspace."""
        place = Path(path)
        own = place.is_relative_to(self.workspace)
        return self.workspace / node / place.relative_to(self.workspace) if own else place

    def view(self, node: str, job_id: int | str) -> Path:
        """Return where this process finds the view that a node has of a job."""
        return self.runtime(node).parent / "view" / str(job_id)

    def runs(self, node: str = "n1") -> list[str]:
        """Return the names of what lies in a node's workspaces."""
        return os.listdir(self.workspace / node)

    def mounted(self) -> list[str]:
        """Return the mount points of jobs: below the workspaces of the nodes, each of which is one itself."""
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        nodes = {f"{self.workspace}/{node}" for node in self.cluster.nodes}
        return [point for point in points if point.startswith(f"{self.workspace}/") and point not in nodes]

    def leftovers(self) -> list[str]:
        """Return leftovers of jobs on the nodes: workspaces, records, views, stages, imports."""
        found = []
        for node in self.cluster.nodes:
            places = [self.cluster.base / "workspace" / node]
            places += [self.view(node, ""), self.runtime(node) / "state", self.var / node / "stage"]
            for place in places:
                names = os.listdir(place) if place.is_dir() else []
                found += [f"{place}/{name}" for name in names]
        return found


def result(output: str) -> dict[str, Any]:
    """Return the result that a sample job printed, its last JSON line."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise AssertionError(f"the job printed no result:\n{output}")
    value: dict[str, Any] = json.loads(lines[-1])
    return value
