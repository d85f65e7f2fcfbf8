"""What is printed: nothing that a terminal obeys, and nothing cut."""

from __future__ import annotations

import json
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.cli import output
from warmstart.store.layout import StoreFailed

TEXT = st.text(max_size=30) | st.sampled_from(["\x1b[31mred", "\u202e", "[bold]x[/bold]", ":smile:", "x" * 500])


@given(TEXT)
def test_nothing_that_is_shown_is_obeyed(capsys: pytest.CaptureFixture[str], text: str) -> None:
    output.say(text)
    output.show_table(("a", "b"), [(text, None), (7, text)])
    output.show_fields([("a", text)])
    output.warn(text)
    shown = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), ([], "-"), (True, "yes"), (["a", None], "a,-"), ({"a": 1, "b": None}, "a=1,b=-"), (1.25, "1.2")],
)
def test_no_value_looks_like_python(value: object, shown: str) -> None:
    assert output.text(value) == shown


LONG = "n1 cannot reach the registry registry.example.com/team/application:2026.01 at the moment"
ROWS = [("n1", 7, LONG), ("node-with-a-name", 11, "ok")]


def test_a_row_is_a_line_where_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table(("node", "job", "reason"), ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "NODE              JOB  REASON",
        f"n1                  7  {LONG}",
        "node-with-a-name   11  ok",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_fits_a_terminal_and_cuts_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(output, "_width", lambda: width)
    output.show_table(("node", "job", "reason"), ROWS)
    shown = capsys.readouterr().out
    assert all(len(line) <= max(width, 50) for line in shown.splitlines())
    assert "registry.example.com/team/application:2026.01" in shown
    assert shown.split() == [
        word for row in [("NODE", "JOB", "REASON"), *ROWS] for word in " ".join(map(str, row)).split()
    ]


@given(st.dictionaries(TEXT, TEXT, max_size=3))
def test_json_is_one_line_of_ascii(capsys: pytest.CaptureFixture[str], value: dict[str, str]) -> None:
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
    with pytest.raises(click.exceptions.Exit) as caught:
        output.fail(error, "look there")
    assert caught.value.exit_code == output.UNUSABLE
    assert capsys.readouterr().err == f"{said}warmstart: look there\n"


def test_without_a_terminal_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither bar nor spinner: the output may be a log."""
    with output.working("x"):
        assert list(output.progress([1, 2], "x", quiet=False)) == [1, 2]
    with output.bar("x", quiet=False) as move:
        move("fetching it", 1)
    assert capsys.readouterr() == ("", "")


def test_an_import_s_bar_shows_phase_and_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_is_watched", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with output.bar("importing a\x1b:1", quiet=False) as move:
        move("fetching it", 1_000_000)
        move("unpacking it", 2_000_000)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "\x1b" not in shown
    assert "importing a\\x1b:1: fetching it" in shown
    assert re.search(r"importing a\\x1b:1: unpacking it .* 2\.0/\? MB", shown)


@pytest.mark.parametrize(("as_json", "out", "err"), [(False, "", "warmstart: nothing to list\n"), (True, "[]\n", "")])
def test_an_empty_listing_says_so(capsys: pytest.CaptureFixture[str], *, as_json: bool, out: str, err: str) -> None:
    output.show_rows((output.Column("a"),), [], as_json=as_json)
    assert capsys.readouterr() == (out, err)
