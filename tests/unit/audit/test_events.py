"""docs/reference/audit.md lists the events that the code has, with examples of the right shape."""

from __future__ import annotations

import json
import re
from pathlib import Path

from warmstart import wing
from warmstart.audit import events
from warmstart.audit.line import shaped

DOCS = Path(__file__).parents[3] / "docs"
SECTION = re.compile(r"^### `([a-z.-]+)`\n\n(.+?)```json\n(.+?)\n```$", re.MULTILINE | re.DOTALL)


def catalogue() -> dict[str, str]:
    """Return the code's event names by the names of their constants, those of wings included."""
    modules = [events, *map(wing.load, wing.with_part("events"))]
    found = [item for module in modules for item in vars(module).items()]
    return {name: value for name, value in found if name.isupper() and isinstance(value, str)}


def documents() -> str:
    """Return the page of events, and those of wings."""
    return "\n".join(page.read_text() for page in [DOCS / "reference" / "audit.md", *(DOCS / "wings").glob("*.md")])


def test_the_page_has_exactly_the_events_of_the_code() -> None:
    """An event without a section, or a section without an event, is found here."""
    documented = re.findall(r"^### `(.*)`$", documents(), re.MULTILINE)
    assert sorted(documented) == sorted(catalogue().values())


def test_names_are_noun_verb_and_constants_say_the_same() -> None:
    """IMAGE_IMPORTED is image.imported."""
    for constant, name in catalogue().items():
        assert re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", name)
        assert constant == re.sub("[.-]", "_", name).upper()


def test_every_event_is_one_that_something_emits() -> None:
    """A name that nothing emits is no event."""
    package = Path(events.__file__).parents[1]
    code = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "events.py")
    assert catalogue().keys() - re.findall(r"\w+", code) == set()


def test_each_event_has_an_example_line_as_the_log_has_it() -> None:
    """The example is valid, of its event, in the documented key order."""
    examples = SECTION.findall(documents())
    table = (DOCS / "reference" / "audit.md").read_text().partition("\n\n| key |")[2].partition("\n\n")[0]
    common = set(re.findall(r"`([a-z_]+)`", table))
    assert sorted(name for name, _, _ in examples) == sorted(catalogue().values())
    for name, text, example in examples:
        line = json.loads(example)
        assert line["event"] == name
        assert list(shaped(line).items()) == list(line.items())
        assert all(key in text or "others" in text for key in line.keys() - common), name
