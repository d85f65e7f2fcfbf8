"""Slurm's EpilogSlurmctld: remove the job's spec, and move what both hooks have audited into their log.

It runs at the same time as the nodes' epilogs, which do not read the spec. If it never runs, the spec just expires.
"""

from __future__ import annotations

import sys

from warmstart.entry.slurmctld import ControllerRun, run_hook
from warmstart.errors import WarmstartError
from warmstart.paths import Controller


def main(prefix: str) -> int:
    """Run the hook for the job that the environment describes."""
    status = run_hook("epilog-slurmctld", prefix, _remove)
    _move_journals(Controller(prefix))
    return status


def _remove(run: ControllerRun) -> None:
    run.slurm.remove_spec(run.path, run.deadline)


def _move_journals(installation: Controller) -> None:
    try:
        from warmstart.audit.sink import flush

        flush(installation.journal, installation.audit)
    except WarmstartError as error:  # they stay, for the next one
        print(f"warmstart: {error}", file=sys.stderr)  # noqa: T201 - with DebugFlags=Script Slurm logs it
