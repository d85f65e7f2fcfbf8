"""What single values of the policy may look like, and what its mappings have in common."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from warmstart.policy import schema

LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
ACCOUNT = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
PATH = r"/[A-Za-z0-9_.@+=%/-]{1,1023}"
# No wider than what images.reference parses: an admin's slip is told here, and not to every job.
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_HOST = rf"{_LABEL}(\.{_LABEL})*(:{_PORT})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
REGISTRY = rf"(?=localhost$|.*[.:])(?!(index|registry-1)\.docker\.io$)(?=.{{1,259}}$){_HOST}"
# What a registry may send an import to; `*.` stands for any number of labels.
DESTINATION = rf"(?=.{{1,259}}$)(\*\.)?{_HOST}"
PROXY = rf"(?=.{{1,259}}$){_LABEL}(\.{_LABEL})*:{_PORT}"
REFERENCE = (
    rf"(?=.{{1,264}}$)docker://({_HOST}/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
# A profile's directory in the store, in stages, in caches: one word.
PROFILE = r"[a-z][a-z0-9-]{0,31}"
_SIGN = r"[A-Za-z0-9_.+@%=,~?!\[\]-]"
_NAME_PART = rf"(?!\.{{1,2}}(/|$))({_SIGN}|\*(?!\*))+"
NAME_PATTERN = rf"(?=.{{1,128}}$){_NAME_PART}"
PATH_PATTERN = rf"(?=.{{1,256}}$)(?!.*\*\*.*\*\*)(\*\*|{_NAME_PART})(/(\*\*|{_NAME_PART})){{0,7}}/?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
# A task prolog's value ends at the newline and is not quoted (Slurm's prolog_epilog.html).
VALUE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{0,4096}"
GLOB = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}"


def matches(pattern: str, what: str) -> AfterValidator:
    """Return the check that a text is wholly of `pattern`; `what` says what it is then."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{text!a} is not {what}")
        return text

    return AfterValidator(check)


def in_schema(pattern: str) -> WithJsonSchema:
    """Return what editors are told of it."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def listed(value: object) -> object:
    """Take one text for a list of one."""
    return [value] if isinstance(value, str) else value


Label = Annotated[str, matches(LABEL, "a name: letters, digits and _.-, at most 64"), in_schema(LABEL)]
Account = Annotated[str, matches(ACCOUNT, "a user name"), in_schema(ACCOUNT)]
Path = Annotated[str, matches(PATH, "an absolute path of letters, digits and _.@+=%-/"), in_schema(PATH)]
Registry = Annotated[
    str,
    matches(REGISTRY, "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io"),
    in_schema(REGISTRY),
]
Destination = Annotated[
    str,
    matches(DESTINATION, "a host: HOST, HOST:PORT or *.DOMAIN in lower case"),
    in_schema(DESTINATION),
]
Proxy = Annotated[str, matches(PROXY, "a proxy: HOST:PORT in lower case"), in_schema(PROXY)]
Reference = Annotated[
    str,
    matches(REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"),
    in_schema(REFERENCE),
]
Variable = Annotated[str, matches(VARIABLE, "a variable's name"), in_schema(VARIABLE)]
Value = Annotated[str, matches(VALUE, "one line of at most 4096 printable characters"), in_schema(VALUE)]
Glob = Annotated[str, matches(GLOB, "one line of at most 256 printable characters"), in_schema(GLOB)]
Globs = Annotated[
    list[Glob],
    BeforeValidator(listed),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Profile = Annotated[
    str, matches(PROFILE, "a profile's name: lower-case letters, digits and -, at most 32"), in_schema(PROFILE)
]
NamePattern = Annotated[
    str,
    matches(NAME_PATTERN, "a pattern of names: letters, digits, _.+@%=,~-, *, ? and [...]"),
    in_schema(NAME_PATTERN),
]
PathPattern = Annotated[
    str,
    matches(PATH_PATTERN, "a pattern of paths: at most 8 names with *, ? and [...], one of them may be **"),
    in_schema(PATH_PATTERN),
]
Duration = Annotated[int, BeforeValidator(schema.parse_duration), in_schema(schema.DURATION)]
Size = Annotated[int, BeforeValidator(schema.parse_size), in_schema(schema.SIZE)]
Percent = Annotated[int, BeforeValidator(schema.parse_percent), in_schema(schema.PERCENT)]
Ports = Annotated[tuple[int, int], BeforeValidator(schema.parse_ports), in_schema(schema.PORTS)]
Scope = Literal["user", "account", "site"]


class Section(BaseModel):
    """What every mapping of the policy has in common: unknown keys and wrong types are refused."""

    # validate_default: defaults stand in the schema as an admin writes them ("4m").
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True)


def default(written: str, description: str) -> Any:  # noqa: ANN401 - text here, a number after validation
    """Return the field whose default is `written`, as an admin would write it."""
    return Field(default=written, description=description)
