"""The types of the policy's values, by the names that its keys say (`policy.compiled`). Never on a warm path.

Each one checks what an admin wrote, and turns it into what hooks read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from warmstart.host.identity import Identity
from warmstart.policy.compiled import PLAIN, User, account
from warmstart.policy.units import (
    DURATION,
    PERCENT,
    PORTS,
    SIZE,
    format_duration,
    format_size,
    parse_duration,
    parse_percent,
    parse_ports,
    parse_size,
)
from warmstart.slurm import nodes

FindUser = Callable[[str], "Identity | None"]  # the context of a validation

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
_SIGN = r"[A-Za-z0-9_.+@%=,~!-]"
_NAME_PART = rf"(?!\.{{1,2}}(/|$))({_SIGN}|\*(?!\*))+"
_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
_MOST = 32  # patterns of a kind: root compares each with every name


class _Listed:
    """Makes types of tuples that an admin writes as lists, with limits of pydantic's."""

    def __init__(self, *limits: object) -> None:
        self._limits = limits

    def __getitem__(self, items: Any) -> Any:  # noqa: ANN401 - what typing calls an annotation
        item = items[0] if isinstance(items, tuple) else items  # of `tuple[X, ...]`
        return Annotated[(GenericAlias(list, item), *self._limits, AfterValidator(tuple))]


_SOME = _Listed(Field(min_length=1))


def _fitting(pattern: str, what: str) -> AfterValidator:
    """Return a validator: the whole text matches `pattern`. `what` completes "… is not …" in its error."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{text!a} is not {what}")
        return text

    return AfterValidator(check)


def _text(word: str, pattern: str, what: str, *more: object) -> Any:  # noqa: ANN401 - what typing calls an annotation
    """Return the type of a text. docs/reference/policy.md calls it `word`; so does policies/schema.json."""
    schema = WithJsonSchema({"type": "string", "title": word, "pattern": f"^{pattern}$"})
    return Annotated[(str, _fitting(pattern, what), *more, schema)]


def _quantity(word: str, pattern: str, parse: Callable[[object], object], kind: object = int) -> Any:  # noqa: ANN401
    return Annotated[
        kind, BeforeValidator(parse), WithJsonSchema({"type": "string", "title": word, "pattern": f"^{pattern}$"})
    ]


def _one_or_more(item: Any, word: str, *more: object) -> Any:  # noqa: ANN401
    """Return the type of a list that may be written as a single text."""
    texts = [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
    as_list = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    return Annotated[(_SOME[item], as_list, *more, WithJsonSchema({"title": word, "anyOf": texts}))]


def mapping(key: Any, value: Any, *more: Any) -> Any:  # noqa: ANN401 - what typing calls an annotation
    """Return the type of a mapping whose keys an admin chooses."""
    return Annotated[(GenericAlias(dict, (key, value)), *more)]


def _expanded(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for text in texts for name in nodes.expand(text))


def _host_list(text: str) -> str:
    try:
        nodes.expand(text)
    except ValueError as error:
        raise ValueError(f"{text!a} is not a host list, such as n[01-16],login*: {error}") from None
    return text


def _find(name: str, info: ValidationInfo) -> Identity | None:
    find_user: FindUser = info.context  # type: ignore[assignment]  # what `check_shape` gives
    return find_user(name)


def _account(name: str, info: ValidationInfo) -> Identity:
    """Return an account of warmstart's. All need one of their own, on each node."""
    found = _find(name, info)
    if found is None:
        remedy = f"create it with the same uid on all nodes: useradd --system --uid N {name}"
        raise ValueError(f"no account {name!r} on this node; {remedy}")
    if found.uid == 0 or found.gid == 0:
        raise ValueError(f"{name!r} has root's uid or group; it must be an unprivileged account")
    return found


def _any_account(name: str, info: ValidationInfo) -> Identity:
    found = _find(name, info)
    return found or account(name)


def _user(name: str, info: ValidationInfo) -> User:
    found = _find(name, info)
    if found is None:
        raise ValueError(f"no user {name!r} on this node")
    return User(*found[:2])


_USER = r"[^\s/:*?[\x00-\x1f\x7f-]([^/:*?[\x00-\x1f\x7f]{0,254}[^\s/:*?[\x00-\x1f\x7f])?"  # CORP\alice, alice smith
_ACCOUNT = ("account", r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "a user name")
_PROXY = rf"(?=.{{1,259}}$){_DNS_LABEL}(\.{_DNS_LABEL})*:{_PORT}"
_GLOB = rf"((?![?\[\]]){_PRINTABLE}){{1,256}}"
_HOST_LIST = rf"((?!\?){_PRINTABLE}){{1,256}}"
_PARTS = rf"(\*\*|{_NAME_PART})(/(\*\*|{_NAME_PART})){{0,7}}"
_BRACES = rf"\{{({_SIGN}|\*)+\}}"
_ALIKE = rf"{_PARTS}/{_BRACES}|({_PARTS}/)?({_BRACES})?{_NAME_PART}{_BRACES}"
_PATH_PATTERN = rf"(?=.{{1,256}}$)(?!.*\*\*.*\*\*)({_PARTS}/?|{_ALIKE})"

_Glob = _text(
    "pattern", _GLOB, "a pattern: one line of at most 256 printable characters, with * alone, and no ?, [ and ]"
)
_HostList = _text(
    "host list",
    _HOST_LIST,
    "a host list, such as n[01-16],login*: of at most 256 characters, with * alone, and no ?",
    AfterValidator(_host_list),
)
_NamePattern = _text(
    "name pattern", rf"(?=.{{1,128}}$){_NAME_PART}", "a pattern of names: letters, digits, _.+@%=,~!- and *"
)
_PathPattern = _text(
    "path pattern",
    _PATH_PATTERN,
    "a pattern of paths: at most 8 names with *, one of them may be **, and {.a,.b} at its end",
)
_Variable = _text("variable", r"[A-Za-z_][A-Za-z0-9_]{0,127}", "a variable's name")
# A value in a task prolog's output ends at the newline and is not quoted (Slurm's prolog_epilog.html).
_Value = _text("text", rf"{_PRINTABLE}{{0,4096}}", "one line of at most 4096 printable characters")
_User = _text("user", _USER, "a user name", AfterValidator(_user))
# The names of the checks in `profiles.formats`.
Format = Literal[
    "any", "base32-name", "compressed", "cubin", "empty-or-written", "hsaco", "json", "library", "object", "pickle",
    "sha256-name", "text", "written",
]  # fmt: skip

TYPES: dict[str, Any] = {
    "Account": _text(*_ACCOUNT, AfterValidator(_account)),
    "AnyAccount": _text(*_ACCOUNT, AfterValidator(_any_account)),
    "AnyProfile": Annotated[str, WithJsonSchema({"type": "string", "title": "name"})],  # `checks` knows which exist
    "Count": Annotated[int, Field(ge=0)],
    "Duration": _quantity("duration", DURATION, parse_duration),
    "Entries": mapping(
        _PathPattern,
        Annotated[GenericAlias(list, _NamePattern), Field(max_length=_MOST)],
        Field(min_length=1, max_length=_MOST),
    ),
    "Facts": _Listed()[Literal["cpu", "driver", "gpu", "machine"]],
    "Formats": mapping(_PathPattern, Format, Field(max_length=_MOST)),
    "Glob": _Glob,
    "Globs": _one_or_more(_Glob, "pattern or list"),
    "HostLists": _one_or_more(_HostList, "host list or list", AfterValidator(_expanded)),
    "Label": _text("name", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name: letters, digits and _.-, at most 64"),
    "Literal": Literal,
    "LockEnd": _text("text", r"(\.[a-z0-9]{1,16})?", "the end of a lock file's name, such as .lock"),
    "Mode": Literal["observe", "enforce"],
    "NamePatterns": _Listed(Field(max_length=_MOST))[_NamePattern],
    "Path": _text("path", r"/[A-Za-z0-9_.@+=%/-]{1,1023}", "an absolute path of letters, digits and _.@+=%-/"),
    "PathGlob": _text(
        "path pattern", r"/[A-Za-z0-9_.@+=%/*-]{1,1023}", "an absolute path of letters, digits and _.@+=%-/, and of *"
    ),
    "PathPatterns": _Listed(Field(min_length=1, max_length=_MOST))[_PathPattern],
    "Percent": _quantity("share", PERCENT, parse_percent),
    "Ports": _quantity("`FIRST-LAST`", PORTS, parse_ports, tuple[int, int]),
    "Positive": Annotated[int, Field(ge=1)],
    # Also the name of its directory in the store, in stages and in caches.
    "ProfileName": _text(
        "name", r"[a-z][a-z0-9-]{0,31}", "a profile's name: lower-case letters, digits and -, at most 32"
    ),
    "Proxy": _text("`HOST:PORT`", _PROXY, "a proxy: HOST:PORT in lower case"),
    "ImageReference": _text(
        "`docker://REGISTRY/REPOSITORY:TAG` or `…@sha256:…`", REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"
    ),
    "Registry": _text(
        "`HOST` or `HOST:PORT`",
        f"({PLAIN})?{REGISTRY}",
        "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io",
    ),
    "Relocation": Literal["relocatable", "constant-path"],
    "Scope": Literal["user", "account", "site"],
    "SharedScope": Literal["account", "site"],
    "Size": _quantity("size", SIZE, parse_size),
    "Some": _SOME,
    "Users": _SOME[_User],
    "Value": _Value,
    "Variable": _Variable,
    "Variables": mapping(_Variable, _Value, Field(min_length=1)),
    "tuple": _Listed(),
}  # fmt: skip
WRITTEN: dict[str, Callable[[Any], str]] = {  # how an admin writes a value of a type, where that is no plain YAML
    "Account": lambda value: str(value.name),
    "AnyAccount": lambda value: str(value.name),
    "Duration": format_duration,
    "Percent": "{}%".format,
    "Size": format_size,
}
