"""`warmstart audit`: its table, its JSON, its filters and its messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from tests.lib.command_line import POLICY, installed, run
from warmstart.audit.query import AuditLog
from warmstart.audit.rendering import console
from warmstart.cli import audit
from warmstart.paths import Installation

LINES = [
    {"schema": 1, "ts": "2026-01-01T00:00:00.000Z", "event": "image.imported", "hook": "prolog", "node": "n1",
     "job_id": 7, "user": "a", "step": "image", "outcome": "ok", "duration_ms": 12.5, "image": "reg/app:1"},
    {"schema": 1, "ts": "2026-01-02T00:00:00.000Z", "event": "hook.finished", "hook": "prolog", "node": "n2",
     "job_id": 8, "user": "b", "outcome": "refused", "duration_ms": 9.5,
     "failures": [{"step": "image", "kind": "user", "code": "x", "reason": "no such", "hint": "look\x1b[2J closer"}]},
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return the path of a log with two lines."""
    path = tmp_path / "audit.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return str(path)


@pytest.fixture
def nowhere(tmp_path: Path) -> Installation:
    return Installation(str(tmp_path / "prefix"))


def test_a_line_tells_when_where_what_and_why(nowhere: Installation, log: str) -> None:
    result = run(nowhere, "audit", "--from", log)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.split() == [
        "2026-01-01T00:00:00.000Z", "[info", "]", "image.imported", "hook=prolog", "node=n1", "job_id=7", "user=a",
        "step=image", "outcome=ok", "duration_ms=12.5", "image=reg/app:1",
    ]  # fmt: skip
    assert "hook.finished" in second
    assert r"no such - look\x1b[2J closer" in second.replace(r"\\", "\\")
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [("--job", "9"), ("--node", "n3"), ("--event", "job"), ("--user", "c"), ("--since", "1h"),
     ("--since", "2026-01-02T00:00:01"), ("--outcome", "failed"), ("--job", "7", "--node", "n2")],
)  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_nothing_found_is_status_1(
    nowhere: Installation, log: str, arguments: tuple[str, ...], form: tuple[str, ...]
) -> None:
    result = run(nowhere, "audit", "--from", log, *arguments, *form)
    assert result.exit_code == 1
    assert "2026-" not in result.stdout


@pytest.mark.parametrize("since", ["2026-01-02", "2026-01-02T00:00Z", "2026-01-02 00:00+00:00", "99999d"])
def test_since_takes_dates_in_utc_and_durations(nowhere: Installation, log: str, since: str) -> None:
    result = run(nowhere, "audit", "--from", log, "--since", since, "--outcome", "refused")
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [("--since", "yesterday"), ("--since", "999999999d"), ("--job", "0"), ("--job", "x")],
)
def test_wrong_usage_is_status_2(nowhere: Installation, log: str, arguments: tuple[str, ...]) -> None:
    result = run(nowhere, "audit", "--from", log, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_log_that_is_missing_is_status_2(nowhere: Installation, log: str) -> None:
    result = run(nowhere, "audit", "--from", log, "--from", "/nonexistent")
    assert (result.exit_code, "/nonexistent: No such file" in result.stderr) == (2, True)


def test_without_a_policy_it_says_how_to_go_on(nowhere: Installation) -> None:
    result = run(nowhere, "audit")
    assert result.exit_code == 2
    assert "--from PATH" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        ((), [7, 8]),
        (("--until", "2026-01-01T12:00"), [7]),
    ],
)
def test_the_events_wanted_come_in_order(
    nowhere: Installation, log: str, arguments: tuple[str, ...], jobs: list[int]
) -> None:
    result = run(nowhere, "audit", "--from", log, "--json", *arguments)
    assert [json.loads(line)["job_id"] for line in result.stdout.splitlines()] == jobs
    shown = run(nowhere, "audit", "--from", log, *arguments).stdout
    assert [int(job) for job in re.findall(r" job_id=(\d+) ", shown)] == jobs


def test_following_shows_the_last_events_and_then_new_ones(
    nowhere: Installation, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({**LINES[0], "ts": "2026-01-03T00:00:00.000Z", "job_id": 9})

    def wait(_seconds: float) -> None:
        if line in Path(log).read_text():
            raise KeyboardInterrupt
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    monkeypatch.setattr(AuditLog.follow, "__defaults__", (wait,))
    result = run(nowhere, "audit", "--from", log, "-f")
    _, last, new = result.stdout.splitlines()
    assert last.startswith("2026-01-02T00:00:00.000Z [")
    assert " hook=prolog node=n2 job_id=8 user=b outcome=refused " in last
    assert ("no such" in last, "\x1b" in last) == (True, False)
    assert (result.exit_code, "[info" in new, " job_id=9 " in new) == (0, True, True)
    Path(log).write_text(Path(log).read_text().replace(f"{line}\n", ""))
    result = run(nowhere, "audit", "--from", log, "-f", "--json")
    assert [json.loads(one)["job_id"] for one in result.stdout.splitlines()] == [7, 8, 9]


def test_a_line_cannot_forge_another_one_on_the_console() -> None:
    """Neither by a value nor by a key, of a log that somebody else has written."""
    line: dict[str, object] = {"ts": "t\n1", "event": "a\nb", "x\ny": "u\nv", "traceback": "w\n"}
    assert "\n" not in console(str, colors=False)(line)


def test_unreadable_lines_are_mentioned(nowhere: Installation, log: str) -> None:
    with open(log, "ab") as file:
        file.write(b"torn\n")
    assert "skipped 1 unreadable lines" in run(nowhere, "audit", "--from", log).stderr


def test_a_log_that_only_root_reads_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit), audit.reading(AuditLog([]), ()):
        raise PermissionError(13, "Permission denied", "audit.jsonl")
    assert "only root" in capsys.readouterr().err


def test_a_policy_whose_log_is_missing_says_so(tmp_path: Path) -> None:
    installation = installed(tmp_path, POLICY.replace("/var/log/w/audit.jsonl", "/nonexistent/audit.jsonl"))
    result = run(installation, "audit")
    assert (result.exit_code, "no hook has run yet" in result.stderr) == (2, True)
