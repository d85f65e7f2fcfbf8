"""The lines of own jobs: what users are told after the end, and what a job that is ending has twice."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil

import pytest

from tests.lib.command_line import run
from tests.lib.hook_lines import finished, started
from tests.lib.node import Node, OsAs
from warmstart import session, view
from warmstart.cli import own
from warmstart.entry import epilog, prolog
from warmstart.paths import Installation
from warmstart.store import reports


@pytest.fixture
def as_user(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Have the command run by somebody who may not read the log."""
    monkeypatch.setattr(own, "has_only_own", lambda _: True)
    return node


def outcomes(told: str) -> list[str]:
    """Return how each hook ended, by what explain says."""
    return [
        " ".join(found) for found in re.findall(r"^(\w+) on \S+ at [^ ]+Z: ([a-z ]*?)(?: in .*)?$", told, re.MULTILINE)
    ]


def test_users_are_told_of_both_hooks_after_the_end(as_user: Node) -> None:
    assert prolog.main(as_user.installation.prefix) == 0
    for _ in range(2):
        assert epilog.main(as_user.installation.prefix) == 0
    shutil.rmtree(as_user.paths.root)
    result = as_user.command("explain", "7")
    assert (result.exit_code, "cold: nothing is published" in result.stdout) == (0, True)
    assert outcomes(result.stdout) == ["prolog ok", "epilog ok"]


def test_a_refused_job_is_one_after_its_end(as_user: Node) -> None:
    as_user.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    assert prolog.main(as_user.installation.prefix) == 0
    assert epilog.main(as_user.installation.prefix) == 0
    assert outcomes(as_user.command("explain", "7").stdout) == ["prolog refused", "epilog ok"]


def test_a_host_where_nobody_can_ask_says_why(as_user: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login host without the policy, or without the store, does not say that the user has no jobs."""
    monkeypatch.setattr(session, "os", OsAs(1000))
    nothing = run(Installation(f"{as_user.store}/none"), "explain", "7")
    assert (nothing.exit_code, f"{as_user.store}/none: No such file" in nothing.stderr) == (2, True)
    os.rename(as_user.store, f"{as_user.store}.away")
    nothing = as_user.command("explain", "7")
    assert (nothing.exit_code, f"{as_user.store}: No such file" in nothing.stderr) == (2, True)


def test_a_store_that_gives_users_no_reports_says_so(as_user: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system has no access control lists: no other host knows more."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/store/reports/1000")

    monkeypatch.setattr(reports, "read", refuse)
    told = as_user.command("explain", "7")
    assert (told.exit_code, "`store.features`" in told.stderr) == (2, True)


def test_what_is_in_view_and_report_is_told_once(as_user: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the epilog is at work, or after one that died."""
    assert prolog.main(as_user.installation.prefix) == 0
    text = view.read(as_user.installation.view, "7", view.EVENTS)
    assert epilog.main(as_user.installation.prefix) == 0
    before = as_user.command("explain", "7", "--json").stdout
    monkeypatch.setattr(view, "read", lambda _site, _job, name: text if name == view.EVENTS else None)
    assert sorted(as_user.command("explain", "7", "--json").stdout.splitlines()) == sorted(before.splitlines())


def test_a_report_of_a_hook_that_did_not_say_how_it_ended_is_not_ok(as_user: Node) -> None:
    first = finished(job_id=7)
    del first["outcome"]
    text = "".join(json.dumps(line) + "\n" for line in (started(), first))
    reports.leave(str(as_user.store), os.getuid(), reports.name_of(7, "0a", "n1"), text, True)
    assert outcomes(as_user.command("explain", "7").stdout) == ["prolog has not finished"]


@pytest.mark.parametrize("readable", [True, False])
def test_members_of_the_logs_group_read_the_log(node: Node, monkeypatch: pytest.MonkeyPatch, *, readable: bool) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: readable and path == node.policy.paths.audit)
    monkeypatch.setattr(session, "os", OsAs(1000))
    assert own.has_only_own(node.installation) is not readable
    assert own.has_only_own(Installation("/nowhere")) is True
