"""Parser of the policy's YAML: plain data with the position of every value, and messages for faults.

The only module that imports yaml; never on a warm path. Nodes are composed but not constructed, so every value keeps
its line and column. A plain scalar means what it looks like: `no`, `on`, `0755` and `12:30` are texts, not the booleans
and numbers of YAML 1.1. Anchors, aliases and tags are refused.

A `loc` is the path to a value: `("rules", 0, "match", "user")`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias, TypedDict

import yaml

from warmstart.policy.invalid import Problem, invalid

_DEEPEST = 8
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_PLAIN = {"": None, "~": None, "null": None, "true": True, "false": False}
_EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_FIXED = {
    "missing": "missing",
    "too_short": "is empty; name at least one, or leave the key out",
}

SourcePosition = tuple[str, int, int]  # file, line and column, both from 1
Plain: TypeAlias = "str | int | list[Plain] | dict[str, Plain] | None"
Loc = tuple[str | int, ...]


class Fault(NamedTuple):
    """One problem, without its position in a file. `at_key`: it concerns the key, not its value."""

    loc: Loc
    problem: str
    at_key: bool = False


class _Details(TypedDict):
    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: object


class Details(_Details, total=False):
    """One item of pydantic's `ValidationError.errors()`."""

    ctx: dict[str, object]


class Document:
    """The policy as plain data, with the position of every key and value."""

    def __init__(self, policy: str) -> None:
        self.data: Plain = {}
        self.problems: list[Problem] = []
        self._keys: dict[Loc, SourcePosition] = {}
        self._values: dict[Loc, SourcePosition] = {(): (policy, 1, 1)}

    def add_policy(self, path: str, text: str) -> None:
        """Add policy.yaml."""
        node = _compose(path, text)
        if node is not None:
            self.data = self._plain(path, node, ())

    def add_rules(self, path: str, text: str) -> None:
        """Append the rules of one file in conf.d."""
        node = _compose(path, text)
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self._report(path, node, "expected a mapping with the key rules")
            return
        for key, value in node.value:
            if key.value != "rules":
                self._report(path, key, f"{key.value!a}: a file in conf.d may hold only rules")
            elif not isinstance(value, yaml.SequenceNode):
                self._report(path, value, "rules: expected a list")
            else:
                self._append(path, value)

    def position(self, loc: Loc, at_key: bool = False) -> SourcePosition:
        """Return the position of a value or key, or of the nearest enclosing value that is in the text."""
        for depth in range(len(loc), -1, -1):
            positions = self._keys if at_key and depth == len(loc) else self._values
            if loc[:depth] in positions:
                return positions[loc[:depth]]
        raise KeyError(loc)

    def _append(self, path: str, rules: yaml.SequenceNode) -> None:
        known = self.data.setdefault("rules", []) if isinstance(self.data, dict) else None
        if not isinstance(known, list):
            return  # policy.yaml has a wrong shape, which `check_shape` reports
        for node in rules.value:
            known.append(self._plain(path, node, ("rules", len(known))))

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


def plain(path: str, text: str) -> Plain:
    """Return another program's YAML as plain data. Raises `PolicyInvalid` if it is none, or has anchors or tags."""
    document = Document(path)
    document.add_policy(path, text)
    return document.data


class _Composer(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refusal("anchors and aliases are not allowed; write the value out", event)
        if getattr(event, "tag", None):
            raise _refusal("tags are not allowed; remove the ! or put the text in quotes", event)
        if self.depth == _DEEPEST:
            raise _refusal(f"nested deeper than {_DEEPEST}", event)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _compose(path: str, text: str) -> yaml.Node | None:
    """Return the root node, or None for an empty file. Raises `PolicyInvalid` if the text is not YAML."""
    loader = None
    try:
        loader = _Composer(text)
        node: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise invalid([Problem(*_position(path, mark), f"not YAML: {_one_line(error)}")]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        column = error.position - before.rfind("\n")
        problem = f"not YAML: {_character(error.character)}"
        raise invalid([Problem(path, before.count("\n") + 1, column, problem)]) from error
    except (ValueError, OverflowError) as error:  # PyYAML converts "\UFFFFFFFF" and %YAML unchecked
        raise invalid([Problem(*_position(path, loader and loader.get_mark()), f"not YAML: {error}")]) from error
    return node


def _one_line(error: yaml.MarkedYAMLError) -> str:
    message = error.problem or error.context or "unreadable"
    if "'\\t'" in message:
        return "a tab where YAML allows spaces only; indent with spaces"
    if error.context in ("while scanning an alias", "while scanning an anchor"):
        mark = "*" if "alias" in error.context else "&"
        return f"a value cannot begin with {mark} unless it is in quotes: '{mark}'"
    if found := re.fullmatch(r"found character ['\"](.)['\"] that cannot start any token", message):
        return f"a value cannot begin with {found[1]} unless it is in quotes"
    return ascii(message)[1:-1]


def _character(code: object) -> str:
    """Describe a character that YAML does not allow; an undecodable byte is a lone surrogate (`source`)."""
    number = code if isinstance(code, int) else ord(str(code))
    if 0xDC80 <= number <= 0xDCFF:
        return f"byte 0x{number - 0xDC00:02x} is not UTF-8; save the file in that encoding"
    return f"character {number:#x} is not allowed"


def _refusal(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


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
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if part.isidentifier() else ascii(part))
    return text


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean X?`, or the list of known words if none is similar."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed: {', '.join(known)}"


def fault(error: Details, known_keys: Callable[[Loc], Sequence[str]]) -> Fault:
    """Convert one item of pydantic's `ValidationError.errors()` to a fault."""
    loc: Loc = tuple(error["loc"])
    if loc and loc[-1] == "[key]":
        return Fault(loc[:-1], f"{dotted(loc[:-2])}: {_problem(error)}", at_key=True)
    if error["type"] == "extra_forbidden":
        advice = nearest(str(loc[-1]), known_keys(loc[:-1]))
        return Fault(loc, f"{dotted(loc)}: unknown key; {advice}", at_key=True)
    return Fault(loc, f"{dotted(loc) or 'the policy'}: {_problem(error)}")


def _problem(error: Details) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(error['input'], kind)}"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {_shown(error['input'], kind)}"
    if kind == "greater_than_equal":
        return f"{error['input']!a} is too low; at least {context['ge']}"
    if kind == "value_error":
        return str(context["error"])
    return _FIXED.get(kind, str(error["msg"]))


def _shown(value: object, kind: str) -> str:
    if value is None:
        return "nothing; give it a value or leave the key out"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if kind == "string_type":
        written = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{written}; put it in quotes: '{written}'"
    return ascii(value)
