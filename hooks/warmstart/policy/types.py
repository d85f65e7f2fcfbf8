"""The types of the policy's values, by the names that its keys say (`policy.keys`). Never on a warm path.

Each one checks what an admin wrote, and turns it into what hooks read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from warmstart.host import wire
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.lean import dumps
from warmstart.policy import units
from warmstart.policy.document import Fault, Loc, dotted
from warmstart.policy.keys import PLAIN, User, account
from warmstart.profiles.formats import FORMATS
from warmstart.slurm import nodes

FindUser = Callable[[str], "Identity | None"]


class At(NamedTuple):
    """Where a value stands, and the faults that were found so far."""

    loc: Loc
    faults: list[Fault]
    find_user: FindUser

    def below(self, part: str | int) -> At:
        """Return the place of a mapping's value, or of a list's item."""
        return self._replace(loc=(*self.loc, part))

    def fault(self, problem: str, at_key: bool = False) -> None:
        """Add a fault of this value."""
        self.faults.append(Fault(self.loc, f"{dotted(self.loc) or 'the policy'}: {problem}", at_key))

    def expected(self, what: str, value: Json) -> None:
        """Add the fault that this value is of another kind."""
        got = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else ascii(value)
        if value is None:
            got = "nothing; give it a value or leave the key out"
        elif what == "a text" and isinstance(value, int):
            got = str(value).lower() if isinstance(value, bool) else got
            got = f"{got}; put it in quotes: '{got}'"
        self.fault(f"expected {what}, got {got}")


def as_json(value: Any) -> Json:  # noqa: ANN401 - what hooks read
    """Return what wings read of a value: a section as an object, NamedTuples below it as arrays (`wire`)."""
    return wire.parse(dumps(value._asdict() if hasattr(value, "_asdict") else value))


class Type(NamedTuple):
    """A type: its JSON Schema, whose `title` is its word in docs/reference/policy.md, and its check.

    The check returns what hooks read of a value, or adds faults; then nobody looks at the result. `written` is its
    inverse, for defaults.
    """

    schema: Json
    check: Callable[[Json, At], Any]
    written: Callable[[Any], Json] = as_json

    def __or__(self, _none: None) -> Type:
        """Return the type of which null is a value, too."""
        return Type(
            {"anyOf": [self.schema, {"type": "null"}]},
            lambda value, at: None if value is None else self.check(value, at),
            lambda value: None if value is None else self.written(value),
        )


def text(word: str, pattern: str, what: str, then: Callable[[str, At], Any] | None = None) -> Type:
    """Return the type of texts that match `pattern` as a whole; `what` completes "… is not …" in the fault."""
    compiled = re.compile(pattern)

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - what `then` makes of it
        if not isinstance(value, str):
            return at.expected("a text", value)
        if not compiled.fullmatch(value):
            return at.fault(f"{value!a} is not {what}")
        return then(value, at) if then else value

    return Type({"type": "string", "title": word, "pattern": f"^{pattern}$"}, check)


def quantity(
    word: str, pattern: str, parse: Callable[[object], object], written: Callable[[Any], Json] = as_json
) -> Type:
    """Return the type of texts that `parse` takes, which raises `ValueError` for others."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a number
        try:
            return parse(value)
        except ValueError as error:
            return at.fault(str(error))

    return Type({"type": "string", "title": word, "pattern": f"^{pattern}$"}, check, written)


def number(low: int) -> Type:
    """Return the type of whole numbers from `low`."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a number
        if type(value) is not int:
            return at.expected("a whole number", value)
        return value if value >= low else at.fault(f"{value} is too low; at least {low}")

    return Type({"type": "integer", "minimum": low}, check)


def literal(*values: str | int) -> Type:
    """Return the type of these values."""
    *others, last = map(repr, values)
    what = f"{', '.join(others)} or {last}" if others else last
    schema = {"enum": list(values), "type": "string"} if others else {"const": values[0], "type": "integer"}
    known = [(type(value), value) for value in values]  # 1 is not true
    return Type(schema, lambda value, at: value if (type(value), value) in known else at.expected(what, value))


def listed(item: Type, made: Callable[..., Json] = tuple, *, some: bool = False) -> Type:
    """Return the type of lists, which are tuples then, or what else is `made` of them; `some`: not of empty ones."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a tuple
        if not isinstance(value, list):
            return at.expected("a list", value)
        before = len(at.faults)
        _require(value, at, some)
        found = [item.check(one, at.below(number)) for number, one in enumerate(value)]
        return made(found) if len(at.faults) == before else None

    return Type({"type": "array", "items": item.schema, **({"minItems": 1} if some else {})}, check)


def mapping(key: Type, item: Type, *, some: bool = False) -> Type:
    """Return the type of mappings whose keys an admin chooses."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a mapping
        if not isinstance(value, dict):
            return at.expected("a mapping", value)
        before = len(at.faults)
        _require(value, at, some)
        for name in value:
            key.check(name, at.below(name))
        at.faults[before:] = [fault._replace(at_key=fault.loc != at.loc) for fault in at.faults[before:]]
        found = {name: item.check(one, at.below(name)) for name, one in value.items()}
        return found if len(at.faults) == before else None

    properties = {key.schema["pattern"]: item.schema}
    return Type({"type": "object", "patternProperties": properties, **({"minProperties": 1} if some else {})}, check)


def _require(value: Json, at: At, some: bool) -> None:
    if some and not value:
        at.fault("is empty; name at least one, or leave the key out")


def one_or_more(item: Type, word: str, made: Callable[..., Json] = tuple) -> Type:
    """Return the type of lists that may be written as a single text."""
    items = listed(item, made, some=True)
    check = lambda value, at: items.check([value] if isinstance(value, str) else value, at)  # noqa: E731
    return Type({"title": word, "anyOf": [item.schema, items.schema]}, check)


class Generic:
    """What `tuple[X, ...]` and its like stand for: a function that makes a type of types."""

    def __init__(self, make: Callable[..., Type]) -> None:
        self._make = make

    def __getitem__(self, items: Any) -> Type:  # noqa: ANN401 - types, values of a `Literal`, or an ellipsis
        given = items if isinstance(items, tuple) and not isinstance(items, Type) else (items,)
        return self._make(*(item for item in given if item is not ...))


def _host_list(written: str, at: At) -> list[str]:
    try:
        return nodes.expand(written)
    except ValueError as error:
        at.fault(f"{written!a} is not a host list, such as n[01-16],login*: {error}")
        return []


def _account(name: str, at: At) -> Identity | None:
    """Return an account of warmstart's. All need one of their own, on each node."""
    found = at.find_user(name)
    if found is None:
        remedy = f"create it with the same uid on all nodes: useradd --system --uid N {name}"
        at.fault(f"no account {name!r} on this node; {remedy}")
    elif found.uid == 0 or found.gid == 0:
        at.fault(f"{name!r} has root's uid or group; it must be an unprivileged account")
    return found


def _user(name: str, at: At) -> User | None:
    found = at.find_user(name)
    return User(*found[:2]) if found else at.fault(f"no user {name!r} on this node")


# No wider than what images.reference parses: a mistake is reported when the policy is loaded, not in every job.
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_HOST = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*(:{_PORT})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
REGISTRY = rf"(?=localhost$|.*[.:])(?!(index|registry-1)\.docker\.io$)(?=.{{1,259}}$){_HOST}"
REFERENCE = (
    rf"(?=.{{1,264}}$)docker://({_HOST}/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_PROXY = rf"(?=.{{1,259}}$){_DNS_LABEL}(\.{_DNS_LABEL})*:{_PORT}"

_SIGN = r"[A-Za-z0-9_.+@%=,~!-]"
_NAME_PART = rf"(?!\.{{1,2}}(/|$))({_SIGN}|\*(?!\*))+"
_PARTS = rf"(\*\*|{_NAME_PART})(/(\*\*|{_NAME_PART})){{0,7}}"
_BRACES = rf"\{{({_SIGN}|\*)+\}}"
_ALIKE = rf"{_PARTS}/{_BRACES}|({_PARTS}/)?({_BRACES})?{_NAME_PART}{_BRACES}"
_PATH_PATTERN = rf"(?=.{{1,256}}$)(?!.*\*\*.*\*\*)({_PARTS}/?|{_ALIKE})"
_PATH = r"(?=.{2,1024}$)(/(?!\.{1,2}(/|$))[A-Za-z0-9_.@+=%-]+)+"
_PATH_GLOB = _PATH.replace("=%", "=%*")

_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
_USER = r"[^\s/:*?[\x00-\x1f\x7f-]([^/:*?[\x00-\x1f\x7f]{0,254}[^\s/:*?[\x00-\x1f\x7f])?"  # CORP\alice, alice smith

_PATH_WORDS = "an absolute path of letters, digits and _.@+=%-, without '..', '//' or a trailing '/'"
_account_name = ("account", r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "a user name")
_glob = text(
    "pattern",
    rf"((?![?\[\]]){_PRINTABLE}){{1,256}}",
    "a pattern: one line of at most 256 printable characters, with * alone, and no ?, [ and ]",
)
_hosts = text(
    "host list",
    rf"((?!\?){_PRINTABLE}){{1,256}}",
    "a host list, such as n[01-16],login*: of at most 256 characters, with * alone, and no ?",
    _host_list,
)
_name_pattern = text(
    "name pattern", rf"(?=.{{1,128}}$){_NAME_PART}", "a pattern of names: letters, digits, _.+@%=,~!- and *"
)
_path_pattern = text(
    "path pattern",
    _PATH_PATTERN,
    "a pattern of paths: at most 8 names with *, one of them may be **, and {.a,.b} at its end",
)
_variable = text(
    "variable",
    r"(?!WARMSTART_|SLURM_)[A-Za-z_][A-Za-z0-9_]{0,127}",
    "a variable's name, or is reserved for warmstart or Slurm",
)
# A value in a task prolog's output ends at the newline and is not quoted (Slurm's prolog_epilog.html).
_value = text("text", rf"{_PRINTABLE}{{0,4096}}", "one line of at most 4096 printable characters")

TYPES: dict[str, Any] = {
    "Account": text(*_account_name, _account)._replace(written=lambda value: value.name),
    "AnyAccount": text(*_account_name, lambda name, at: at.find_user(name) or account(name))._replace(
        written=lambda value: value.name
    ),
    "Count": number(0),
    "Duration": quantity("duration", units.DURATION, units.parse_duration, units.format_duration),
    "Entries": mapping(_path_pattern, listed(_name_pattern, list), some=True),
    "Facts": listed(literal("cpu", "driver", "gpu", "machine")),
    "Formats": mapping(_path_pattern, literal(*sorted(FORMATS))),
    "Glob": _glob,
    "Globs": one_or_more(_glob, "pattern or list"),
    "HostLists": one_or_more(_hosts, "host list or list", lambda lists: tuple(chain(*lists))),
    "ImageReference": text(
        "`docker://REGISTRY/REPOSITORY:TAG` or `…@sha256:…`", REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"
    ),
    "Label": text("name", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name: letters, digits and _.-, at most 64"),
    "Literal": Generic(literal),
    "LockEnd": text("text", r"(\.[a-z0-9]{1,16})?", "the end of a lock file's name, such as .lock"),
    "Mode": literal("observe", "enforce"),
    "NamePatterns": listed(_name_pattern),
    "Path": text("path", _PATH, _PATH_WORDS),
    "PathGlob": text("path pattern", _PATH_GLOB, f"{_PATH_WORDS}, with * for any part of a name"),
    "PathPatterns": listed(_path_pattern, some=True),
    "Percent": quantity("share", units.PERCENT, units.parse_percent, "{}%".format),
    "Ports": quantity("`FIRST-LAST`", units.PORTS, units.parse_ports),
    "Positive": number(1),
    # Also the name of its directory in the store, in stages and in caches.
    "ProfileName": text(
        "name", r"[a-z][a-z0-9-]{0,31}", "a profile's name: lower-case letters, digits and -, at most 32"
    ),
    "Proxy": text("`HOST:PORT`", _PROXY, "a proxy: HOST:PORT in lower case"),
    "Registry": text(
        "`HOST` or `HOST:PORT`",
        f"({PLAIN})?{REGISTRY}",
        "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io",
    ),
    "Relocation": literal("relocatable", "constant-path"),
    "SharedScope": literal("account", "site"),
    "Size": quantity("size", units.SIZE, units.parse_size, units.format_size),
    "Some": Generic(lambda item: listed(item, some=True)),
    "Users": listed(text("user", _USER, "a user name", _user), some=True),
    "Value": _value,
    "Variable": _variable,
    "Variables": mapping(_variable, _value, some=True),
    "bool": Type(
        {"type": "boolean"}, lambda value, at: value if isinstance(value, bool) else at.expected("true or false", value)
    ),
    "dict": Generic(mapping),
    "tuple": Generic(listed),
}  # fmt: skip
