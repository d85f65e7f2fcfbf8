"""Subcommands are imported when they are used, and are all there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from warmstart.cli import cli

HOOKS = Path(__file__).resolve().parents[3] / "hooks"
LIBRARIES = Path(click.__file__).parents[1]
SLOW = {"yaml", "structlog", "rich"}


def commands(group: click.Group) -> dict[str, click.Command]:
    """Return all commands below a group, by their words."""
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        below = commands(command) if isinstance(command, click.Group) else {"": command}
        found.update({f"{name} {words}".strip(): command for words, command in below.items()})
    return found


def test_every_command_can_be_imported_and_says_what_it_does() -> None:
    found = commands(cli)
    assert {"audit", "plan", "policy check", "cache list", "images import"} <= {*found}
    assert all(command.help and command.name == words.split()[-1] for words, command in found.items())


@pytest.mark.parametrize("group", [(), ("images",)])
def test_the_help_lists_commands_of_other_modules(group: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*group, "--help"]).output
    for name, command in commands(cli).items():
        words = name.split()
        if len(words) == len(group) + 1 and words[:-1] == [*group]:
            assert f"  {words[-1]} " in shown
            assert command.get_short_help_str(limit=60)[:40] in shown


@pytest.mark.parametrize("command", ["audit", "plan", "policy", "images", "doctor"])
def test_a_command_imports_no_library_that_it_may_not_need(command: str) -> None:
    code = f"import sys; sys.path[:0] = {[str(HOOKS), str(LIBRARIES)]}; import warmstart.cli.{command}"
    argv = [sys.executable, "-IS", "-c", f"{code}; print(*sys.modules)"]
    loaded = set(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())
    assert "click" in loaded
    assert not loaded & SLOW
