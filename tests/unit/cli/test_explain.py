"""`warmstart explain`: for administrators from the log, for a job's user from the job's view."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.lib import sample_log
from tests.lib.command_line import run
from tests.lib.hook_lines import finished, started
from tests.lib.node import Node, OsAs
from warmstart import view
from warmstart.audit.line import Line, timestamp
from warmstart.cli import explain, own
from warmstart.entry import epilog as epilog_hook
from warmstart.entry import prolog
from warmstart.paths import Installation
from warmstart.plan import NO_COLON


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return a log of 60 jobs."""
    sample_log.write(tmp_path / "audit.jsonl", 60)
    return str(tmp_path / "audit.jsonl")


@pytest.fixture
def nowhere(tmp_path: Path) -> Installation:
    return Installation(str(tmp_path / "prefix"))


def test_from_a_log(nowhere: Installation, log: str) -> None:
    result = run(nowhere, "explain", "1000", "--from", log)
    assert result.exit_code == 0
    words = ("job 1000 of", "asked: images registry.example.com/", "was imported", "nothing is published", "facts: ")
    assert [word for word in words if word not in result.stdout] == []


def logged(path: Path, *lines: Line) -> str:
    """Write a log; return its path."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_of_many_nodes_the_first_is_told_in_full(nowhere: Installation, tmp_path: Path) -> None:
    warm, cold = {"numba": {"warm": True}}, {"vllm": {"warm": False, "cold": "store-failed"}}
    first = finished(head=True, steps={"seed": 20}, caches=warm)
    path = logged(tmp_path / "nodes.jsonl", first, finished(node="n2", steps={"seed": 20}, caches=warm | cold))
    shown = run(nowhere, "explain", "7", "--from", path).stdout
    told, _, others = shown.partition("other nodes")
    assert ("prolog on n1" in told, "warm" in told) == (True, True)
    assert ("vllm: cold: store-failed" in others, "warm" in others) == (True, False)


@pytest.mark.parametrize(("began", "outcome"), [("2026-01-31T09:30:00.000Z", "killed"), ("", "has not finished")])
def test_a_hook_that_did_not_finish(nowhere: Installation, tmp_path: Path, began: str, outcome: str) -> None:
    path = logged(tmp_path / "log.jsonl", started(ts=began or timestamp(time.time())))
    shown = run(nowhere, "explain", "7", "--from", path)
    assert (shown.exit_code, f": {outcome}\n" in shown.stdout) == (0, True)


def test_a_job_that_nobody_knows(nowhere: Installation, log: str) -> None:
    result = run(nowhere, "explain", "7", "--from", log)
    assert (result.exit_code, result.stderr) == (1, "warmstart: nothing is known of job 7\n")
    assert run(nowhere, "explain", "7", "--from", f"{log}.none").exit_code == 2


def test_a_job_that_ran_while_hooks_were_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "os", OsAs(0))
    assert prolog.main(node.installation.prefix) == 0
    Path(node.installation.off_switch).touch()
    result = node.command("explain", "8")
    assert result.exit_code == 1
    told = " ".join(result.stderr.split())
    assert f"switched off on this host by {node.installation.off_switch}: hooks note nothing of jobs" in told


@pytest.mark.parametrize("uid", [0, 64201])
def test_notices_are_told(node: Node, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """To root and to the job's user, since a step's output shows them only where the SPANK plugin is."""
    monkeypatch.setattr(own, "has_only_own", lambda _: uid > 0)
    node.environ(SLURM_JOB_COMMENT="warmstart fresh")
    assert prolog.main(node.installation.prefix) == 0
    told = NO_COLON.format(words="warmstart fresh")
    assert told in run(node.installation, "explain", "7").stdout.replace("\n  ", " ").splitlines()


def test_in_a_job_it_is_the_jobs_own(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "os", OsAs(0))
    node.environ(SLURM_JOB_COMMENT="warmstart: profiles=triton")
    assert prolog.main(node.installation.prefix) == 0
    told = node.command("explain").stdout
    assert [
        text for text in ("job 7 of", "asked: profiles triton", "granted: profiles numba") if text not in told
    ] == []
    assert epilog_hook.main(node.installation.prefix) == 0
    lines = [json.loads(line) for line in node.command("explain", "7", "--json").stdout.splitlines()]
    assert [(line["hook"], line["event"].partition(".")[2]) for line in lines] == [
        ("prolog", "started"), ("prolog", "finished"), ("epilog", "started"), ("epilog", "finished")
    ]  # fmt: skip


@pytest.fixture
def as_user(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Have the command run by somebody who may not read the log."""
    monkeypatch.setattr(explain, "os", OsAs(1000))
    monkeypatch.setattr(own, "has_only_own", lambda _: True)
    return node


def test_users_are_told_by_the_jobs_view(as_user: Node) -> None:
    assert prolog.main(as_user.installation.prefix) == 0
    result = as_user.command("explain", "7")
    assert result.exit_code == 0
    assert "cold: nothing is published" in result.stdout
    assert "prolog on n1" in result.stdout
    assert ": ok" in result.stdout
    gone = as_user.command("explain", "8")
    assert (gone.exit_code, "while it runs" in gone.stderr) == (1, True)


def test_users_are_told_why_their_job_was_refused(as_user: Node) -> None:
    as_user.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    assert prolog.main(as_user.installation.prefix) == 0
    assert "refused: the job asks for the profile 'numbers'" in as_user.command("explain", "7").stdout


def test_a_view_that_can_not_be_read_is_another_users(as_user: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps it from others; the command says no more than of a job that is not there."""
    assert prolog.main(as_user.installation.prefix) == 0

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(view, "read_small", refuse)
    assert as_user.command("explain", "7").exit_code == 1
