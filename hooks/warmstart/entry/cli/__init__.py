"""`warmstart`, the command line, with one module per subcommand. Runs as the user who calls it, mostly root."""

from __future__ import annotations

import click

from warmstart.entry.cli import audit, block, cache, doctor, images, maintain, plan, policy, transfer
from warmstart.paths import Installation
from warmstart.policy.compiled import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="warmstart")
def cli() -> None:
    """Warm starts for Slurm jobs: show what jobs get and why, and maintain caches, images and policy.

    The help of each subcommand lists its exit statuses; 2 always means that nothing was done.
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
    """Run the command line of the installation under `prefix`. Ends the process with its exit status."""
    cli.main(prog_name="warmstart", obj=Installation(prefix))
