"""What is printed: nothing that a terminal obeys, and nothing cut."""

from __future__ import annotations

import json

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmstart.entry.cli import output
from warmstart.store.layout import StoreFailed

TEXT = st.text(max_size=30) | st.sampled_from(["\x1b[31mred", "\u202e", "[bold]x[/bold]", ":smile:", "x" * 500])
SAME = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SAME
@given(TEXT)
def test_nothing_that_is_shown_is_obeyed(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """In paragraphs, tables, titles and remarks alike."""
    output.say(text)
    output.show_table(("a", "b"), [(text, None), (7, text)], text)
    output.warn(text)
    shown = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


def test_markup_is_only_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A registry's message may look like it."""
    output.say("[bold]x[/bold] :smile:")
    output.show_table(("a",), [("[red]y[/red]",)])
    shown = capsys.readouterr().out
    assert "[bold]x[/bold] :smile:" in shown
    assert "[red]y[/red]" in shown


@SAME
@given(st.dictionaries(TEXT, TEXT, max_size=3))
def test_json_is_one_line_of_ascii(capsys: pytest.CaptureFixture[str], value: dict[str, str]) -> None:
    """For programs."""
    output.show_json(value)
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert shown.count("\n") == 1
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreFailed(what="reading", problem="gone"), "warmstart: reading: gone\n"),
        (FileNotFoundError(2, "No such file", "/x"), "warmstart: /x: No such file\n"),
    ],
)
def test_a_failure_is_said_with_what_to_do(
    capsys: pytest.CaptureFixture[str], error: StoreFailed | OSError, said: str
) -> None:
    """Status 2."""
    with pytest.raises(click.exceptions.Exit) as caught:
        output.fail(error, "look there")
    assert caught.value.exit_code == output.UNUSABLE
    assert capsys.readouterr().err == f"{said}warmstart: look there\n"


def test_without_a_terminal_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither bar nor spinner: the output may be a log."""
    with output.working("x"):
        assert list(output.progress([1, 2], "x", quiet=False)) == [1, 2]
    assert capsys.readouterr() == ("", "")
