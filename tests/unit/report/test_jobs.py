"""Jobs, put together from their hooks' runs on all nodes: what became of each."""

from __future__ import annotations

import pytest

from warmstart.audit.runs import OBSERVED, Failure, Harvest, ImageUse, Run, Seeding
from warmstart.report import jobs
from warmstart.report.jobs import Job, of_runs


def run(hook: str = "prolog", job: int = 7, node: str = "n1", at: int = 1, **fields: object) -> Run:
    """Return a run that took a second."""
    made = Run(hook, f"{hook}-{node}-{at}", node, job=job, user="alice", cluster="c1", outcome="ok", seconds=1.0)
    made.first = f"2026-01-31T09:30:{at:02}.000Z"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def only(*runs: Run) -> Job:
    """Return the one job of these runs."""
    (job,) = of_runs(runs)
    return job


def test_a_job_on_two_nodes() -> None:
    """A profile is warm only where no node had it cold; times are the longest."""
    seeding = Seeding("numba", "overlay", 1, 1, ("site",), 0, 0.1, ("b1",))
    image = ImageUse("reg.io/a:1", "sha256:ab", "reused", 9, 0.1, 0.0)
    first = run(warm=["numba", "triton"], seedings={"numba": seeding}, images=[image])
    found = only(first, run(node="n2", at=2, seconds=5.0, cold={"triton": "store-failed"}), run("epilog", at=9))
    assert (found.job, found.user, found.nodes, found.started) == (7, "alice", ("n1", "n2"), first.first)
    assert (found.warm, found.cold, found.bundles) == (("numba",), {"triton": "store-failed"}, ("b1",))
    assert (found.prolog, found.epilog, found.slowest) == (5.0, 1.0, 5.0)
    assert (found.uses_image("a:1"), found.uses_image("sha256:ab"), found.uses_image("b:1")) == (True, True, False)
    assert found.state == "running"  # n2 has had no epilog


@pytest.mark.parametrize(
    ("uses", "is_cold"),
    [
        (("untouched", "around"), False),
        (("untouched", "built"), True),
        (("unknown", ""), True),
        (("", "untouched"), False),
    ],
)
def test_what_a_job_did_not_use_is_not_cold(uses: tuple[str, str], is_cold: bool) -> None:
    """On any node that has seen it."""
    ends = [
        run("epilog", node=f"n{number}", at=9, harvests=[Harvest("numba", 0, 0, 0, 0, 0.1, use=use)])
        for number, use in enumerate(uses)
    ]
    found = only(*(run(node=f"n{number}", cold={"numba": "nothing-published"}) for number in range(2)), *ends)
    assert bool(found.cold) is is_cold


def test_a_job_is_as_warm_as_the_images_of_its_steps() -> None:
    """Whose caches take the place of those outside of them, which nobody may have used."""
    image = ImageUse("reg.io/a:1", "sha256:ab", "reused", 9, 0.1, 0.0)
    outside = run(cold={"numba": "nothing-published", "triton": "nothing-published"}, warm=["jax", "warp"])
    made = run("asks", at=2, warm=["numba", "jax"], cold={"warp": "no-vote"}, set_of="reg.io/a:1", images=[image])
    found = only(outside, made, run("asks", at=3, warm=["jax"], set_of="reg.io/b:1"), run("epilog", at=9))
    assert found.warm == ("jax", "numba")
    assert found.cold == {"triton": "nothing-published", "warp": "no-vote"}
    assert (found.uses_image("a:1"), found.state, found.nodes) == (True, "done", ("n1",))


REFUSAL = Failure("refused", "", "image-refused", "not allowed", "use another")
DRAIN = Failure("drained", "workspace", "state-broken", "read-only", "")


@pytest.mark.parametrize(
    ("state", "why", "runs"),
    [
        ("running", "", [run()]),
        ("done", "", [run(), run("epilog", at=9)]),
        ("running", "", [run("epilog", at=1), run(at=9)]),  # requeued
        ("refused", "not allowed", [run(failures=[REFUSAL]), run("epilog", at=9)]),
        ("drained", "read-only", [run(failures=[DRAIN], outcome="failed")]),
        ("crashed", "", [run(outcome="crashed"), run("epilog", at=9)]),
        ("observed", OBSERVED, [run(excluded=OBSERVED), run("epilog", at=9)]),
        ("excluded", "no rule matches", [run(excluded="no rule matches"), run("epilog", at=9)]),
    ],
)
def test_what_became_of_it(state: str, why: str, runs: list[Run]) -> None:
    """By its hooks."""
    found = only(*runs)
    assert (found.state, found.why) == (state, why)
    assert state in jobs.STATES


def test_what_others_did_for_it_is_no_hook_of_it() -> None:
    """Nor is an import; jobs of two clusters may have one number."""
    assert of_runs([run("import"), run("epilog", done_by="epilog of job 8"), run(job=0)]) == []
    assert len(of_runs([run(), run(cluster="c2")])) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose hooks ran last are kept."""
    monkeypatch.setattr(jobs, "MOST_JOBS", 3)
    made = [run(job=number, at=number) for number in range(1, 9)]
    assert [job.job for job in of_runs([*made[:4], run("epilog", job=2, at=9), *made[4:6]])] == [2, 5, 6]
