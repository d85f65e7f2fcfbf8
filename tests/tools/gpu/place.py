"""An installation on this machine without Slurm, and jobs on it whose hooks are run by hand."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.lib import installation
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.remove import remove_tree

JOBS = Path(__file__).with_name("jobs")
HOOK_S = 120.0  # for one hook
UID, USER = 64220, "warmstart-gpu"  # of the jobs: no account is needed, and all its processes are ended
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
KEPT = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH", "LANG", "CC", "CXX",
    "CUDA_VISIBLE_DEVICES", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "XLA_FLAGS",
)  # fmt: skip
PROGRAMS = ("mksquashfs", "unsquashfs", "prlimit", "unshare", "nsenter", "setpriv", "make")
_LOGGED = 6000  # characters of each stream of a program


class JobFailed(Exception):
    """A job, or one of its hooks, ended with another status than 0."""


class Seen(NamedTuple):
    """What a job printed and what the hooks said of it."""

    report: dict[str, Any]  # as in jobs/report.py
    seeded: dict[str, int]  # entries by profile
    ways: tuple[str, ...]  # overlay, extraction
    harvested: dict[str, int]  # entries by profile
    rejected: dict[str, int]  # entries by reason


class Place:
    """The installation. Its directory goes at the end."""

    def __init__(self, base: Path, prefix: Path, log: Path = Path(os.devnull)) -> None:
        """Use the installation at `prefix` in the empty directory `base`, which only root can change.

        What programs print is added to `log`.
        """
        self.base, self.prefix, self.log = base, prefix, log
        self._next_id = 1
        for name in ("audit", "constant", "slurm", "home", "store"):
            (base / name).mkdir()
        shutil.chown(base / "store", "daemon")
        for name, text in (("scontrol", "#!/bin/sh\n"), ("squeue", SQUEUE)):
            (base / "slurm" / name).write_text(text)
            (base / "slurm" / name).chmod(0o755)
        shutil.copytree(JOBS, base / "jobs", ignore=shutil.ignore_patterns("__pycache__"))

    def give(self, profiles: Sequence[str]) -> None:
        shutil.rmtree(self.base / "store")
        (self.base / "store").mkdir()
        shutil.chown(self.base / "store", "daemon")
        installation.write_policy(self.prefix, POLICY.format(base=self.base, profiles=", ".join(profiles)))

    def job(self, program: Sequence[str], node: str, *, shown: bool, limit_s: float) -> Seen:
        """Run a Python job on a node, with the cache at the constant path if it is `shown` there.

        Raises:
            JobFailed: The job or a hook failed, or took too long.
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
                report = self._run(program, slurm, enter, limit_s)
        finally:
            _end_all(UID)
            self._hook("epilog", slurm)
        return self._seen(job_id, report)

    def _hook(self, hook: str, slurm: Mapping[str, str]) -> None:
        done = self._ran([str(self.prefix / "libexec/warmstart" / hook)], slurm, HOOK_S)
        if done.returncode != 0 or done.stderr:
            raise JobFailed(f"{hook}: status {done.returncode}: {done.stderr.strip()[-300:]}")

    def _run(
        self, program: Sequence[str], slurm: Mapping[str, str], enter: Sequence[str], limit_s: float
    ) -> dict[str, Any]:
        told = {name: slurm[name] for name in ("SLURM_JOB_ID", "SLURMD_NODENAME")}
        as_user = [*enter, "/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        printed = self._ran([*as_user, str(self.prefix / "libexec/warmstart/task-prolog")], told, HOOK_S).stdout
        lines = (line.removeprefix("export ") for line in printed.splitlines() if line.startswith("export "))
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        # A home of its own: a tool that keeps a cache there would hit without us.
        home = self.base / "home" / slurm["SLURM_JOB_ID"]
        home.mkdir(mode=0o700)
        os.chown(home, UID, UID)
        own = {"HOME": str(home), "USER": USER, "LOGNAME": USER}
        variables = {**kept, **own, **told, **dict(line.split("=", 1) for line in lines)}
        script, *arguments = program
        done = self._ran([*as_user, sys.executable, str(self.base / "jobs" / script), *arguments], variables, limit_s)
        found = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not found:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise JobFailed(f"status {done.returncode}: {words[-1][:300] if words else 'it printed nothing'}")
        report: dict[str, Any] = json.loads(found[-1])
        return report

    def _ran(
        self, argv: Sequence[str], environment: Mapping[str, str], limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end and log what it printed. Raises `JobFailed`: it was ended after `limit_s`."""
        began = time.monotonic()
        # Files, not pipes: what a job leaves running would keep a pipe open.
        with (
            tempfile.TemporaryFile("w+", errors="replace") as out,
            tempfile.TemporaryFile("w+", errors="replace") as err,
        ):
            with subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd="/"
            ) as process:
                try:
                    status: int | None = process.wait(limit_s)
                except subprocess.TimeoutExpired:
                    status = None
                    process.kill()
                    _end_all(UID)
            done = subprocess.CompletedProcess(argv, status or 0, _content(out), _content(err))
        ended = f"status {status}" if status is not None else "ended"
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(argv)}\n# {ended} after {time.monotonic() - began:.1f} s\n")
            log.write(f"{done.stdout[-_LOGGED:]}{done.stderr[-_LOGGED:]}")
        if status is None:
            raise JobFailed(f"{Path(argv[-1]).name}: it was ended after {limit_s:.0f} s")
        done.returncode = status
        return done

    def _seen(self, job_id: int, report: dict[str, Any]) -> Seen:
        argv = [str(self.prefix / "bin/warmstart"), "audit", "--job", str(job_id), "--json"]
        events = [json.loads(line) for line in self._ran(argv, {}, HOOK_S).stdout.splitlines()]
        rejected: dict[str, int] = {}
        caches = [item for event in events for item in event.get("caches", {}).items()]
        seeded = [(name, cache) for name, cache in caches if cache.get("warm")]
        harvested = [(name, cache) for name, cache in caches if "warm" not in cache]
        for _, cache in harvested:
            for reason, count in cache.get("rejected", {}).items():
                rejected[reason] = rejected.get(reason, 0) + count
        ways = sorted({cache["way"] for _, cache in seeded})
        return Seen(report, _entries(seeded), tuple(ways), _entries(harvested), rejected)


def _entries(caches: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, int]:
    """Return how many entries there are, by profile, without those of none."""
    found: dict[str, int] = {}
    for name, cache in caches:
        if cache.get("entries"):
            found[name] = found.get(name, 0) + cache["entries"]
    return found


def lacking() -> list[str]:
    """Return what the suite needs and this machine has not, in words."""
    absent = [name for name in PROGRAMS if not Path("/usr/bin", name).exists()]
    for account in ("daemon", "bin", "sys"):
        try:
            pwd.getpwnam(account)
        except KeyError:
            absent.append(f"the account {account}")
    if "setpriv" not in absent:
        argv = ["/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", sys.executable, "-c", ""]
        if subprocess.run(argv, check=False, capture_output=True, cwd="/").returncode != 0:
            absent.append(f"a Python that jobs can run ({sys.executable} is not readable for everybody)")
    return absent


@contextmanager
def a_place(log: Path) -> Iterator[Place]:
    """Install this checkout below a new directory, and give the place. Raises `RuntimeError`: it cannot be."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-gpu-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        installation.install(base / "prefix", f"VENV={_own_python(base / 'python')}")
        yield Place(base, base / "prefix", log)
    finally:
        with opened_dir(str(base.parent)) as parent:
            remove_tree(parent, base.name, after(60))


def _own_python(directory: Path) -> Path:
    """Return a directory that `make install` takes for a venv of this Python: a real one may need a network."""
    (directory / "bin").mkdir(parents=True)
    for name, words in (("python", ""), ("pip", "-m pip ")):
        program = directory / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
        program.chmod(0o755)
    return directory


def can_show() -> bool:
    """Return whether this machine has mount namespaces, without which nothing is at a constant path."""
    argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/true"]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


@contextmanager
def _namespace() -> Iterator[tuple[str, list[str]]]:
    """Give a job's mount namespace, as job_container makes one, and the words before a command in it."""
    argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "echo; read end"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        namespace = f"/proc/{holder.pid}/ns/mnt"
        try:
            yield namespace, ["/usr/bin/nsenter", f"--mount={namespace}"]
        finally:
            holder.communicate("\n")


@contextmanager
def _no_namespace() -> Iterator[tuple[str, list[str]]]:
    yield "", []


def _end_all(uid: int) -> None:
    """End every process of a uid, as Slurm does when a job ends."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                os.kill(int(name), signal.SIGKILL)


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
