"""The log of own jobs: what users are told after the end, and what a job that is ending has twice."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.entry_site import EntrySite, OsAs
from warmstart import view
from warmstart.cli import own
from warmstart.entry import epilog, prolog
from warmstart.paths import Installation


@pytest.fixture
def as_user(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> EntrySite:
    """Have the command run by somebody who may not read the log."""
    monkeypatch.setattr(own, "has_only_own", lambda _: True)
    return entry_site


def test_users_are_told_of_both_hooks_after_the_end(as_user: EntrySite) -> None:
    """By the report, on a host that knows no node of the job; also where the epilog runs twice."""
    assert prolog.main(as_user.installation.prefix) == 0
    for _ in range(2):
        assert epilog.main(as_user.installation.prefix) == 0
    shutil.rmtree(as_user.paths.root)
    result = as_user.command("explain", "7")
    assert (result.exit_code, "cold: nothing is published" in result.stdout) == (0, True)
    hooks = as_user.json("explain", "7")["hooks"]
    assert [(hook["hook"], hook["outcome"], hook["seconds"] > 0) for hook in hooks] == [
        ("prolog", "ok", True),
        ("epilog", "ok", True),
    ]
    (job,) = as_user.json("jobs")
    assert (job["job"], job["state"], job["cold"]) == (7, "done", {"numba": "nothing-published"})


def test_a_refused_job_is_one_after_its_end(as_user: EntrySite) -> None:
    """Its prolog failed."""
    as_user.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    assert prolog.main(as_user.installation.prefix) == 0
    assert epilog.main(as_user.installation.prefix) == 0
    (job,) = as_user.json("jobs")
    assert (job["state"], job["why"].partition(" for ")[0]) == ("refused", "the job asks")
    assert [hook["outcome"] for hook in as_user.json("explain", "7")["hooks"]] == ["failed", "ok"]


def test_what_is_in_view_and_report_is_told_once(as_user: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the epilog is at work, or after one that died."""
    assert prolog.main(as_user.installation.prefix) == 0
    text = (*view.files(as_user.installation, "7", view.EVENTS),)
    assert epilog.main(as_user.installation.prefix) == 0
    before = as_user.json("explain", "7")
    monkeypatch.setattr(view, "files", lambda _site, _job, name: text if name == view.EVENTS else ())
    assert as_user.json("explain", "7") == before


@pytest.mark.parametrize("readable", [True, False])
def test_members_of_the_logs_group_read_the_log(
    entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch, *, readable: bool
) -> None:
    """The file's mode decides."""
    monkeypatch.setattr(os, "access", lambda path, _: readable and path == entry_site.policy.paths.audit)
    monkeypatch.setattr(own, "os", OsAs(1000))
    assert own.has_only_own(entry_site.installation) is not readable
    assert own.has_only_own(Installation("/nowhere")) is True
