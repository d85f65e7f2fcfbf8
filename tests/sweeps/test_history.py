"""A simulated week of jobs, whose history is checked; and that the check sees what it has to (tools/load/history)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pairs import in_process
from tests.support.reports import write_fragment
from tests.support.week import Week
from tools.load import history
from tools.load.judge import Event, Witness
from warmstart.store import index, maintenance
from warmstart.store.blocklist import Blocks


@pytest.fixture
def week() -> Iterator[Week]:
    """Return a store in memory in which nothing has happened."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top, in_process():
        yield Week(Path(top), 1)


@pytest.mark.sweep
def test_a_week(week: Week) -> None:
    """1,400 jobs of three users; nobody sees what they should not, nor misses what they have a right to."""
    week.pass_days(7, 200)
    judged = history.judged(*week.history())
    rows = "".join(f"| {one.what} | {one.of} | {len(one.wrong)} |\n" for one in judged)
    table = f"| judged | looked at | wrong |\n| --- | --- | --- |\n{rows}"
    write_fragment("week.md", f"{len(week.jobs):,} jobs in seven days, {len(week.lines):,} events.\n\n{table}")
    assert [line for one in judged for line in one.wrong] == []


def test_two_days(week: Week) -> None:
    """The same, smaller."""
    week.pass_days(2, 60)
    judged = history.judged(*week.history())
    assert [line for one in judged for line in one.wrong] == []
    assert min(one.of for one in judged) > 50


@pytest.mark.parametrize(
    ("module", "function", "mistake"),
    [
        (maintenance, "_live_marks", lambda *_: {}),
        (index, "is_superseded", lambda *_: False),
        (Blocks, "hides", lambda *_: ""),
    ],
)
def test_a_mistake_of_the_store_is_seen(
    week: Week, monkeypatch: pytest.MonkeyPatch, module: object, function: str, mistake: object
) -> None:
    """What was superseded comes back, or a blocked user's entries are seen."""
    monkeypatch.setattr(module, function, mistake)
    week.pass_days(5, 60)
    assert any(one.wrong for one in history.judged(*week.history()))


def altered(week: Week, job: int, saw: frozenset[str]) -> tuple[list[Event], dict[int, Witness]]:
    """Return the history where one job saw something else."""
    events, jobs = week.history()
    witness = jobs[job]
    return events, {**jobs, job: witness._replace(said=witness.said._replace(saw=saw))}


def test_what_a_job_should_not_have_seen_or_missed_is_found(week: Week) -> None:
    """Each alone, in a history that is right without it."""
    week.pass_days(1, 100)
    _, jobs = week.history()
    last = max(number for number, job in jobs.items() if len(job.said.saw) > 3 and job.user == "a")
    saw = jobs[last].said.saw
    assert "nobody had published" in history.judged(*altered(week, last, saw | {"e1 a 9999"}))[0].wrong[0]
    assert any("did not see" in line for line in history.judged(*altered(week, last, frozenset()))[1].wrong)
    stale = {word for job in jobs.values() if job.user == "a" for word in job.said.removed if word.split()[1] == "a"}
    found = [
        line for word in sorted(stale)[:40] for line in history.judged(*altered(week, last, saw | {word}))[0].wrong
    ]
    assert any("had taken the place" in line for line in found)
