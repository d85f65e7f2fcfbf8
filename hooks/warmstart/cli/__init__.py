"""`warmstart`, the command line, with one module per subcommand. Runs as the user who calls it, mostly root."""

from __future__ import annotations

import click

from warmstart.cli.lazy import LazyGroup
from warmstart.paths import Installation
from warmstart.policy.compiled import VERSION

_COMMANDS = ("audit", "cache", "doctor", "explain", "images", "maintain", "plan", "policy", "release", "report")


@click.group(
    cls=LazyGroup,
    modules={name: f"warmstart.cli.{name}:{name}" for name in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="warmstart")
def cli() -> None:
    """Warm starts for Slurm jobs: show what jobs get and why, and maintain caches, images and policy.

    The help of each subcommand lists its exit statuses; 2 means that nothing was done, except for doctor.
    """


def main(prefix: str = "/usr") -> None:
    """Run the command line of the installation under `prefix`. Ends the process with its exit status."""
    cli.main(prog_name="warmstart", obj=Installation(prefix))
