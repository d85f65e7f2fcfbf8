"""What checks a policy: pydantic's models of the keys that `policy.compiled` and wings declare. Never on a warm path.

A checked mapping is the NamedTuple that declares its keys. The only module that imports pydantic besides `values`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from warmstart import wing
from warmstart.host import wire
from warmstart.host.wire import Json
from warmstart.lean import dumps
from warmstart.policy.compiled import Policy, Rule
from warmstart.policy.document import Fault, Loc, Plain, dotted, nearest
from warmstart.policy.values import TYPES, WRITTEN, FindUser, mapping
from warmstart.profiles.contract import Profile

_EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_STRICT = ConfigDict(extra="forbid", strict=True)
_ALWAYS = Field(default_factory=dict, validate_default=True)  # of a mapping: each of its keys has a default


def check_shape(data: Plain, find_user: FindUser) -> Policy | list[Fault]:
    """Return the policy of plain YAML data, all sections of wings in its `own`; or every fault of a key or value."""
    try:
        policy: Policy = _made(Policy, model(Policy).model_validate(data, context=find_user))
    except ValidationError as error:
        return [_fault(item) for item in error.errors(include_url=False)]
    return policy


def _fault(error: Any) -> Fault:  # noqa: ANN401 - an item of pydantic's errors
    loc: Loc = tuple(error["loc"])
    if loc and loc[-1] == "[key]":
        return Fault(loc[:-1], f"{dotted(loc[:-2])}: {_problem(error)}", at_key=True)
    if error["type"] == "extra_forbidden":
        advice = nearest(str(loc[-1]), _known_keys(loc[:-1]))
        return Fault(loc, f"{dotted(loc)}: unknown key; {advice}", at_key=True)
    return Fault(loc, f"{dotted(loc) or 'the policy'}: {_problem(error)}")


def _problem(error: Any) -> str:  # noqa: ANN401 - as above
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind in _EXPECTED or kind == "literal_error":
        return f"expected {_EXPECTED.get(kind) or context['expected']}, got {_shown(value, kind)}"
    if kind == "greater_than_equal":
        return f"{value!a} is too low; at least {context['ge']}"
    if kind == "too_short":
        return "is empty; name at least one, or leave the key out"
    return {"missing": "missing", "value_error": str(context.get("error"))}.get(kind, str(error["msg"]))


def _shown(value: object, kind: str) -> str:
    if value is None:
        return "nothing; give it a value or leave the key out"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if kind == "string_type":
        written = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{written}; put it in quotes: '{written}'"
    return ascii(value)


def _known_keys(loc: Loc) -> list[str]:
    """Return the keys that the mapping at `loc` may have."""
    found = model(Policy)
    parts = iter(loc)
    for part in parts:
        if isinstance(part, str):
            annotation = found.model_fields[part].annotation
            found = _model_in(annotation) or found
            if get_origin(annotation) is dict:
                next(parts, None)  # the admin's own name
    return list(found.model_fields)


def json_schema() -> Json:
    """Return the JSON Schema of policy.yaml; its `$defs` are the sections."""
    schema = model(Policy).model_json_schema(schema_generator=_TypeTitles)
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "warmstart policy"}


def as_json(value: Any) -> Json:  # noqa: ANN401 - a section, or a rule's key
    """Return what wings read of a checked value: a section as an object, NamedTuples below it as arrays (`wire`)."""
    return wire.parse(dumps(value._asdict() if hasattr(value, "_asdict") else value))


@cache
def model(section: Any) -> type[BaseModel]:  # noqa: ANN401 - a NamedTuple's class
    """Return the model of a mapping with the keys that a NamedTuple declares."""
    fields: dict[str, Any] = dict(_fields(section))
    for part in map(wing.load, wing.with_part("policy")):
        if section is Rule and part.RULE_KEYS is not None:
            fields |= _fields(part.RULE_KEYS)
        elif section is Policy:
            fields |= {key: (_checked(own), _ALWAYS) for key, own in part.SECTIONS.items()}
    made: type[BaseModel] = create_model(section.__name__, __config__=_STRICT, __doc__=section.__doc__, **fields)
    return made


def _checked(section: Any) -> Any:  # noqa: ANN401 - a NamedTuple's class; what typing calls an annotation
    """Return the type of a mapping: it is checked, and is the NamedTuple then."""
    return Annotated[model(section), AfterValidator(partial(_made, section))]


def _made(section: Any, checked: BaseModel) -> Any:  # noqa: ANN401 - an instance of the section
    values = dict(checked)
    own = {key: values.pop(key) for key in [*values] if key not in section._fields}
    if section is Rule:
        defaults = type(checked).model_fields
        given = {key: value for key, value in own.items() if value != defaults[key].default}
        values["own"] = {key: as_json(_of_rule(value, values["name"])) for key, value in given.items()}
    elif section is Policy:
        values["own"] = {key: as_json(value) for key, value in own.items()}
    return section(**values)


def _of_rule(value: Any, name: str) -> Any:  # noqa: ANN401 - of a wing's key
    """Return a value in which items that want to know their rule do so."""
    has_rule = isinstance(value, tuple) and all("rule" in getattr(item, "_fields", ()) for item in value)
    return [item._replace(rule=name) for item in value] if has_rule else value


def _fields(section: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:  # noqa: ANN401 - a NamedTuple's class
    """Yield the keys that a NamedTuple declares, each with its type and pydantic's field."""
    module = vars(sys.modules[section.__module__])
    sentences, names = _sentences(section.__module__)[section.__name__], _Names(module)
    for key, annotation in section.__annotations__.items():
        text = getattr(annotation, "__forward_arg__", annotation)  # as typing.NamedTuple keeps it
        is_section = text not in TYPES and hasattr(module.get(text), "_fields")
        if key in sentences or is_section:
            default = section._field_defaults.get(key, ...)
            field = _ALWAYS if is_section and default is not ... else _field(text, default, sentences.get(key))
            yield key, (eval(text, {}, names), field)  # noqa: S307 - our own source


def _field(text: str, default: Any, sentence: str | None) -> Any:  # noqa: ANN401
    kind = text.partition(" ")[0]
    if default in (..., None) or kind not in WRITTEN:
        return Field(default, description=sentence)
    written = WRITTEN[kind](default)
    if kind in ("Account", "AnyAccount"):
        return Field(written, description=sentence, validate_default=True)
    return Field(default, description=sentence, json_schema_extra={"default": written})


class _Names(dict[str, Any]):
    """What names in a key's type stand for: types of `values`, else a mapping, else what the module has."""

    def __init__(self, module: dict[str, Any]) -> None:
        super().__init__(TYPES)
        self._module = module

    def __missing__(self, name: str) -> Any:  # noqa: ANN401
        if name == "Profiles":
            return mapping(TYPES["ProfileName"], _checked(Profile), AfterValidator(_named))
        found = self._module[name]
        return _checked(found) if hasattr(found, "_fields") else found


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


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - what typing calls an annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


class _TypeTitles(GenerateJsonSchema):
    """Leave `title` to the words for types; pydantic would set it to each key's name."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's interface
        return False
