"""A controller that is asked through stand-ins for Slurm's commands."""

from __future__ import annotations

import os
from pathlib import Path

from warmstart.host.identity import Identity
from warmstart.slurm.facts import Access, JobFacts
from warmstart.slurm.slurmctld import Slurmctld

LINE = "7|RUNNING|high|5|2|1795333348|"
BY_COMMANDS = JobFacts(7, "RUNNING", "high", "5_2", 1795333348)


def controller(tmp_path: Path, version: str = "22.05.8", script: str = f"echo '{LINE}'") -> Slurmctld:
    """Return a controller with stand-ins for Slurm's commands, which write down how they were called."""
    for name, text in (
        ("scontrol", f'[ "$1$SLURM_CONF" != -V/etc/s.conf ] || {{ echo "slurm-wlm {version}"; exit; }}'),
        ("squeue", script),
    ):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\necho {name} >>{tmp_path}/asked\n")
        program.chmod(0o755)
    me = Identity("me", os.getuid(), os.getgid())
    return Slurmctld(Access(str(tmp_path / "scontrol"), "/etc/s.conf", str(tmp_path / "libraries"), me))
