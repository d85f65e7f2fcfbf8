"""Slurm's EpilogSlurmctld: remove the job's spec. Runs as SlurmUser.

It runs at the same time as the nodes' epilogs, which do not read the spec. If it never runs, the spec expires.
"""

from __future__ import annotations

from warmstart.wings.specs import client
from warmstart.wings.specs.frame import ControllerRun, run_hook


def main(prefix: str) -> int:
    """Run the hook for the job in the environment; always 0."""
    return run_hook("epilog-slurmctld", prefix, _remove)


def _remove(run: ControllerRun) -> None:
    client.remove_spec(run.slurm, run.path, run.deadline)
