"""Slurm's EpilogSlurmctld: remove the job's spec and move both hooks' journals into the audit log. Runs as SlurmUser.

It runs at the same time as the nodes' epilogs, which do not read the spec. If it never runs, the spec expires.
"""

from __future__ import annotations

import sys

from warmstart.errors import WarmstartError
from warmstart.wings.specs.frame import Controller, ControllerRun, run_hook


def main(prefix: str) -> int:
    """Run the hook for the job in the environment; always 0."""
    status = run_hook("epilog-slurmctld", prefix, _remove)
    _move_journals(Controller(prefix))
    return status


def _remove(run: ControllerRun) -> None:
    run.slurm.remove_spec(run.path, run.deadline)


def _move_journals(installation: Controller) -> None:
    try:
        from warmstart.audit.sink import flush
        from warmstart.policy.compiled import read

        policy = read(installation.compiled_policy)
        flush(installation.journal, installation.audit, syslog=policy is not None and policy.audit.syslog)
    except WarmstartError as error:  # the journals stay for the next run
        print(f"warmstart: {error}", file=sys.stderr)  # noqa: T201 - with DebugFlags=Script Slurm logs it
