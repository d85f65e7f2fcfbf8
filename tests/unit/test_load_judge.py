"""The judges of a load run (tools/load) see what is planted; tests/releases/test_load.py has a real one."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tools.load import history, judge
from tools.load.history import Gone, Place
from tools.load.jobs import DONE, Job, mix
from tools.load.judge import Event, Judged, Said, Witness
from tools.load.run import Submitted, wrong_end

PLACE = Place("user-1-a", "ns")
WHERE = PLACE._asdict()


def run_of(
    job: int, hook: str, begin: float, *, end: float, event: str = "hook.finished", **fields: object
) -> list[Event]:
    """Return the two lines of a hook of a job, which runs on one node."""
    known = {"run_id": f"{hook}{job}{begin}", "hook": hook, "node": "n1", "partition": "main", **fields}
    return [Event("hook.started", begin, job, known), Event(event, end, job, known)]


def prolog(job: int, begin: float, *, cold: str = "") -> list[Event]:
    """Return a job's start."""
    cache = {"warm": False, "cold": cold} if cold else {"warm": True, "entries": 1, "scopes": [PLACE.scope], **WHERE}
    return run_of(job, "prolog", begin, end=begin + 1, head=True, caches={"alpha": cache})


def epilog(job: int, begin: float, **cache: object) -> list[Event]:
    """Return a job's end."""
    return run_of(job, "epilog", begin, end=begin + 1, caches={"alpha": {"entries": 0, **WHERE, **cache}})


def published(job: int, begin: float, entries: int = 1, **cache: object) -> list[Event]:
    """Return the end of a job that publishes so many entries."""
    return epilog(job, begin, bundle="b" * 64, generation=1, entries=entries, **cache)


def united(job: int, begin: float, entries: int = 1) -> list[Event]:
    """Return the end of a job on two nodes, whose first node hands in so many entries."""
    union = {"profile": "alpha", **WHERE, "bundles": 1, "generation": 1, "run": f"1.c.{job}.0"}
    lines = epilog(job, begin, handed_in=entries)
    return [lines[0], Event("harvest.merged", begin + 0.5, job, {**lines[0].fields, **union}), lines[1]]


def said(*lines: str) -> Witness:
    """Return a job that said this and came to its end."""
    return Witness("a", 1, 0.0, Said.of("\n".join([*lines, DONE, ""])))


def wrong(events: list[Event], jobs: dict[int, Witness], *damaged: Gone) -> list[list[str]]:
    """Return what is wrong: with what was seen, and with what was missed."""
    return [one.wrong for one in history.judged(sorted(events, key=lambda event: event.at), jobs, damaged)]


MADE = {1: said("made e1 a 1"), 2: said("saw e1 a 1"), 3: said("made e1 a 3")}
RETIRED = ("saw e1 a 1", "removed e1 a 1")
FIRST, LATER = prolog(1, 0, cold="nothing-published"), prolog(2, 20)


@pytest.mark.parametrize("first_end", [published(1, 10), united(1, 10)])
def test_what_was_published_is_seen(first_end: list[Event]) -> None:
    assert wrong([*FIRST, *first_end, *LATER], MADE) == [[], []]
    blind = {**MADE, 2: said()}
    assert wrong([*FIRST, *first_end, *LATER], blind) == [[], ["job 2 did not see e1, which job 1 had published"]]
    assert wrong([*FIRST, *first_end, *LATER], blind, Gone(15, 15, PLACE)) == [[], []]
    assert wrong([*FIRST, *first_end, *LATER], blind, Gone(5, 5, PLACE)) != [[], []]  # what was made later is there


def test_who_is_told_that_nothing_is_there_misses_something() -> None:
    warm, cold = prolog(4, 15), [*prolog(2, 20, cold="nothing-published"), *epilog(2, 30)]
    _, missed = wrong([*FIRST, *published(1, 10), *warm, *cold], {**MADE, 2: said(), 4: said("saw e1 a 1")})
    assert missed == ["job 2 did not see e1, which job 1 had published"]


def test_an_entry_of_nobody() -> None:
    assert wrong([*FIRST, *epilog(1, 10), *LATER], MADE)[0] == ["job 2 saw e1 a 1, which nobody had published"]


def test_nothing_is_seen_before_the_union() -> None:
    early = {**MADE, 2: said("saw e1 a 1")}
    handed_in = epilog(1, 10, handed_in=1)
    assert wrong([*FIRST, *handed_in, *LATER], early)[0] == ["job 2 saw e1 a 1, which nobody had published"]


def test_an_older_version() -> None:
    events = [*FIRST, *published(1, 5), *prolog(3, 8), *published(3, 10, changed=1), *LATER]
    jobs = {**MADE, 3: said("saw e1 a 1", "removed e1 a 1", "made e1 a 3")}
    assert wrong(events, jobs)[0] == ["job 2 saw e1 a 1, of which job 3 had taken the place"]
    assert wrong(events, jobs, Gone(15, 15, PLACE))[0] == []  # the listing was torn: the one before counts
    assert wrong(events, {**jobs, 2: said("saw e1 a 3")}) == [[], []]


def test_what_was_retired() -> None:
    retired = epilog(3, 10, generation=2, retired=1)
    events, jobs = [*FIRST, *published(1, 5), *prolog(3, 8), *retired, *LATER], {**MADE, 3: said(*RETIRED)}
    assert wrong(events, jobs)[0] == ["job 2 saw e1 a 1, of which job 3 had taken the place"]
    assert wrong(events, {**jobs, 2: said()}) == [[], []]


def test_a_compaction_changes_nothing() -> None:
    compacted = Event("bundle.compacted", 15, 0, {**WHERE, "run_id": "m", "bundle": "c" * 64, "replaces": ["b" * 64]})
    assert wrong([*FIRST, *published(1, 10), compacted, *LATER], MADE) == [[], []]
    assert wrong([*FIRST, *published(1, 10), compacted, *LATER], {**MADE, 2: said()})[1]


def half_warm(jobs: dict[int, Witness], *events: Event) -> list[str]:
    """Return what the judge of jobs on several nodes finds."""
    return judge.half_warm(events, jobs)


def test_a_half_warm_job() -> None:
    alike = said("node n1", "node n1 e1 a 1", "node n2", "node n2 e1 a 1")
    assert half_warm({2: alike, 3: said("node n1", "node n2")}) == []
    half = said("node n1", "node n1 e1 a 1", "node n2")
    assert len(half_warm({2: half})) == 1
    assert len(half_warm({2: said("node n1", "node n1 e1 a 1", "node n2", "node n2 e1 a 9")})) == 1
    late = Event("hook.finished", 1.0, 2, {"hook": "prolog", "node": "n2", "failures": [{"step": "seed"}]})
    assert half_warm({2: half}, late) == []  # it has voted, and cannot read the store then
    assert half_warm({2: half}, late._replace(fields={**late.fields, "failures": [{"step": "image"}]})) != []


@pytest.mark.parametrize("planted", ["", "a byte", "the end", "another name"])
def test_a_wrong_byte(tmp_path: Path, planted: str) -> None:
    """A job's own script says so."""
    job = next(job for job in mix(1000, 1, ["r/load1:1"]) if job.kind == "uses its cache")
    run_script(job, tmp_path, "1")
    files = sorted(tmp_path.glob("*.bin"))
    data = files[0].read_bytes()
    at = random.Random(1).randrange(1000, len(data) - 1000)
    changed = {
        "": data,
        "a byte": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "the end": data[:at],
        "another name": files[1].read_bytes(),
    }[planted]
    files[0].write_bytes(changed)
    output = run_script(job, tmp_path, "2")
    assert bool(wrong_end(Submitted(job, set()), "COMPLETED", output)) == bool(planted), output


def run_script(job: Job, cache: Path, number: str) -> str:
    """Run a job's script with a cache; return its output."""
    names = {"WARMSTART_CACHE": str(cache), "ALPHA_CACHE": str(cache), "TMPDIR": str(cache), "SLURM_JOB_ID": number}
    environment = {"PATH": os.environ["PATH"], "USER": "ws-alice", **names}
    script = job.script.replace("sleep ", ": ")
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout


def test_what_is_judged_is_counted() -> None:
    assert history.judged([*FIRST, *published(1, 10), *LATER], MADE)[1] == Judged(
        "starts of jobs that missed nothing they had a right to", 2, []
    )
