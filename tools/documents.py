"""Find the documents, their lines, and the commands that they show, for tests/unit/test_documents.py."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from warmstart.cli import cli

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^ *```")
_PROMPT = re.compile(r"^(?:[$#] |sudo )*(?:[\w.]+=\S* )*")
_WARMSTART = re.compile(r"(?:[\w/.]*/bin/)?warmstart")
_STARTERS = frozenset({"clush", "srun", "ssh"})  # of a command that stands behind their own options
_ENDS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", "&", "…", "#"})


class Shown(NamedTuple):
    """A command that a document shows: where, and its words after `warmstart`."""

    place: str
    words: list[str]


def documents() -> list[Path]:
    """Return every document: those of the root, what is in docs/, and those that lie beside code."""
    folders = ("docs", "tests", "tools")
    return [*sorted(ROOT.glob("*.md")), *(path for folder in folders for path in sorted((ROOT / folder).rglob("*.md")))]


def lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each line's number and text, and whether it is code: fenced, or indented after an empty line."""
    fenced = indented = False
    before = ""
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            fenced = not fenced
            yield number, line, True
        else:
            indented = line.startswith("    ") and (indented or not before.strip())
            yield number, line, fenced or indented
        before = line


def shown(path: Path) -> Iterator[Shown]:
    """Yield the `warmstart …` commands of a document: those in blocks of code, and those in `code` of prose."""
    where = path.relative_to(ROOT)
    block: list[tuple[int, str]] = []
    for number, line, is_code in [*lines(path.read_text()), (0, "", False)]:
        if is_code:
            block.append((number, line.strip()))
            continue
        yield from _of_block(str(where), block)
        block = []
        for span in re.findall(r"`([^`]+)`", line):
            yield from _command(f"{where}:{number}", span)


def _of_block(where: str, block: list[tuple[int, str]]) -> Iterator[Shown]:
    """Yield the commands of a block. Of one with prompts, only the lines that have one: the others are output."""
    prompts = any(line.startswith("$ ") for _, line in block)
    code = ""
    for number, line in block:
        code += line
        if code.endswith("\\"):
            code = code[:-1]
            continue
        if code.startswith("$ ") or not prompts:
            for part in re.split(r"&&|\|\||;|\|(?=\s)", code):
                yield from _command(f"{where}:{number}", _PROMPT.sub("", part.strip(), count=1))
        code = ""


def _command(place: str, text: str) -> Iterator[Shown]:
    """Yield a command, if the text is one of warmstart's."""
    words = text.split()
    if words and words[0] in _STARTERS:
        begin = next((n for n, word in enumerate(words) if _WARMSTART.fullmatch(word)), 0)
        text, words = " ".join(words[begin:]), words[begin:]
    if not words or _WARMSTART.fullmatch(words[0]) is None:
        return
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # an apostrophe of prose
        words = text.split()
    ends = next((n for n, word in enumerate(words) if word in _ENDS or word[0] in ">|"), len(words))
    yield Shown(place, [word.strip("[],.") for word in words[1:ends]])


def problem(words: list[str]) -> str:
    """Return what the command line would not understand in a command, "" if nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="warmstart")
    rest = [*words]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name in {"…", "COMMAND"}:
            return ""
        found = command.get_command(context, name)
        if found is None:
            return f"no command {name}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    flag = {name: each.is_flag for each in options for name in [*each.opts, *each.secondary_opts]}
    value = False  # of the option before it
    for word in rest:
        name, equals, _ = word.partition("=")
        if not value and re.match(r"--?[a-z]", word) and name not in flag:
            return f"no option {name}"
        value = not value and not flag.get(name, True) and not equals
    return ""
