"""The files that the report can be written to, which wings bring (`forms.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from warmstart import wing
from warmstart.report.summary import Summary


class Form(NamedTuple):
    """A file that the report can be written to."""

    help: str  # of its option
    text: Callable[[Summary, str], str]  # from the summary, and when that was


def forms() -> dict[str, Form]:
    """Return the forms of the wings that are here, by the option's name."""
    found: list[Mapping[str, Form]] = [wing.load(module).FORMS for module in wing.with_part("forms")]
    return {name: form for part in found for name, form in part.items()}
