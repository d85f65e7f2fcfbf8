"""What wings add to the report: sections of it (`sections.py`), and files that it can be written to (`forms.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from warmstart import wing
from warmstart.audit.runs import Run
from warmstart.report.summary import Summary


class Table(NamedTuple):
    """What a section shows people."""

    title: str
    rows: Sequence[tuple[str, int | str, str]]  # as those of the summary: what, the number, of which


class Content(NamedTuple):
    """What a section says."""

    figures: object  # for JSON
    table: Table


class Section(Protocol):
    """A section of the report: what it counts in the runs."""

    def add(self, run: Run) -> None:
        """Count one run."""

    def told(self) -> Content | None:
        """Return what the runs so far amount to; None if there is nothing to say."""


class Form(NamedTuple):
    """A file that the report can be written to."""

    help: str  # of its option
    text: Callable[[Summary, Sequence[Table], str], str]  # from the summary, the sections, and when that was


def sections() -> dict[str, Section]:
    """Return new sections of the wings that are here, by their names in JSON."""
    found: list[Mapping[str, Callable[[], Section]]] = [
        wing.load(module).SECTIONS for module in wing.with_part("sections")
    ]
    return {name: section() for part in found for name, section in part.items()}


def forms() -> dict[str, Form]:
    """Return the forms of the wings that are here, by the option's name."""
    found: list[Mapping[str, Form]] = [wing.load(module).FORMS for module in wing.with_part("forms")]
    return {name: form for part in found for name, form in part.items()}


def watched(runs: Iterable[Run], sections: Iterable[Section]) -> Iterator[Run]:
    """Pass runs on, and have sections count them."""
    watching = [*sections]
    for run in runs:
        for section in watching:
            section.add(run)
        yield run
