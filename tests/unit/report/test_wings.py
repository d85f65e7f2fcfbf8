"""What wings add to the report, whichever are here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warmstart import wing
from warmstart.report.summary import summarize
from warmstart.report.wings import Form, forms


def test_the_forms_of_all_wings_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file that declares them."""
    form = Form("Write verse.", lambda _summary, made: made)
    monkeypatch.setattr(wing, "with_part", lambda part: [f"one.{part}"])
    monkeypatch.setattr(wing, "load", lambda _module: SimpleNamespace(FORMS={"verse": form}))
    assert forms() == {"verse": form}


def test_a_form_has_a_text_for_an_empty_report() -> None:
    """Each of them."""
    assert all(form.help and form.text(summarize([]), "now") for form in forms().values())
