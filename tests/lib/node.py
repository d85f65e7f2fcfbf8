"""One installation below one directory, with a store and the node n1: hooks, maintenance, commands. No Slurm.

Slurm's variables are set, and `scontrol` and `squeue` are scripts. Made as root, the store and imports have accounts of
their own, and hooks mount. Made with `as_me`, all accounts are whoever runs the tests, and nothing is mounted.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import Result

from tests.lib import command_line, judge, packed
from tests.lib.alone import run_alone
from tests.lib.faults import Done, Fault, Faults
from tests.lib.last_lines import Found, LastLines
from tests.lib.numba_entries import write_as
from tests.lib.runs import a_job, a_policy
from warmstart import session as sessions
from warmstart.audit.line import HOOK_FINISHED
from warmstart.caches.store import client, generations
from warmstart.caches.store.layout import Namespace
from warmstart.caches.store.listing import Listing
from warmstart.cli.maintain import maintain
from warmstart.entry import background, epilog, job_container, prolog
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.job import Job
from warmstart.paths import Installation, NodePaths
from warmstart.policy import keys, match
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Limits, Policy, Rule
from warmstart.queue import Queue
from warmstart.seed import node_cache
from warmstart.seed.overlay import OverlayUnavailable
from warmstart.slurm import commands
from warmstart.store.client import StoreClient

NODE = "n1"
SCOPE = f"user-{os.getuid()}-ws-alice"  # of the jobs of a node made with `as_me`
NUMBA = Rule("everyone", profiles=("numba",))
POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl, scontrol: {base}/scontrol}}
store_user: daemon
import_user: bin
validate_user: sys
rules:
  - name: everyone
    profiles: [numba]
"""
OWN_JOBS = 90_000_000
# The controller knows the jobs that have a file below `jobs`, with squeue's line; it is away while `down` is there.
SQUEUE = """\
[ ! -e {base}/down ] || exit 1
for word; do case $word in --jobs=*) job=${{word#*=}} ;; esac; done
cat {base}/jobs/$job 2>/dev/null || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
"""


class OsAs:
    """The module `os` for a module that asks who runs it."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever os has
        return getattr(os, name)

    def geteuid(self) -> int:
        """Say what the test wants."""
        return self._uid


def account(name: str) -> Identity:
    """Return an account of this host."""
    return Identity(name, *pwd.getpwnam(name)[2:4])


class Node(LastLines):
    """See the module. Several nodes of one installation have the same base, and other names."""

    def __init__(
        self,
        base: Path,
        more: str = "",
        name: str = NODE,
        *,
        text: str = POLICY,
        as_me: pytest.MonkeyPatch | None = None,
    ) -> None:
        """`text` is the policy, in which {base} stands for the directory, and `more` follows it."""
        self.base, self.name = base, name
        self.store, self.workspace = base / "store", base / "workspace"
        self.installation = Installation(str(base))
        self.store.mkdir(exist_ok=True)
        self._namespace: subprocess.Popen[bytes] | None = None
        if as_me is not None:
            self._be_me(as_me)
            return
        self.owner = account("daemon")
        os.chown(self.store, self.owner.uid, self.owner.gid)
        (base / "audit").mkdir(exist_ok=True)
        self.script("scontrol", "exit 0")
        self.script("squeue", SQUEUE.format(base=base))
        command_line.installed(base, text.format(base=base) + more)

    def _be_me(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.write(a_policy(self.base, rules=(NUMBA,), limits=Limits(0)))
        self.owner = self.policy.store_user
        patch.setattr(sessions, "os", OsAs(0))
        patch.setattr(process, "run_alone", run_alone)
        patch.setattr(match, "_exclusion", lambda _policy, _job: "")  # the job's uid is that of the accounts
        patch.setattr(commands, "with_daemons", frozenset)
        patch.setattr(node_cache, "mounted", _refuse)
        job = a_job(uid=os.getuid(), gid=os.getgid(), node=self.name, nodelist=self.name)
        self.environ(**self.variables(job))

    # The policy, and what surrounds the node.

    def environ(self, **variables: str) -> None:
        """Set variables of hooks that run in this process."""
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def write(self, policy: Policy) -> None:
        """Have this policy in force, which no file says."""
        for directory in (self.installation.etc, self.installation.var):
            os.makedirs(directory, exist_ok=True)
        path = Path(self.installation.compiled_policy)
        path.write_bytes(keys.encode(policy))
        path.chmod(0o600)
        self._written = policy

    @property
    def policy(self) -> Policy:
        """What is in force."""
        if hasattr(self, "_written"):
            return self._written
        return current_policy(self.installation, keep=True).policy

    @property
    def paths(self) -> NodePaths:
        """The node's directories."""
        return self.installation.node(self.name)

    def script(self, name: str, text: str) -> None:
        """Write a program of Slurm's."""
        path = self.base / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def knows(self, job_id: int, state: str = "RUNNING") -> None:
        """Add a job to those that the controller knows."""
        (self.base / "jobs").mkdir(exist_ok=True)
        (self.base / "jobs" / str(job_id)).write_text(f"{job_id}|{state}|normal|{job_id}|N/A|0|\n")

    # Programs.

    @property
    def domains(self) -> dict[str, str]:
        """The parts of the installation that a fault can be in."""
        names = {"policy": "etc", "state": "var", "runs": "run"}
        parts = ("store", "workspace", "audit", "policy", "state", "runs", "shelf")
        return {part: str(self.base / names.get(part, part)) for part in parts}

    def run(
        self,
        program: str | Callable[[], int],
        job: Job | None = None,
        *,
        fault: Fault | None = None,
        stop_at: int = 0,
        later: float = 0.0,
    ) -> Done:
        """Run a program of the node, or a function, for a job in a child, `later` by so many seconds.

        It has a `fault`, or is killed before its n-th call that changes something (`stop_at`).
        """
        variables = self.variables(job or a_job())
        if program == "job-container":
            variables["SLURM_NS"] = f"/proc/{self._held()}/ns/mnt"
        act = self.programs()[program] if isinstance(program, str) else program
        return Faults(self.domains, fault, stop_at).run(act, variables, later)

    def programs(self) -> dict[str, Callable[[], int]]:
        """Return the programs that run here, each as a function."""
        prefix = str(self.base)
        return {
            "prolog": lambda: prolog.main(prefix),
            "epilog": lambda: epilog.main(prefix),
            "job-container": lambda: job_container.main(prefix),
            "background": self._background,
            "maintain": lambda: self._maintain("--node", self.name),
            "maintain-store": lambda: self._maintain("--store"),
        }

    def _background(self) -> int:
        """Make the attempts that are due, in this process."""
        status = 0
        for name in background.kinds():
            kind = getattr(background.load(name), "KIND", None)
            try:
                keys = [item.key for item in Queue(self.paths, kind).due()] if kind else [""]
            except OSError:  # by a fault of a test's; the program's own look says so
                status, keys = 1, []
            status = max([status, *(background.main(str(self.base), [name, self.name, key]) for key in keys)])
        return status

    def _maintain(self, *arguments: str) -> int:
        maintain.main(args=list(arguments), obj=self.installation, standalone_mode=False)
        return 0

    def variables(self, job: Job) -> dict[str, str]:
        """Return what Slurm tells hooks of a job."""
        said = {"SLURM_JOB_COMMENT": job.comment} if job.comment else {}
        return {
            "SLURM_JOB_ID": str(job.id),
            "SLURM_JOB_UID": str(job.uid),
            "SLURM_JOB_GID": str(job.gid),
            "SLURM_JOB_USER": job.user,
            "SLURM_JOB_PARTITION": job.partition,
            "SLURM_JOB_NODELIST": job.nodelist,
            "SLURM_CLUSTER_NAME": job.cluster,
            "SLURMD_NODENAME": job.node,
            **said,
        }

    def _held(self) -> int:
        """Return a process in a mount namespace of its own, as a job's container has."""
        if self._namespace is None:
            argv = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private"]
            argv += ["sh", "-c", "echo made; exec sleep infinity"]
            self._namespace = subprocess.Popen(argv, stdout=subprocess.PIPE)
            assert self._namespace.stdout is not None
            assert self._namespace.stdout.readline() == b"made\n"
        return self._namespace.pid

    def close(self) -> None:
        """End its processes. A later job has a mount namespace of its own."""
        if self._namespace is not None:
            self._namespace.kill()
            self._namespace.communicate()
            self._namespace = None

    def command(self, *arguments: str) -> Result:
        """Run the command line in this process.

        Other tests run clusters on this host at the same time, whose jobs have small ids, too: of the step daemons that
        are found only those of ids from `OWN_JOBS` on count.
        """
        own = frozenset(job for job in commands.with_daemons() if job >= OWN_JOBS)
        with mock.patch.object(commands, "with_daemons", return_value=own):
            return command_line.run(self.installation, *arguments)

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - JSON
        """Run the command line with --json; return what it printed."""
        return command_line.answer(self.installation, *arguments)

    # What a job does, and what is there afterwards.

    def work(self, job: Job, entries: Mapping[str, dict[str, bytes]], profile: str = "numba") -> None:
        """Write entries into the job's cache, as the job."""
        (run,) = self.workspace.glob(f"{job.id}.*")
        write_as(job.uid, job.gid, run / "cache" / profile, dict(entries))

    def events(self, name: str = "", job: int = 0) -> list[dict[str, Any]]:
        """Return the log's lines of a name, or all, of a job, or all."""
        log = Path(self.policy.paths.audit)
        found = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
        return [line for line in found if name in ("", line["event"]) and job in (0, line.get("job_id"))]

    def result(self, hook: str, job: int = 0) -> dict[str, Any]:
        """Return the last line of a hook, the last time it ran; for a job, or for any."""
        return [line for line in self.events(HOOK_FINISHED, job) if line["hook"] == hook][-1]

    def lines(self, job: int = 0) -> Found:
        """Return the lines of a job, or of all jobs."""
        return self.events(job=job)

    def problems(self, job: int = 0, *, settled: bool = True) -> list[str]:
        """Return what the independent reader finds (`tests.lib.judge`): in the store, and of a job that is over.

        Unless `settled`, what a publisher left that died is not wrong.
        """
        found = judge.store_problems(self.store, settled=settled)
        if job:
            found += judge.node_problems(self.workspace, Path(self.paths.root), Path(self.paths.runtime), job)
            found += judge.shelf_problems(self.base / "shelf")
        return [problem.replace(str(self.base), "").lstrip("/") for problem in found]

    # The store.

    def client(self) -> StoreClient:
        """Return a client of the store."""
        return StoreClient(self.owner, str(self.store), "n1-test")

    def namespace(self, scope: str = "user-1-a") -> Namespace:
        """Return the namespace that `publish` uses."""
        return Namespace(str(self.store), scope, "numba", "ns")

    def directory(self, scope: str = "user-1-a") -> Path:
        """Return that namespace's directory."""
        return Path(self.namespace(scope).path)

    def publish(self, entries: packed.Entries, *, scope: str = "user-1-a", user: str = "a", uid: int = 1) -> str:
        """Publish a real bundle. Return its hash."""
        fd = packed.packed(self.base, entries)
        try:
            store = self.client()
            draft = packed.draft(entries, user, uid)
            return client.publish(store, self.namespace(scope), fd, draft, after(20), quota=0).sha256
        finally:
            os.close(fd)

    def listing(self, scope: str = "user-1-a", namespace: str = "ns", profile: str = "numba") -> Listing:
        """Return the newest listing, as the store's owner reads it."""
        store = self.client()
        return store.worker.run(after(20), generations.read, Namespace(store.path, scope, profile, namespace))

    def offered(self, scope: str = SCOPE, namespace: str = "ns") -> list[str]:
        """Return the entries that jobs of a scope are given, read by this process."""
        listing = generations.read(Namespace(str(self.store), scope, "numba", namespace))
        return [entry for names in listing.names for entry in names]

    def seen(self, scope: str = "user-1-a") -> dict[str, str]:
        """Return the bundle of each entry that jobs are given. Checks that every bundle is what its name says."""
        found, listing = dict[str, str](), self.listing(scope)
        store = self.client()
        for row, names in zip(listing.rows, listing.names, strict=True):
            fd = os.memfd_create("copy")
            try:
                files = client.fetch(store, self.namespace(scope), row, after(20), into=fd)
            finally:
                os.close(fd)
            assert files.keys() >= {*names}
            found.update(dict.fromkeys(names, row.sha256))
        return found


def _refuse(*_: object) -> list[int]:
    """Be a kernel that can't mount."""
    raise OverlayUnavailable(profile="numba", problem="none here")


def one(entry: str, data: bytes = b"x") -> dict[str, dict[str, bytes]]:
    """Return an entry with one file."""
    return {entry: {f"{entry}.nbi": data}}
