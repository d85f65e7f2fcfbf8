"""What wings add to the report, whichever are here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warmstart import wing
from warmstart.audit.runs import Run
from warmstart.report.summary import summarize
from warmstart.report.wings import Content, Form, Table, forms, sections, watched


class Hooks:
    """A section of the hooks that ran."""

    def __init__(self) -> None:
        self.hooks: list[str] = []

    def add(self, run: Run) -> None:
        """Note it."""
        self.hooks.append(run.hook)

    def told(self) -> Content:
        """Return them."""
        return Content(self.hooks, Table("Hooks", [(hook, 1, "") for hook in self.hooks]))


def test_every_section_sees_every_run() -> None:
    """In the order of the log, and the summary sees them, too."""
    one, other = Hooks(), Hooks()
    seen = [run.hook for run in watched([Run("prolog", "0a", "n1"), Run("epilog", "0b", "n1")], iter((one, other)))]
    assert seen == one.hooks == other.hooks == ["prolog", "epilog"]


def test_the_parts_of_all_wings_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file that declares them; a section is made anew for each report."""
    form = Form("Write verse.", lambda _summary, _tables, made: made)
    monkeypatch.setattr(wing, "with_part", lambda part: [f"one.{part}"])
    monkeypatch.setattr(wing, "load", lambda _module: SimpleNamespace(SECTIONS={"hooks": Hooks}, FORMS={"verse": form}))
    assert forms() == {"verse": form}
    assert sections()["hooks"] is not sections()["hooks"]


def test_of_nothing_wings_tell_nothing() -> None:
    """A form has its text all the same."""
    assert [section.told() for section in sections().values()] == [None] * len(sections())
    assert all(form.help and form.text(summarize([]), [], "now") for form in forms().values())
