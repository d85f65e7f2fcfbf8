"""`warmstart`, the command line; each subcommand has a module of its own."""

from __future__ import annotations

import click

from warmstart.entry.cli import audit, block, cache, doctor, images, maintain, plan, policy, transfer
from warmstart.paths import Installation
from warmstart.policy.compiled import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="warmstart")
def cli() -> None:
    """Warm starts for Slurm jobs: what jobs get, what they got, and by which policy.

    Exit statuses are documented by every subcommand; 2 always means wrong usage or nothing to read.
    """


cli.add_command(audit.audit)
cli.add_command(cache.cache)
cli.add_command(doctor.doctor)
cli.add_command(images.images)
cli.add_command(plan.plan)
cli.add_command(policy.policy)
cli.add_command(maintain.maintain)
for command in (block.block, block.unblock, block.blocked):
    cache.cache.add_command(command)
for command in (transfer.export_command, transfer.import_command):
    cache.cache.add_command(command)


def main(prefix: str) -> None:
    """Run the command line of the installation under `prefix`; ends the process with its exit status."""
    cli.main(prog_name="warmstart", obj=Installation(prefix))
