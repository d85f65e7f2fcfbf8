"""Write the manual pages and the shells' completion of the command line: `write(DIRECTORY)`. For packages.

man(7) is the format of the pages: one for `warmstart` and one for each of its commands, with that command's own
commands in it.
"""

from __future__ import annotations

import gzip
import inspect
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from warmstart.cli import cli
from warmstart.policy.keys import VERSION

COMPLETIONS = {
    "bash": "bash-completion/completions/warmstart",
    "zsh": "zsh/{zsh}/_warmstart",
    "fish": "fish/vendor_completions.d/warmstart.fish",
}


def write(share: str, zsh: str) -> None:
    """Write all of it below `share`, such as /usr/share; `zsh` is where the distribution's zsh looks, below zsh/."""
    for name, text in pages().items():
        _write(Path(share, "man/man1", f"{name}.1.gz"), gzip.compress(text.encode(), mtime=0))
    for shell, path in COMPLETIONS.items():
        completion = get_completion_class(shell)
        assert completion is not None, shell
        text = completion(cli, {}, "warmstart", "_WARMSTART_COMPLETE").source()
        _write(Path(share, path.format(zsh=zsh)), text.encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    top = cli.make_context("warmstart", [], resilient_parsing=True)
    commands = [click.Context(command, info_name=name, parent=top) for name, command in _commands(top)]
    names = {f"warmstart-{context.info_name}": context for context in commands}
    return {name: _page(name, context, [*names]) for name, context in {"warmstart": top, **names}.items()}


def _commands(context: click.Context) -> list[tuple[str, click.Command]]:
    """Return the commands of a group, or none."""
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return [(name, command) for name, command in found if command is not None and not command.hidden]


def _page(name: str, context: click.Context, all_names: list[str]) -> str:
    lines = [
        f'.TH "{name.upper()}" 1 "" "warmstart {VERSION}" "warmstart"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(context.command.get_short_help_str(200)).rstrip('.')}",
        ".SH SYNOPSIS",
        *_synopsis(context),
        ".SH DESCRIPTION",
        *_description(context.command),
        ".SH OPTIONS",
        *_options(context),
    ]
    if context.parent is None:
        lines.append(".SH COMMANDS")
        for called, command in _commands(context):
            lines += [".TP", f"\\fBwarmstart\\-{_escaped(called)}\\fR(1)", _escaped(command.get_short_help_str(200))]
        others = all_names
    else:
        for called, command in _commands(context):
            below = click.Context(command, info_name=called, parent=context)
            lines += [f'.SH "{_escaped(below.command_path).upper()}"', *_synopsis(below), ".PP"]
            lines += [*_description(command), *_options(below)]
        others = ["warmstart"]
    see = ", ".join(f"\\fB{_escaped(other)}\\fR(1)" for other in others)
    return "\n".join([*lines, ".SH SEE ALSO", see]) + "\n"


def _synopsis(context: click.Context) -> list[str]:
    usage = " ".join(context.command.collect_usage_pieces(context))
    return [f"\\fB{_escaped(context.command_path)}\\fR {_escaped(usage)}"]


def _description(command: click.Command) -> Iterator[str]:
    r"""Yield the help text: paragraphs are filled, unless they begin with \b (click's mark)."""
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        lines = paragraph.split("\n")
        if lines[0] == "\b":
            yield from (".nf", *map(_escaped, lines[1:]), ".fi")
        else:
            yield from map(_escaped, lines)


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", f"\\fB{_escaped(record[0])}\\fR", _escaped(record[1]))


def _escaped(text: str) -> str:
    """Return text that roff prints as it is; a line of it begins no request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
