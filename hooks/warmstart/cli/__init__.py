"""`warmstart`, the command line, with one module per subcommand. Runs as the user who calls it, mostly root."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from warmstart import wing
from warmstart.paths import Installation
from warmstart.policy.keys import VERSION

_COMMANDS = (
    "audit",
    "cache",
    "doctor",
    "explain",
    "images",
    "maintain",
    "plan",
    "policy",
    "profile",
    "report",
)


class LazyGroup(click.Group):
    """A group with commands in other modules, so that no command pays for the libraries of another.

    Its help and a shell's completion import them all.
    """

    def __init__(self, *, modules: Mapping[str, str], **options: object) -> None:
        """`modules` maps a command's name to what it is: `module:attribute`. The rest is `click.Group`'s."""
        super().__init__(**options)  # type: ignore[arg-type] # as click.group passes them on
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None if there is none."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._modules[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


def _of_wings() -> dict[str, str]:
    """Return the commands of the wings that are here."""
    return {
        command: f"warmstart.wings.{name}.commands:{attribute}"
        for name, declared in wing.found().items()
        for command, attribute in declared.commands.items()
    }


@click.group(
    cls=LazyGroup,
    modules={**{name: f"warmstart.cli.{name}:{name}" for name in _COMMANDS}, **_of_wings()},
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
