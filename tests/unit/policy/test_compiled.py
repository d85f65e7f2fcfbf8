"""Every key of the schema reaches the hooks, and something in them reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from warmstart.policy import compiled, schema
from warmstart.profiles.defined import DefinedProfile

HOOKS = Path(__file__).resolve().parents[3] / "hooks" / "warmstart"
# Sections whose form for hooks has another name.
FORMS: dict[str, type[object]] = {
    "DefinedProfile": DefinedProfile,
    "Files": DefinedProfile,
    "PolicyModel": compiled.Policy,
}
RENAMED = {
    "files": "profiles",
    "include": "entries",
    "only_successful": "after_success",
    "publish": "publishers",
    "repository": "pattern",
}
NOT_IN_HOOKS = {"version"}
UNPACKED = {"owners"}  # read as an item of a tuple


def keys() -> list[tuple[str, str, type[object]]]:
    """Return (section, key, compiled form) for every key that has a field of its own in hooks."""
    sections = [cls for cls in schema.Section.__subclasses__() if cls.__module__ == schema.__name__]
    forms = {cls: FORMS.get(cls.__name__, getattr(compiled, cls.__name__, None)) for cls in sections}
    return [
        (cls.__name__, key, form)
        for cls, form in forms.items()
        if form is not None
        for key in cls.model_fields
        if key not in NOT_IN_HOOKS
    ]


def test_every_section_has_a_form_for_hooks() -> None:
    """A `match` becomes conditions, `publish` the rule's `publishers`."""
    names = {cls.__name__ for cls in schema.Section.__subclasses__() if cls.__module__ == schema.__name__}
    assert {name for name in names if not hasattr(compiled, name)} - {*FORMS} == {"Match", "Publish"}


@pytest.mark.parametrize(("section", "key", "form"), keys(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_key_reaches_the_hooks(section: str, key: str, form: type[object]) -> None:
    """The schema says what an admin may write, `policy.compiled` what hooks read."""
    assert {key, RENAMED.get(key)} & {*form._fields}, f"add {key} of schema.{section} to {form.__name__}"  # type: ignore[attr-defined]


def test_every_key_is_read() -> None:
    """A key without effect is worse than one that is refused: an admin relies on it."""
    apart = {HOOKS / "policy" / name for name in ("schema.py", "compiled.py", "load.py", "checks.py", "reference.py")}
    code = "\n".join(path.read_text() for path in HOOKS.rglob("*.py") if path not in apart)
    read = {*re.findall(r"\.([a-z_]+)\b", code)}
    unread = {key for _, key, _ in keys() if not {key, RENAMED.get(key)} & read}
    assert unread <= UNPACKED, "nothing in hooks/warmstart reads these keys"
