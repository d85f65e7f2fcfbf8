"""Parser of the policy's YAML: plain data with the position of every value.

The only module that imports yaml; never on a warm path. Nodes are composed but not constructed, so every value keeps
its line and column. A plain scalar means what it looks like: `no`, `on`, `0755` and `12:30` are texts, not the booleans
and numbers of YAML 1.1. Anchors, aliases and tags are refused.

A `loc` is the path to a value: `("rules", 0, "match", "user")`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

import yaml

from warmstart.errors import PolicyError

_DEEPEST = 8
_MOST_LISTED = 20  # problems of a policy
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_REFUSED = {
    yaml.AnchorToken: "anchors and aliases are not allowed; write the value out",
    yaml.AliasToken: "anchors and aliases are not allowed; write the value out",
    yaml.TagToken: "tags are not allowed; remove the ! or put the text in quotes",
}
_STARTS = (
    yaml.BlockMappingStartToken, yaml.BlockSequenceStartToken, yaml.FlowMappingStartToken, yaml.FlowSequenceStartToken,
)  # fmt: skip
_ENDS = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_PLAIN = {"": None, "~": None, "null": None, "true": True, "false": False}

SourcePosition = tuple[str, int, int]  # file, line and column, both from 1
Plain: TypeAlias = "str | int | list[Plain] | dict[str, Plain] | None"
Loc = tuple[str | int, ...]


class Fault(NamedTuple):
    """One problem, without its position in a file. `at_key`: it concerns the key, not its value."""

    loc: Loc
    problem: str
    at_key: bool = False


class Problem(NamedTuple):
    """One problem and its position. Line and column count from 1."""

    path: str
    line: int
    column: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.problem}"


class PolicyInvalid(PolicyError):
    """The policy's text is invalid. `listing` has the problems, one per line."""

    code = "policy-invalid"
    template = "{listing}"
    hint = "correct it; `warmstart policy check` lists the problems, docs/reference/policy.md every key"
    problems: tuple[Problem, ...] = ()  # all of them, in file order


def invalid(problems: Iterable[Problem]) -> PolicyInvalid:
    """Return the error for one or more problems. Its position is that of the first one in file order."""
    ordered = sorted(set(problems))
    listing = [str(problem) for problem in ordered[:_MOST_LISTED]]
    if len(ordered) > _MOST_LISTED:
        listing.append(f"and {len(ordered) - _MOST_LISTED} more")
    error = PolicyInvalid(**ordered[0]._asdict(), listing="\n".join(listing))
    error.problems = tuple(ordered)
    return error


class Document:
    """The policy as plain data, with the position of every key and value."""

    def __init__(self, texts: Sequence[tuple[str, str]]) -> None:
        """Read (path, text) of policy.yaml and of files in conf.d. Raises `PolicyInvalid` for what is not YAML."""
        (path, text), *additions = texts
        self.problems: list[Problem] = []
        self._keys: dict[Loc, SourcePosition] = {}
        self._values: dict[Loc, SourcePosition] = {(): (path, 1, 1)}
        node = _compose(path, text)
        self.data: Plain = {} if node is None else self._plain(path, node, ())
        for path, text in additions:
            self._add_rules(path, _compose(path, text))

    def position(self, loc: Loc, at_key: bool = False) -> SourcePosition:
        """Return the position of a value or key, or of the nearest enclosing value that is in the text."""
        if at_key and loc in self._keys:
            return self._keys[loc]
        return next(self._values[loc[:depth]] for depth in range(len(loc), -1, -1) if loc[:depth] in self._values)

    def problem(self, fault: Fault) -> Problem:
        """Return a fault with its position."""
        return Problem(*self.position(fault.loc, fault.at_key), fault.problem)

    def _add_rules(self, path: str, node: yaml.Node | None) -> None:
        """Append the rules of one file in conf.d."""
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self._report(path, node, "expected a mapping with the key rules")
            return
        known = self.data.setdefault("rules", []) if isinstance(self.data, dict) else None
        for key, value in node.value:
            if key.value != "rules":
                self._report(path, key, f"{key.value!a}: a file in conf.d may hold only rules")
            elif not isinstance(value, yaml.SequenceNode):
                self._report(path, value, "rules: expected a list")
            elif isinstance(known, list):  # else policy.yaml has a wrong shape, which is told
                for rule in value.value:
                    known.append(self._plain(path, rule, ("rules", len(known))))

    def _plain(self, path: str, node: yaml.Node, loc: Loc) -> Plain:
        self._values[loc] = _position(path, node.start_mark)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(path, item, (*loc, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return dict(self._items(path, node, loc))
        return _scalar(node)

    def _items(self, path: str, node: yaml.MappingNode, loc: Loc) -> Iterator[tuple[str, Plain]]:
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._report(path, key, "a key must be a plain name")
                continue
            if key.value in seen:
                self._report(path, key, f"duplicate key {key.value!a}")
            seen.add(key.value)
            self._keys[(*loc, key.value)] = _position(path, key.start_mark)
            yield key.value, self._plain(path, value, (*loc, key.value))

    def _report(self, path: str, node: yaml.Node, problem: str) -> None:
        self.problems.append(Problem(*_position(path, node.start_mark), problem))


def _compose(path: str, text: str) -> yaml.Node | None:
    """Return the root node, or None for an empty file. Raises `PolicyInvalid` if the text is not YAML."""
    scanner, depth = None, 0
    try:
        scanner = yaml.SafeLoader(text)
        while token := scanner.get_token():  # type: ignore[no-untyped-call]
            depth += isinstance(token, _STARTS) - isinstance(token, _ENDS)
            if problem := _REFUSED.get(type(token), f"nested deeper than {_DEEPEST}" if depth > _DEEPEST else ""):
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=token.start_mark)
        return yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        position, problem = _position(path, error.problem_mark or error.context_mark), ascii(error.problem)[1:-1]
        if error.context in ("while scanning an alias", "while scanning an anchor"):
            mark = "*" if "alias" in error.context else "&"
            problem = f"a value cannot begin with {mark} unless it is in quotes: '{mark}'"
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = (path, before.count("\n") + 1, error.position - before.rfind("\n"))
        # Of a byte that is not UTF-8 `load.text_of` makes a lone surrogate.
        problem = f"character {ord(text[error.position]):#x} is not allowed; save the file as UTF-8"
    except (ValueError, OverflowError) as error:  # PyYAML converts "\UFFFFFFFF" and %YAML unchecked
        position, problem = _position(path, scanner and scanner.get_mark()), str(error)
    raise invalid([Problem(*position, f"not YAML: {problem}")])


def _position(path: str, mark: Any) -> SourcePosition:  # noqa: ANN401 - yaml's Mark, of the C or the Python kind
    return (path, mark.line + 1, mark.column + 1) if mark else (path, 1, 1)


def _scalar(node: yaml.Node) -> str | int | bool | None:
    text: str = node.value
    if getattr(node, "style", None) is not None:  # quoted, or a block
        return text
    if text in _PLAIN:
        return _PLAIN[text]
    return int(text) if _INTEGER.fullmatch(text) else text


def dotted(loc: Sequence[str | int]) -> str:
    """Format a loc: `rules[0].match.user`."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part if part.isidentifier() else ascii(part)}" for part in loc
    )
    return "".join(parts).removeprefix(".")


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean X?`, or the list of known words if none is similar."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed: {', '.join(known)}"
