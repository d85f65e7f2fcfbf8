"""`warmstart`, the command for people; each subcommand stands in a module of its own."""

from __future__ import annotations

import click

from warmstart.entry.audit_command import audit
from warmstart.entry.block_command import block, blocked, unblock
from warmstart.entry.cache_command import cache
from warmstart.entry.carry_command import export_command, import_command
from warmstart.entry.doctor_command import doctor
from warmstart.entry.images_command import images
from warmstart.entry.plan_command import plan
from warmstart.entry.policy_command import policy
from warmstart.entry.tend_command import tend
from warmstart.paths import Installation
from warmstart.policy.compiled import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="warmstart")
def cli() -> None:
    """Warm starts for Slurm jobs: what jobs get, what they got, and by which policy.

    Exit statuses are documented by every subcommand; 2 always means wrong usage or nothing to read.
    """


cli.add_command(audit)
cli.add_command(cache)
cli.add_command(doctor)
cli.add_command(images)
cli.add_command(plan)
cli.add_command(policy)
cli.add_command(tend)
for command in (block, unblock, blocked, export_command, import_command):
    cache.add_command(command)


def main(prefix: str) -> None:
    """Run the command line of the installation under `prefix`; ends the process with its exit status."""
    cli.main(prog_name="warmstart", obj=Installation(prefix))
