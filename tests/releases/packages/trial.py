"""A node that runs plain Slurm, in a root file system of `packages/fresh`, and what ten-minutes.md has one type.

No systemd runs there: a script in its place starts and stops Slurm's daemons, and does once what a timer does.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from tests.lib.processes import wait_until

PAGE = Path(__file__).resolve().parents[3] / "docs/start/ten-minutes.md"
_STEP = re.compile(r"^## [0-9]+\. (.*)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\n]*)\")?\n(.*?)^```$|((?:^    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_FINDING = re.compile(r"`((?!slurm\.conf)(?:policy|node|job|store|slurm)\.[a-z-]+)`")
HOME = Path("/home/alice")
SLURM = """\
ClusterName=trial
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
NodeName=localhost NodeAddr=127.0.0.1 CPUs=2
PartitionName=main Default=YES Nodes=localhost State=UP
"""
SYSTEMCTL = """\
#!/bin/sh
set -eu
verb=$1
shift
for unit; do
    case $verb:$unit in
    restart:munge) install -d -o munge /run/munge && setpriv --reuid=munge --regid=munge --clear-groups munged ;;
    restart:slurmctld | restart:slurmd)
        if [ -s "/run/$unit.pid" ]; then
            pid=$(cat "/run/$unit.pid")
            kill "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
        fi
        if [ "$unit" = slurmd ]; then slurmd -N localhost; else slurmctld; fi
        ;;
    enable:--now) ;;
    enable:*.target)
        for wanted in $(sed -n s/^Wants=//p "/lib/systemd/system/$unit"); do
            sh -euc "$(sed -n s/^ExecStart=//p "/lib/systemd/system/${wanted%.*}.service")"
        done
        ;;
    *) exit 1 ;;
    esac
done
"""


class Command(NamedTuple):
    """One command of a step, or a file that it shows."""

    step: str
    line: str  # "" for a file
    path: str = ""
    text: str = ""  # the file's, or what the page says that the command prints


def page() -> list[Command]:
    """Return what the page has one type, in order."""
    found: list[Command] = []
    for step, text in _STEP.findall(PAGE.read_text()):
        for kind, title, file, block in _BLOCK.findall(text):
            if kind == "text":
                found[-1] = found[-1]._replace(text=file)
            elif kind:
                found.append(Command(step, "", title or f"{kind} of {step}", file))
            else:
                found += [Command(step, line.partition("  #")[0].rstrip()) for line in dedent(block).splitlines()]
    return found


def alike(text: str) -> str:
    """Return an output without what differs from run to run: numbers, ids, times, blanks between columns."""
    text = re.sub(r"\b[0-9a-f]{12}\b", "ID", text)
    text = re.sub(r"\d[\d.:TZ-]*", "N", text)
    return re.sub(r" +", " ", re.sub(r"\bNm?s\b", "Ns", text)).strip()


def normal_findings() -> set[str]:
    """Return the checks that the page says find something on a trial node."""
    steps = dict(_STEP.findall(PAGE.read_text()))
    return set(_FINDING.findall(steps["Ask the doctor"]))


class Trial:
    """The node. `run` types one of the page's commands."""

    def __init__(self) -> None:
        self.job = 0  # the last one

    def __enter__(self) -> Trial:
        """Start munge and Slurm, and make the user of the page."""
        systemctl = Path("/usr/local/bin/systemctl")
        systemctl.write_text(SYSTEMCTL)
        systemctl.chmod(0o755)
        Path("/etc/slurm/slurm.conf").write_text(SLURM)
        self.run("useradd --create-home --shell /bin/bash alice")
        self.run("install -d -o slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd")
        self.run("systemctl restart munge slurmctld slurmd")
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (*Path("/run").glob("slurm*.pid"), Path("/run/munge/munged.pid")):
            self.run(f"kill {pid.read_text()}")

    def write(self, command: Command) -> Path:
        """Write a file that the page shows: its policy, or a job's program."""
        path = HOME / command.path if command.path.endswith(".py") else Path("/etc/warmstart/policy.yaml")
        path.write_text(command.text)
        return path

    def run(self, line: str) -> str:
        """Run a command as the page has it: users' own as alice. Return its output."""
        line = line.replace("JOBID", str(self.job))
        argv, where = ["sh", "-c", line], "/root"
        if line.startswith(("sbatch", "cat first")):
            # The page's numba is the one of the tests.
            line = f"PATH=/opt/venv/bin:$PATH {line}"
            argv, where = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "sh", "-c", line], str(HOME)
        done = subprocess.run(argv, check=False, cwd=where, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{said}"
        if job := re.search(r"Submitted batch job (\d+)", said):
            self.job = int(job[1])
            wait_until("the epilog", lambda: "idle" in self.run("sinfo --noheader"), 120)
        return said
