"""Which log is read, and since when."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.lib.node import NODE, Node
from warmstart.cli import audit
from warmstart.paths import Installation

COMMAND = click.Command("x")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-01-31T09:30", "2026-01-31T09:30:00.000Z"),
        ("2026-01-31T10:30:00+01:00", "2026-01-31T09:30:00.000Z"),
    ],
)
def test_moments(written: str, meant: str) -> None:
    """A date is UTC, unless it says otherwise."""
    assert audit.moment(click.Context(COMMAND), click.Option(["--since"]), written) == meant


def test_no_moment() -> None:
    """None, or a message that says what to write."""
    assert audit.moment(click.Context(COMMAND), click.Option(["--since"]), None) is None
    with pytest.raises(click.BadParameter, match="7d"):
        audit.moment(click.Context(COMMAND), click.Option(["--since"]), "yesterday")


def test_journals_of_all_nodes(node: Node) -> None:
    """Of this host."""
    Path(node.paths.root).mkdir()
    assert audit.journal_dirs(node.installation)[0] == node.installation.node(NODE).journal
    assert audit.journal_dirs(Installation("/nowhere")) == []


def test_without_a_policy_a_log_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The policy says where it is."""
    with pytest.raises(click.exceptions.Exit):
        audit.opened_log(Installation("/nowhere"), ())
    assert "--from" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "said"), [(FileNotFoundError, "no hook has moved"), (PermissionError, "only root")])
def test_a_log_that_can_not_be_read(error: type[OSError], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ends the command with what to do."""
    with pytest.raises(click.exceptions.Exit), audit.reading(()):
        raise error(1, "no", "audit.jsonl")
    assert said in capsys.readouterr().err
