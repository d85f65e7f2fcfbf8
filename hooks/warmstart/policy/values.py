"""The types of the policy's values, by the names that its keys say (`policy.keys`). Never on a warm path.

Each one checks what an admin wrote, and turns it into what hooks read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy.keys import PLAIN, User, account
from warmstart.policy.types import (
    At,
    Generic,
    boolean,
    listed,
    literal,
    mapping,
    number,
    one_or_more,
    quantity,
    text,
)
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


_USER = r"[^\s/:*?[\x00-\x1f\x7f-]([^/:*?[\x00-\x1f\x7f]{0,254}[^\s/:*?[\x00-\x1f\x7f])?"  # CORP\alice, alice smith
_ACCOUNT = ("account", r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "a user name")
_PROXY = rf"(?=.{{1,259}}$){_DNS_LABEL}(\.{_DNS_LABEL})*:{_PORT}"
_GLOB = rf"((?![?\[\]]){_PRINTABLE}){{1,256}}"
_HOST_LIST = rf"((?!\?){_PRINTABLE}){{1,256}}"
_PARTS = rf"(\*\*|{_NAME_PART})(/(\*\*|{_NAME_PART})){{0,7}}"
_BRACES = rf"\{{({_SIGN}|\*)+\}}"
_ALIKE = rf"{_PARTS}/{_BRACES}|({_PARTS}/)?({_BRACES})?{_NAME_PART}{_BRACES}"
_PATH_PATTERN = rf"(?=.{{1,256}}$)(?!.*\*\*.*\*\*)({_PARTS}/?|{_ALIKE})"

_Glob = text(
    "pattern", _GLOB, "a pattern: one line of at most 256 printable characters, with * alone, and no ?, [ and ]"
)
_HostList = text(
    "host list",
    _HOST_LIST,
    "a host list, such as n[01-16],login*: of at most 256 characters, with * alone, and no ?",
    _host_list,
)
_NamePattern = text(
    "name pattern", rf"(?=.{{1,128}}$){_NAME_PART}", "a pattern of names: letters, digits, _.+@%=,~!- and *"
)
_PathPattern = text(
    "path pattern",
    _PATH_PATTERN,
    "a pattern of paths: at most 8 names with *, one of them may be **, and {.a,.b} at its end",
)
_Variable = text("variable", r"[A-Za-z_][A-Za-z0-9_]{0,127}", "a variable's name")
# A value in a task prolog's output ends at the newline and is not quoted (Slurm's prolog_epilog.html).
_Value = text("text", rf"{_PRINTABLE}{{0,4096}}", "one line of at most 4096 printable characters")
_User = text("user", _USER, "a user name", _user)
# The names of the checks in `profiles.formats`.
FORMATS = (
    "any", "base32-name", "compressed", "cubin", "empty-or-written", "hsaco", "json", "library", "object", "pickle",
    "sha256-name", "text", "written",
)  # fmt: skip

TYPES: dict[str, Any] = {
    "Account": text(*_ACCOUNT, _account),
    "AnyAccount": text(*_ACCOUNT, lambda name, at: at.find_user(name) or account(name)),
    "AnyProfile": text("name", ".*", "one line"),  # `checks` knows which exist
    "Count": number(0),
    "Duration": quantity("duration", DURATION, parse_duration),
    "Entries": mapping(_PathPattern, listed(_NamePattern, 0, _MOST, list), 1, _MOST),
    "Facts": listed(literal("cpu", "driver", "gpu", "machine")),
    "Formats": mapping(_PathPattern, literal(*FORMATS), 0, _MOST),
    "Glob": _Glob,
    "Globs": one_or_more(_Glob, "pattern or list"),
    "HostLists": one_or_more(_HostList, "host list or list", lambda lists: tuple(chain(*lists))),
    "Label": text("name", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name: letters, digits and _.-, at most 64"),
    "Literal": Generic(literal),
    "LockEnd": text("text", r"(\.[a-z0-9]{1,16})?", "the end of a lock file's name, such as .lock"),
    "Mode": literal("observe", "enforce"),
    "NamePatterns": listed(_NamePattern, 0, _MOST),
    "Path": text("path", r"/[A-Za-z0-9_.@+=%/-]{1,1023}", "an absolute path of letters, digits and _.@+=%-/"),
    "PathGlob": text(
        "path pattern", r"/[A-Za-z0-9_.@+=%/*-]{1,1023}", "an absolute path of letters, digits and _.@+=%-/, and of *"
    ),
    "PathPatterns": listed(_PathPattern, 1, _MOST),
    "Percent": quantity("share", PERCENT, parse_percent),
    "Ports": quantity("`FIRST-LAST`", PORTS, parse_ports),
    "Positive": number(1),
    # Also the name of its directory in the store, in stages and in caches.
    "ProfileName": text(
        "name", r"[a-z][a-z0-9-]{0,31}", "a profile's name: lower-case letters, digits and -, at most 32"
    ),
    "Proxy": text("`HOST:PORT`", _PROXY, "a proxy: HOST:PORT in lower case"),
    "ImageReference": text(
        "`docker://REGISTRY/REPOSITORY:TAG` or `…@sha256:…`", REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"
    ),
    "Registry": text(
        "`HOST` or `HOST:PORT`",
        f"({PLAIN})?{REGISTRY}",
        "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io",
    ),
    "Relocation": literal("relocatable", "constant-path"),
    "Scope": literal("user", "account", "site"),
    "SharedScope": literal("account", "site"),
    "Size": quantity("size", SIZE, parse_size),
    "Some": Generic(lambda item: listed(item, 1)),
    "Users": listed(_User, 1),
    "Value": _Value,
    "Variable": _Variable,
    "Variables": mapping(_Variable, _Value, 1),
    "bool": boolean(),
    "dict": Generic(mapping),
    "tuple": Generic(listed),
}  # fmt: skip
WRITTEN: dict[str, Callable[[Any], Json]] = {  # how an admin writes a value of a type, where that is no plain YAML
    "Account": lambda value: str(value.name),
    "AnyAccount": lambda value: str(value.name),
    "Duration": format_duration,
    "Percent": "{}%".format,
    "Profiles": lambda _: {},  # by name
    "Size": format_size,
}
