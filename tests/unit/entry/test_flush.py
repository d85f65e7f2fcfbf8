"""`flush`: hooks' events go into the audit log; and the shell around it, which starts Python only for some."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.node import Node
from warmstart import run_end, view
from warmstart.audit import sink
from warmstart.entry import epilog, flush, prolog
from warmstart.store import reports

PROGRAM = Path(__file__).resolve().parents[3] / "packaging/libexec/flush.in"


def test_what_hooks_left_is_moved(node: Node) -> None:
    assert prolog.main(node.installation.prefix) == 0
    log = Path(node.policy.paths.audit)
    assert (os.listdir(node.paths.journal), log.exists()) != ([], True)
    assert flush.main(node.installation.prefix) == 0
    assert os.listdir(node.paths.journal) == []
    size = log.stat().st_size
    assert (size > 0, flush.main(node.installation.prefix), log.stat().st_size) == (True, 0, size)


def test_a_disk_that_fails_is_no_bug(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.listdir

    def refuse(path: str | int) -> list[str]:
        if path == node.installation.var:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert flush.main(node.installation.prefix) == flush.FAILED
    assert f"{node.installation.var}: {os.strerror(errno.EIO)}" in capsys.readouterr().err


def left(node: Node) -> list[list[tuple[str, str]]]:
    assert flush.main(node.installation.prefix) == 0
    texts = reports.read(str(node.store), os.getuid(), 7) if (node.store / reports.FOLDER).exists() else ()
    lines = ([json.loads(line) for line in text.splitlines()] for text in texts)
    return [[(line["hook"], line["event"]) for line in report] for report in lines]


@pytest.mark.parametrize("is_spare", [False, True])
def test_a_report_has_the_views_part_and_the_epilogs(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, is_spare: bool
) -> None:
    """As far as the job's user may read it; also of a view on another file system. Its events stay until then."""
    assert prolog.main(node.installation.prefix) == 0
    if is_spare:
        run = str(node.store.parent / "run")
        monkeypatch.setattr(view, "SPARE", run)
        spare = Path(run + node.paths.view)
        spare.parent.mkdir(parents=True)
        os.rename(node.paths.view, spare)
        os.mkdir(node.paths.view)
    assert left(node) == []
    assert epilog.main(node.installation.prefix) == 0
    sink.flush(node.paths.journal, node.policy.paths.audit)
    assert len(os.listdir(node.paths.journal)) == 2, "the epilog's journal, and what it owes"
    (report,) = left(node)
    assert report[0] == ("prolog", "hook.started")
    assert [event for hook, event in report if hook == "epilog"][:2] == ["hook.started", "cache.harvested"]
    assert report[-1] == ("epilog", "step.finished")
    assert os.listdir(node.paths.journal) == []
    assert node.events("hook.finished")[-1]["hook"] == "epilog"


def test_what_concerns_others_is_in_no_report(node: Node) -> None:
    assert prolog.main(node.installation.prefix) == 0
    assert epilog.main(node.installation.prefix) == 0
    (journal,) = (path for path in Path(node.paths.journal).glob("epilog-*"))
    with journal.open("a") as file:
        known = {"ts": 1, "hook": "epilog", "job_id": 7, "uid": os.getuid()}
        for more in (
            {"event": "cache.seeded", "done_by": {"hook": "epilog", "job_id": 8}},
            {"event": "cache.seeded", "job_id": 8},
            {"event": "cache.seeded", "uid": os.getuid() + 1},
            {"event": "cache.seeded", "job_id": None, "uid": None},
            {"event": "image.evicted"},
            {"event": "cache.harvested", "done_by": {"hook": "maintain"}},
            {"event": "entry.rejected"},
        ):
            file.write(json.dumps({**known, **more}) + "\n")
        file.write('{"ts": 1, "event": "cache.se')
    (report,) = left(node)
    assert report[-2:] == [("epilog", "cache.harvested"), ("epilog", "entry.rejected")]
    assert {event for _, event in report}.isdisjoint({"cache.seeded", "image.evicted"})


def test_without_a_view_a_report_has_the_rest(node: Node) -> None:
    assert prolog.main(node.installation.prefix) == 0
    os.unlink(f"{node.paths.view}/7/{view.EVENTS}")
    assert epilog.main(node.installation.prefix) == 0
    (report,) = left(node)
    assert {hook for hook, _ in report} == {"epilog"}
    Path(node.paths.journal, f".epilog-0a-1.{os.getuid()}.7.1").touch()
    assert left(node) == [report, []] or left(node) == [[], report]
    assert os.listdir(node.paths.journal) == []


def test_an_epilog_that_dies_is_made_good(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own report waits until it is known to be dead; the next one, which finds the record, leaves another."""

    def dies(*_: object) -> NoReturn:
        raise SystemExit

    assert prolog.main(node.installation.prefix) == 0
    with monkeypatch.context() as patch:
        patch.setattr(run_end, "release", dies)
        with pytest.raises(SystemExit):
            epilog.main(node.installation.prefix)
    assert left(node) == []
    (killed,) = Path(node.paths.journal).glob("epilog-*.open")
    (debt,) = Path(node.paths.journal).glob(".epilog-*")
    own = f"-{os.getpid()}"
    killed.rename(str(killed).replace(own, "-4194305"))
    debt.rename(str(debt).replace(own, "-4194305"))
    assert epilog.main(node.installation.prefix) == 0
    hooks = [{hook for hook, _ in report} for report in left(node)]
    assert sorted(map(sorted, hooks)) == [["epilog"], ["epilog", "prolog"]]
    assert os.listdir(node.paths.journal) == []


def test_reports_that_the_store_does_not_take_are_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reports, "replace_file", fails)
    for _ in range(3):
        assert prolog.main(node.installation.prefix) == 0
        assert epilog.main(node.installation.prefix) == 0
    assert left(node) == []
    (line,) = capfd.readouterr().err.splitlines()
    assert "write a report for a job's user: No space left on device" in line
    assert line.endswith("(and 2 more)")
    assert node.events("hook.finished")[-1]["outcome"] == "ok"
    assert os.listdir(node.paths.journal) == []


def test_without_the_store_a_report_is_lost(node: Node) -> None:
    assert prolog.main(node.installation.prefix) == 0
    assert epilog.main(node.installation.prefix) == 0
    shutil.rmtree(node.store)
    assert flush.main(node.installation.prefix) == 0
    assert os.listdir(node.paths.journal) == []


@pytest.mark.parametrize("size", [view.LONGEST + 1, 1])
def test_a_debt_that_cannot_be_paid_keeps_no_journal(node: Node, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What is to be told is too long, or the store's process meets a bug: the audit log has the journal anyway."""

    def fails(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr(reports, "replace_file", fails)
    assert prolog.main(node.installation.prefix) == 0
    assert epilog.main(node.installation.prefix) == 0
    (debt,) = Path(node.paths.journal).glob(".epilog-*")
    debt.chmod(0o600)
    debt.write_bytes(b" " * size)
    assert left(node) == []
    assert os.listdir(node.paths.journal) == []
    assert node.events("hook.finished")[-1]["hook"] == "epilog"


def test_a_site_may_have_no_reports(node: Node) -> None:
    node.write(node.policy._replace(maintenance=node.policy.maintenance._replace(reports=None)))
    assert prolog.main(node.installation.prefix) == 0
    assert epilog.main(node.installation.prefix) == 0
    assert left(node) == []
    assert not (node.store / reports.FOLDER).exists()


def test_a_log_that_cannot_be_written(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    """The events stay, and the status says so: nobody tries again at once."""
    assert prolog.main(node.installation.prefix) == 0
    Path(node.policy.paths.audit).mkdir(parents=True)
    assert flush.main(node.installation.prefix) == flush.FAILED
    assert len(os.listdir(node.paths.journal)) == 1
    assert "audit log" in capfd.readouterr().err


def test_without_a_policy_nothing_is_moved(node: Node) -> None:
    os.unlink(node.installation.compiled_policy)
    assert flush.main(node.installation.prefix) == flush.FAILED


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("", False),
        ("prolog-0a-1.open", False),  # its process lives
        ("prolog-0a-4194305.open", True),  # no pid is so large
        ("prolog-0a-1.done", True),
        ("something", False),
    ],
)
def test_python_starts_only_for_what_is_to_be_moved(tmp_path: Path, name: str, starts: bool) -> None:
    """A shell looks each time that systemd or cron starts it."""
    journal = tmp_path / "var/n1/journal"
    journal.mkdir(parents=True)
    if name:
        (journal / name).touch()
    marks = tmp_path / "var/.unflushed"
    (marks / "n1").mkdir(parents=True)
    (marks / "n2").mkdir()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    script = PROGRAM.read_text()
    for key, value in (("@PYTHON@", python), ("@VAR@", tmp_path / "var"), ("@PREFIX@", "/usr")):
        script = script.replace(key, str(value))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    start = "/usr/lib/warmstart/python"
    assert [*marks.iterdir()] == ([marks / "n1"] if name else [])
    assert done.stdout == (f"-ISXutf8 {start}/warmstart/start.py entry.flush /usr {start}\n" if starts else "")
