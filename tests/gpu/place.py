"""An installation on this machine without Slurm, and jobs on it whose hooks are run by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster import installation
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree

JOBS = Path(__file__).with_name("jobs")
JOB_S = 900.0  # for one job
UID, USER = 64201, "warmstart-gpu"  # of the jobs; no account is needed
POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl,
         cache: {base}/constant/cache, scontrol: {base}/slurm/scontrol}}
store_user: daemon
import_user: bin
validate_user: sys
constant_path: namespace
site_label: gpu-suite
rules:
  - name: everyone
    profiles: [{profiles}]
"""
# What epilogs ask Slurm: how the job ended.
SQUEUE = """\
#!/bin/sh
for word; do
    case $word in --jobs=*) echo "${word#--jobs=}|COMPLETED|None|0:0|2026-01-01T00:00:00" ;; esac
done
"""
# A job's own variables, of those of who runs the suite: where programs and the driver's libraries are.
KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH", "LANG")


class JobFailed(Exception):
    """A job, or one of its hooks, ended with another status than 0."""


class Seen(NamedTuple):
    """What a job printed and what the hooks said of it."""

    report: dict[str, Any]  # as in jobs/report.py
    seeded: int  # entries
    ways: tuple[str, ...]  # overlay, extraction
    harvested: int  # entries
    rejected: dict[str, int]  # entries by reason


class Place:
    """The installation. Its directory goes at the end."""

    def __init__(self, base: Path, prefix: Path) -> None:
        """Use the installation at `prefix` in the empty directory `base`, which only root can change."""
        self.base, self.prefix = base, prefix
        self._next_id = 1
        for name in ("audit", "constant", "slurm", "home", "store"):
            (base / name).mkdir()
        shutil.chown(base / "store", "daemon")
        for name, text in (("scontrol", "#!/bin/sh\n"), ("squeue", SQUEUE)):
            (base / "slurm" / name).write_text(text)
            (base / "slurm" / name).chmod(0o755)
        shutil.copytree(JOBS, base / "jobs", ignore=shutil.ignore_patterns("__pycache__"))

    def give(self, profiles: Sequence[str]) -> None:
        """Give jobs these profiles, with an empty store."""
        shutil.rmtree(self.base / "store")
        (self.base / "store").mkdir()
        shutil.chown(self.base / "store", "daemon")
        installation.write_policy(self.prefix, POLICY.format(base=self.base, profiles=", ".join(profiles)))

    def job(self, program: Sequence[str], node: str, *, shown: bool) -> Seen:
        """Run a Python job on a node, with the cache at the constant path if it is `shown` there.

        Raises:
            JobFailed: The job or a hook failed.
        """
        job_id, self._next_id = self._next_id, self._next_id + 1
        slurm = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": str(UID),
            "SLURM_JOB_GID": str(UID),
            "SLURM_JOB_USER": USER,
            "SLURMD_NODENAME": node,
        }
        self._hook("prolog", slurm)
        try:
            with _namespace() if shown else _no_namespace() as (namespace, enter):
                if shown:
                    self._hook("job-container", {**slurm, "SLURM_NS": namespace})
                report = self._run(program, slurm, enter)
        finally:
            self._hook("epilog", slurm)
        return self._seen(job_id, report)

    def _hook(self, hook: str, slurm: Mapping[str, str]) -> None:
        done = _run([str(self.prefix / "libexec/warmstart" / hook)], dict(slurm))
        if done.returncode != 0 or done.stderr:
            raise JobFailed(f"{hook}: status {done.returncode}: {done.stderr.strip()[-300:]}")

    def _run(self, program: Sequence[str], slurm: Mapping[str, str], enter: Sequence[str]) -> dict[str, Any]:
        told = {name: slurm[name] for name in ("SLURM_JOB_ID", "SLURMD_NODENAME")}
        as_user = [*enter, "/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        printed = _run([*as_user, str(self.prefix / "libexec/warmstart/task-prolog")], told).stdout.splitlines()
        lines = (line.removeprefix("export ") for line in printed if line.startswith("export "))
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        # A home of its own: a tool that keeps a cache there would hit without us.
        home = self.base / "home" / slurm["SLURM_JOB_ID"]
        home.mkdir(mode=0o700)
        os.chown(home, UID, UID)
        own = {"HOME": str(home), "USER": USER, "LOGNAME": USER}
        variables = {**kept, **own, **told, **dict(line.split("=", 1) for line in lines)}
        script, *arguments = program
        done = _run([*as_user, sys.executable, str(self.base / "jobs" / script), *arguments], variables)
        found = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not found:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise JobFailed(f"status {done.returncode}: {words[-1][:300] if words else 'it printed nothing'}")
        report: dict[str, Any] = json.loads(found[-1])
        return report

    def _seen(self, job_id: int, report: dict[str, Any]) -> Seen:
        done = _run([str(self.prefix / "bin/warmstart"), "audit", "--job", str(job_id), "--json"], {})
        events = [json.loads(line) for line in done.stdout.splitlines()]
        seeded = [event for event in events if event["event"] == "cache.seeded"]
        rejected: dict[str, int] = {}
        for event in events:
            for reason, count in event["reasons"].items() if event["event"] == "entry.rejected" else ():
                rejected[reason] = rejected.get(reason, 0) + count
        return Seen(
            report,
            sum(event["entries"] for event in seeded),
            tuple(sorted({event["way"] for event in seeded})),
            sum(event["entries"] for event in events if event["event"] == "cache.harvested"),
            rejected,
        )


@contextmanager
def a_place() -> Iterator[Place]:
    """Install this checkout below a new directory, and give the place. Raises `RuntimeError`: it cannot be."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-gpu-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        installation.install(base / "prefix", *_own_python())
        yield Place(base, base / "prefix")
    finally:
        with opened_dir(str(base.parent)) as parent:
            remove_tree(parent, base.name, after(60))


def _own_python() -> list[str]:
    """Return make's settings for an installation with this Python: a venv of its own may need a network."""
    has_pip = all(Path(sys.prefix, "bin", name).exists() for name in ("python", "pip"))
    return [f"PYTHON={sys.executable}", *([f"VENV={sys.prefix}"] if has_pip else [])]


def can_show() -> bool:
    """Return whether this machine has mount namespaces, without which nothing is at a constant path."""
    return _run(["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/true"], {}).returncode == 0


@contextmanager
def _namespace() -> Iterator[tuple[str, list[str]]]:
    """Give a job's mount namespace, as job_container makes one, and the words before a command in it."""
    argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "echo; read end"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        namespace = f"/proc/{holder.pid}/ns/mnt"
        yield namespace, ["/usr/bin/nsenter", f"--mount={namespace}"]
        holder.communicate("\n")


@contextmanager
def _no_namespace() -> Iterator[tuple[str, list[str]]]:
    yield "", []


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, errors="replace", check=False, cwd="/", timeout=JOB_S
    )
