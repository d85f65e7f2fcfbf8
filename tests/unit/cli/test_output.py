"""What is printed: nothing that a terminal obeys, and nothing cut."""

from __future__ import annotations

import json
import re

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmstart.cli import output
from warmstart.policy.units import BYTES
from warmstart.store.layout import StoreFailed

TEXT = st.text(max_size=30) | st.sampled_from(["\x1b[31mred", "\u202e", "[bold]x[/bold]", ":smile:", "x" * 500])
SAME = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SAME
@given(TEXT)
def test_nothing_that_is_shown_is_obeyed(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """In paragraphs, tables, titles and remarks alike."""
    output.say(text)
    output.show_table(("a", "b"), [(text, None), (7, text)])
    output.show_fields([("a", text)])
    output.warn(text)
    shown = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


@given(st.integers(0, 1 << 50))
def test_sizes_are_short_and_near(size: int) -> None:
    """In the policy's units, as the policy writes them."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]+)", output.size(size))
    assert found
    assert float(found[1]) * BYTES[found[2]] == pytest.approx(size, rel=0.06, abs=0.06)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (0.031, "31ms"), (30, "30s"), (90, "1.5m"), (86400, "1d"), (None, "-")]
)
def test_durations_have_the_policys_units(seconds: float | None, shown: str) -> None:
    """And milliseconds below a second."""
    assert output.duration(seconds) == shown


def test_times_are_of_rfc_3339() -> None:
    """In UTC, and sortable as text."""
    assert output.rfc3339(1769851800.25) == "2026-01-31T09:30:00Z"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), ([], "-"), (True, "yes"), (["a", None], "a,-"), ({"a": 1, "b": None}, "a=1,b=-"), (1.25, "1.2")],
)
def test_no_value_looks_like_python(value: object, shown: str) -> None:
    """Lists, mappings and nothing at all are written as people write them."""
    assert output.text(value) == shown


LONG = "n1 cannot reach the registry registry.example.com/team/application:2026.01 at the moment"
ROWS = [("n1", 7, LONG), ("node-with-a-name", 11, "ok")]


def test_a_row_is_a_line_where_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    """However long it is; numbers are aligned on their right."""
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
    """The last cell wraps beside the others or, where there is little room, below them."""
    monkeypatch.setattr(output, "_width", lambda: width)
    output.show_table(("node", "job", "reason"), ROWS)
    shown = capsys.readouterr().out
    assert all(len(line) <= max(width, 50) for line in shown.splitlines())
    assert "registry.example.com/team/application:2026.01" in shown
    assert shown.split() == [
        word for row in [("NODE", "JOB", "REASON"), *ROWS] for word in " ".join(map(str, row)).split()
    ]


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
    with output.bar("x", quiet=False) as move:
        move("fetching it", 1)
    assert capsys.readouterr() == ("", "")


def test_an_import_s_bar_shows_phase_and_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal; the speed begins anew with each phase, and control characters stay out."""
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


def test_a_list_wraps_after_its_commas() -> None:
    """No name in it is cut."""
    names = [f"VARIABLE_NUMBER_{number}" for number in range(8)]
    lines = output._wrapped(f"  variables={','.join(names)}", 40)
    assert len(lines) > 1
    assert all(len(line) <= 40 for line in lines)
    assert [name for line in lines for name in line.strip().removeprefix("variables=").rstrip(",").split(",")] == names


@pytest.mark.parametrize(("as_json", "out", "err"), [(False, "", "warmstart: nothing to list\n"), (True, "[]\n", "")])
def test_an_empty_listing_says_so(capsys: pytest.CaptureFixture[str], *, as_json: bool, out: str, err: str) -> None:
    """To people; programs have their empty list."""
    output.show_rows((output.Column("a"),), [], as_json=as_json)
    assert capsys.readouterr() == (out, err)
