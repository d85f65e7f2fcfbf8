"""The page of promises names tests that exist, and is made of the reports that sweeps write."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import reports
from tests.support.hook_site import HOOKS
from tests.support.sweeping import Killed, Outcome
from tools import reliability
from warmstart import wing

TESTS = Path(__file__).resolve().parents[1]


def test_each_named_test_exists() -> None:
    """A renamed test takes its promise along; and the page is the one that its program writes."""
    page = (TESTS.parent / "docs/reliability.md").read_text()
    for promise in reliability.PROMISES:
        assert promise.text in page
        for named in promise.tests:
            file, _, function = named.partition("::")
            assert f"`{named}`" in page
            assert re.search(rf"def {function or 'test_'}", (TESTS / file).read_text()), named


def test_the_page_counts_what_the_sweeps_found(tmp_path: Path) -> None:
    """By hook, by part and errno; fragments of other suites stand as they are."""
    outcomes = [
        Outcome("prolog", "open", "a.py:f:3", "store", "EIO", "store-failed (store), job-refused (user)", [], ""),
        Outcome("prolog", "open", "a.py:f:3", "store", "ESTALE", "none", ["x"], "maintain"),
        Outcome("prolog", "mkdir", "b.py:g:1 < a.py:f:3", "state", "EROFS", "state-unusable (node); drains", [], ""),
    ]
    kills = [
        Killed("epilog", 1, "mkdir", "a.py:f:3", "state", [], ""),
        Killed("epilog", 2, "mkdir", "a.py:f:9", "state", [".tmp-n1-0a1b2c3d-77123: was left"], "maintain"),
    ]
    for name, found in (("errors-prolog", outcomes), ("kills-epilog", kills)):
        text = {"made": f"day {name}", "cases": 10, "outcomes": [one._asdict() for one in found]}
        (tmp_path / f"{name}.json").write_text(json.dumps(text))
    (tmp_path / "load.md").write_text("day load\n2,000 jobs\n")
    page = reliability.page(tmp_path)
    assert "| prolog | 2 | 3 | 10 | 1 | 0 | 1 | 1 | 1 |" in page
    assert "| state | 0 | 0 | 0 | 1 (EROFS) |" in page
    assert "| epilog | 10 | 2 | 1 |" in page
    assert "Not run." in page  # make fuzz
    assert "\nMade on day kills-epilog.\n\n| hook |" in page
    assert "\n## Load\n\nMade on day load.\n\n2,000 jobs\n" in page
    calls = reliability.calls_page(tmp_path)
    assert "| part | call | in | EIO | EROFS | ESTALE | codes |" in calls
    assert "| store | `open` | `a.py:f` | verdict |  | none+ | store-failed, job-refused |" in calls
    assert "| state | `mkdir` | `b.py:g < a.py:f` |  | drained |  | state-unusable |" in calls
    assert "| state | `mkdir` | `a.py:f` | 2 | .tmp-n1-…: was left | maintain |" in calls


def test_figures_stay_with_their_date_until_there_are_others(tmp_path: Path) -> None:
    """`make fuzz` leaves nothing of the sweeps."""
    for name in ("orders-a", "orders-b", "load"):
        (tmp_path / f"{name}.md").write_text(f"day {name}\n{name} was measured\n")
    before = reliability.page(tmp_path)
    assert "\nMade on day orders-a; day orders-b.\n\norders-a was measured\n\norders-b was measured\n" in before
    (tmp_path / "load.md").write_text("a later day\nmore\n")
    for path in tmp_path.glob("orders-*"):
        path.unlink()
    after = reliability.page(tmp_path, before)
    assert after == before.replace("day load.\n\nload was measured", "a later day.\n\nmore")


def test_reports_say_when_and_of_which_commit_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkout without git, as in a root file system of the matrix, has the day alone."""
    monkeypatch.setattr(reports, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", reports.made())
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for argv in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "."]):
        subprocess.run([*git, *argv], check=True)
    assert re.fullmatch(r"\S+, commit [0-9a-f]{7,}", reports.made())
    (tmp_path / "hooks").touch()
    assert reports.made().endswith(" with changes")


def test_each_program_that_slurm_or_systemd_starts_as_root_is_swept() -> None:
    """`maintain` is a command, and three hooks are errands; `timers` only starts others; the rest is the user's."""
    programs = set(re.findall(r"\$3/([a-z-]+)\"", (TESTS.parent / "packaging/functions.sh").read_text()))
    programs |= wing.programs().keys()
    others = {"apptainer-environment", "pyxis-importer", "task-prolog", "timers"}
    assert programs - others == set(HOOKS) - {"import", "unpack", "maintain", "maintain-store", "rounds"}
