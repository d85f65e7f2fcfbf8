"""A click group that imports each command when it is used: no command pays for the libraries of another."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click


class LazyGroup(click.Group):
    """A group with commands in other modules. Its help and a shell's completion import them all."""

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
