"""What checks a policy: the keys that `policy.keys` and wings declare. Never on a warm path.

A checked mapping is the NamedTuple that declares its keys.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from warmstart import wing
from warmstart.host.wire import Json
from warmstart.policy.document import Fault, Plain, nearest
from warmstart.policy.keys import Policy, Rule
from warmstart.policy.types import TYPES, At, FindUser, Type, as_json, mapping
from warmstart.profiles.contract import Profile

_DECLARED: list[Any] = []  # the classes of NamedTuples whose keys were asked for


class _Key(NamedTuple):
    """A key of a mapping."""

    type: Type
    sentence: str  # "" for a mapping, which has one of its own
    default: Json = ...  # as an admin writes it


def check_shape(data: Plain, find_user: FindUser) -> Policy | list[Fault]:
    """Return the policy of plain YAML data, all sections of wings in its `own`; or every fault of a key or value."""
    at = At((), [], find_user)
    policy: Policy = _section(Policy).check(data, at)
    return at.faults or policy


def json_schema() -> Json:
    """Return the JSON Schema of policy.yaml; its `$defs` are the sections."""
    _section(Policy)  # and so all below it
    schemas = {declared.__name__: _schema(declared) for declared in _DECLARED}
    whole = schemas.pop(Policy.__name__)
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {**whole, "$schema": draft, "title": "warmstart policy", "$defs": schemas}


def _schema(declared: Any) -> Json:  # noqa: ANN401 - a NamedTuple's class
    schema: Json = {"title": declared.__name__, "type": "object", "description": inspect.getdoc(declared)}
    schema |= {"properties": {}, "additionalProperties": False}
    for name, key in _keys(declared).items():
        schema["properties"][name] = dict(key.type.schema)
        if key.default is ...:
            schema.setdefault("required", []).append(name)
        elif key.sentence:
            schema["properties"][name]["default"] = key.default
        if key.sentence:
            schema["properties"][name]["description"] = key.sentence
    return schema


@cache
def _section(declared: Any) -> Type:  # noqa: ANN401 - a NamedTuple's class
    """Return the type of a mapping with the keys that a NamedTuple declares; it is one then."""
    keys = _keys(declared)
    _DECLARED.append(declared)

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - the NamedTuple
        if not isinstance(value, dict):
            return at.expected("a mapping", value)
        before, given = len(at.faults), {}
        for name in value.keys() - keys.keys():
            at.below(name).fault(f"unknown key; {nearest(name, [*keys])}", at_key=True)
        for name, key in keys.items():
            if (written := value.get(name, key.default)) is ...:
                at.below(name).fault("missing")
            else:
                given[name] = key.type.check(written, at.below(name))
        return _made(declared, given) if len(at.faults) == before else None

    return Type({"$ref": f"#/$defs/{declared.__name__}"}, check)


def _made(declared: Any, given: dict[str, Any]) -> Any:  # noqa: ANN401 - a NamedTuple's class, and one of it
    """Return a section; what wings read of the policy and its rules becomes JSON."""
    own = {key: given.pop(key) for key in [*given] if key not in declared._fields}
    if declared is Rule:
        given["own"] = {key: as_json(_with_rule(value, given["name"])) for key, value in own.items() if value}
    elif declared is Policy:
        given["own"] = {key: as_json(value) for key, value in own.items()}
    return declared(**given)


def _with_rule(value: Any, name: str) -> Any:  # noqa: ANN401 - of a wing's key
    """Return a value in which items that want to know their rule do so."""
    has_rule = isinstance(value, tuple) and all("rule" in getattr(item, "_fields", ()) for item in value)
    return [item._replace(rule=name) for item in value] if has_rule else value


@cache
def _keys(declared: Any) -> dict[str, _Key]:  # noqa: ANN401 - a NamedTuple's class
    """Return the keys that a NamedTuple declares; those of wings, too."""
    module = vars(sys.modules[declared.__module__])
    sentences, names, keys = _sentences(declared.__module__)[declared.__name__], _Names(module), {}
    for key, annotation in declared.__annotations__.items():
        text = getattr(annotation, "__forward_arg__", annotation)  # as typing.NamedTuple keeps it
        is_section = text not in TYPES and hasattr(module.get(text), "_fields")
        if key in sentences or is_section:
            kind = eval(text, {}, names)  # noqa: S307 - our own source
            default = declared._field_defaults.get(key, ...)
            if default is not ...:
                default = {} if is_section else kind.written(default)
            keys[key] = _Key(kind, sentences.get(key, ""), default)
    for part in map(wing.load, wing.with_part("policy")):
        if declared is Rule and part.RULE_KEYS is not None:
            keys |= _keys(part.RULE_KEYS)
        elif declared is Policy:
            keys |= {key: _Key(_section(own), "", {}) for key, own in part.SECTIONS.items()}
    return keys


class _Names(dict[str, Any]):
    """What names in a key's type stand for: types of `types`, else a mapping, else what the module has."""

    def __init__(self, module: dict[str, Any]) -> None:
        super().__init__(TYPES)
        self._module = module

    def __missing__(self, name: str) -> Type:
        if name == "Profiles":
            named = mapping(TYPES["ProfileName"], _section(Profile))
            return Type(named.schema, lambda value, at: _named(named.check(value, at) or {}), lambda _: {})
        return _section(self._module[name])


def _named(profiles: dict[str, Profile]) -> tuple[Profile, ...]:
    return tuple(profile._replace(name=name) for name, profile in profiles.items())


@cache
def _sentences(module: str) -> dict[str, dict[str, str]]:
    """Return the sentences below the fields of a module's classes, by the class's name and the field's."""
    return {
        node.name: {
            field.target.id: " ".join(below.value.value.split())
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for node in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(node, ast.ClassDef)
    }
