"""`warmstart`, the command for people; each subcommand stands in a module of its own."""

from __future__ import annotations

import click

from warmstart.entry import (
    audit_command,
    block_command,
    cache_command,
    carry_command,
    doctor_command,
    images_command,
    plan_command,
    policy_command,
    tend_command,
)
from warmstart.paths import Installation
from warmstart.policy.compiled import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="warmstart")
def cli() -> None:
    """Warm starts for Slurm jobs: what jobs get, what they got, and by which policy.

    Exit statuses are documented by every subcommand; 2 always means wrong usage or nothing to read.
    """


cli.add_command(audit_command.audit)
cli.add_command(cache_command.cache)
cli.add_command(doctor_command.doctor)
cli.add_command(images_command.images)
cli.add_command(plan_command.plan)
cli.add_command(policy_command.policy)
cli.add_command(tend_command.maintain)
for command in (block_command.block, block_command.unblock, block_command.blocked):
    cache_command.cache.add_command(command)
for command in (carry_command.export_command, carry_command.import_command):
    cache_command.cache.add_command(command)


def main(prefix: str) -> None:
    """Run the command line of the installation under `prefix`; ends the process with its exit status."""
    cli.main(prog_name="warmstart", obj=Installation(prefix))
