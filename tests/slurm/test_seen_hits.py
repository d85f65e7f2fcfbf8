"""What an epilog sees of a cache's use, with real tools: hits, builds, what was not used, and what nobody can tell."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.lib import spank
from tests.lib.accounts import BOB
from tests.lib.hand_jobs import a_job
from tests.lib.requirements import need_module
from tests.lib.site import Site

JOBS = count(960001)
RULES = "rules:\n  - name: everyone\n    profiles: [{profiles}]\n"
HALVE = """\
import numba

@numba.njit(cache=True)
def halve(value):
    return value * 0.5

halve(1.0)
"""


def begin(site: Site, name: str, profiles: str) -> None:
    """Begin with an empty store, and give jobs these profiles."""
    store = site.new_store(site.cluster.base / name)
    site.write_policy(RULES.format(profiles=profiles), constant="spank", store=str(store))


def ran(site: Site, tool: str = "", *, user: str = BOB) -> dict[str, str]:
    """Run a tool's job by hand, or one that does nothing. Return what was made of each profile's cache."""
    job_id = next(JOBS)
    with a_job(site, job_id, user=user) as job:
        if tool:
            job.run(f"{site.cluster.python} {site.jobs}/{tool}_job.py")
    return {event["profile"]: event["use"] for event in site.events(job_id, "cache.harvested")}


def test_numba_builds_hits_and_is_not_used(site: Site) -> None:
    """A profile that the job's rule gives, and that it never uses, is no miss."""
    begin(site, "hits-numba", "numba, jax")
    assert ran(site) == {"numba": "untouched", "jax": "untouched"}
    assert ran(site, "numba") == {"numba": "built", "jax": "untouched"}
    assert ran(site, "numba") == {"numba": "hit", "jax": "untouched"}
    assert ran(site) == {"numba": "untouched", "jax": "untouched"}


def test_who_removes_what_it_was_given_did_not_use_it(site: Site) -> None:
    """`rm -rf` in the job, and no tool: neither a hit nor a miss. `explain` says what has become of it."""
    begin(site, "hits-removed", "numba")
    assert ran(site, "numba") == {"numba": "built"}
    job_id = next(JOBS)
    with a_job(site, job_id, user=BOB) as job:
        job.run('rm -rf "$NUMBA_CACHE_DIR"/*')
    (event,) = site.events(job_id, "cache.harvested")
    assert (event["use"], event["retired"]) == ("unknown", 0)
    told = site.command("explain", str(job_id)).stdout
    assert "2 removed with most others, as by a cleaner; it stays published" in " ".join(told.split())


@pytest.mark.sweep
@pytest.mark.tool
def test_inductor_leaves_locks_where_it_hits(site: Site) -> None:
    """So a job that did not compile is told from one that found everything."""
    need_module("torch")
    begin(site, "hits-inductor", "inductor")
    assert [ran(site, tool) for tool in ("inductor", "inductor", "")] == [
        {"inductor": "built"},
        {"inductor": "hit"},
        {"inductor": "untouched"},
    ]


@pytest.mark.tool
def test_triton_leaves_no_trace(site: Site) -> None:
    """A hit and a job that did nothing look alike; neither counts."""
    need_module("triton")
    begin(site, "hits-triton", "triton")
    uses = []

    def compiles() -> int:
        return site.compile_job("triton", BOB, "n1")

    def does_nothing() -> int:
        return site.cluster.submit("#!/bin/sh\ntrue\n", BOB, "--nodelist=n1")

    with spank.loaded(site):  # it needs the constant path
        for job in (compiles, compiles, does_nothing):
            ended = site.finish(job())
            assert ended.state == "COMPLETED"
            uses += [event["use"] for event in site.events(ended.job_id, "cache.harvested")]
    assert uses == ["built", "unknown", "unknown"]


def test_a_script_that_moves_is_built_again_each_time(site: Site, tmp_path: Path) -> None:
    """`explain` and `report` say so, and why: Numba's names have the hash of the source's path."""
    begin(site, "hits-moving", "numba")
    folders = [site.cluster.base / f"moving-{next(JOBS)}" for _ in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(HALVE)
    # A hit first: what this user's jobs built before it does not count.
    for number, folder in enumerate([folders[0], *folders]):
        job_id = next(JOBS)
        with a_job(site, job_id, user=BOB) as job:
            job.run(f"{site.cluster.python} {folder}/train.py")
        (event,) = site.events(job_id, "cache.harvested")
        use, seeded = ("hit", 1) if number == 1 else ("built", max(number - 1, 0))
        assert (event["use"], event["seeded"], event["akin"]) == (use, seeded, int(number > 1))
    told = site.command("explain", str(job_id)).stdout
    assert "1 new entry published" in told
    assert "although it was seeded with 3" in told
    assert "most likely the same names under other hashes" in " ".join(told.split()), told


@pytest.mark.sweep
def test_the_hit_rate_of_a_hundred_jobs_ten_of_which_use_numba(site: Site) -> None:
    """One builds, nine hit: 90 %, whatever the other ninety were given."""
    begin(site, "hits-mix", "numba, inductor, triton")
    seen = [ran(site, "numba" if number % 10 == 5 else "") for number in range(100)]
    uses = [use["numba"] for use in seen]
    assert {use: uses.count(use) for use in ("built", "hit", "untouched")} == {"built": 1, "hit": 9, "untouched": 90}
    assert all(use[name] == "untouched" for use in seen for name in ("inductor", "triton"))
