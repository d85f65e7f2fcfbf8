"""`warmstart jobs`: which jobs an option chooses, and how they are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import sample_log
from tests.support.command_line import run
from tests.support.entry_site import EntrySite
from warmstart.entry import epilog, prolog
from warmstart.paths import Installation


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return a log of 300 jobs."""
    sample_log.write(tmp_path / "audit.jsonl", 300)
    return str(tmp_path / "audit.jsonl")


@pytest.fixture
def nowhere(tmp_path: Path) -> Installation:
    """Return an installation without a policy."""
    return Installation(str(tmp_path / "prefix"))


def test_what_options_choose(nowhere: Installation, log: str) -> None:
    """Joined by and; each job that is left fits."""

    def found(*options: str) -> list[dict[str, object]]:
        result = run(nowhere, "jobs", "--from", log, "--since", "2026-01-01", "--json", *options)
        listed: list[dict[str, object]] = json.loads(result.stdout)
        assert result.exit_code == (0 if listed else 1)
        return listed

    assert len(found()) == 300
    assert {job["user"] for job in found("--user", "bob")} == {"bob"}
    assert {job["state"] for job in found("--state", "refused")} == {"refused"}
    assert all(job["cold"] for job in found("--cold"))
    assert all(float(str(job["prolog"])) > 60 for job in found("--slow", "1m"))
    assert all("jax" in str(job["images"]) for job in found("--image", "base/jax"))
    assert 0 < len(found("--cold", "--image", "base/jax", "--user", "bob")) < len(found("--user", "bob"))
    assert found("--user", "nobody") == []


def test_one_line_a_job(nowhere: Installation, log: str) -> None:
    """For people; why it was refused, or what was cold and why."""
    shown = run(nowhere, "jobs", "--from", log, "--since", "2026-01-01", "--state", "refused").stdout
    head, *rows = shown.splitlines()
    assert head.split() == ["JOB", "USER", "STARTED", "STATE", "NODES", "PROLOG", "DETAIL"]
    assert all("is refused: registry" in row for row in rows)
    assert "(nothing-published)" in run(nowhere, "jobs", "--from", log, "--since", "2026-01-01", "--cold").stdout


def test_a_wrong_time_is_refused(nowhere: Installation, log: str) -> None:
    """In words."""
    result = run(nowhere, "jobs", "--from", log, "--slow", "10")
    assert (result.exit_code, "is not a duration" in result.stderr) == (2, True)


def test_who_was_seeded_from_whom(nowhere: Installation, tmp_path: Path) -> None:
    """From what a user's jobs published, what it was merged into, and what was promoted from it."""
    path = tmp_path / "audit.jsonl"
    lines: list[dict[str, object]] = [
        {"event": "bundle.published", "user": "mallory", "uid": 666, "bundle": "b1"},
        {"event": "bundle.compacted", "bundle": "b2", "replaces": ["b0", "b1"]},
        {"event": "entry.promoted", "bundle": "b2", "published": "b3"},
        {"event": "bundle.published", "user": "bob", "uid": 3, "bundle": "other"},
    ]
    for job, bundle in ((7, "b1"), (8, "b2"), (9, "b3"), (10, "other")):
        seeded = {"hook": "prolog", "event": "cache.seeded", "profile": "numba", "bundle_ids": [bundle]}
        lines.append({**seeded, "job_id": job, "run_id": f"0{job}"})
    with path.open("w") as file:
        for number, line in enumerate(lines):
            own = {"ts": "2026-02-01T00:00:00.000Z", "node": "n1", "hook": "epilog", "run_id": str(number)}
            file.write(json.dumps({**own, **line}) + "\n")

    def seeded_from(whom: str) -> list[int]:
        shown = run(nowhere, "jobs", "--from", str(path), "--since", "2026-01-01", "--seeded-from", whom, "--json")
        return [job["job"] for job in json.loads(shown.stdout)]

    assert seeded_from("mallory") == seeded_from("666") == [7, 8, 9]
    assert seeded_from("b2") == [8, 9]
    assert seeded_from("bob") == [10]
    nobody = run(nowhere, "jobs", "--from", str(path), "--since", "2026-01-01", "--seeded-from", "nobody")
    assert (nobody.exit_code, "nothing that nobody published" in nobody.stderr) == (1, True)


def test_jobs_of_this_host(entry_site: EntrySite) -> None:
    """Also those whose events are not in the log yet."""
    assert prolog.main(entry_site.installation.prefix) == 0
    (job,) = entry_site.json("jobs")
    assert (job["job"], job["state"], job["cold"]) == (7, "running", {"numba": "nothing-published"})
    assert epilog.main(entry_site.installation.prefix) == 0
    assert [(job["state"], job["cold"]) for job in entry_site.json("jobs")] == [("done", {})]  # it used nothing
