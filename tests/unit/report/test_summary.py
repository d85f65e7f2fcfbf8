"""What runs add up to; each number from runs that give it alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from warmstart.audit.runs import Harvest, ImageUse, Made, Run, Seeding
from warmstart.report.summary import Counted, Returns, Saved, SetByJobs, Uses, summarize


def prolog(**fields: object) -> Run:
    run = Run(
        "prolog", "0a", "n1", job=7, user="alice", first="2026-01-31T09:30:00.000Z", last="2026-01-31T09:30:01.000Z"
    )
    run.head = True
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def image(how: str, seconds: float = 0.0, digest: str = "d1", size: int = 1000, waited: float = 0.0) -> ImageUse:
    return ImageUse(f"r/{digest}", digest, how, size, seconds, waited)


def test_jobs_are_counted_on_their_first_node() -> None:
    found = summarize([prolog(), prolog(head=False, node="n2"), prolog(user="bob")])
    assert (found.runs, found.jobs, found.users, found.nodes) == (3, 2, 2, 2)


def test_starts_that_come_back_to_a_node() -> None:
    def at(time: str, **fields: object) -> Run:
        return prolog(first=f"{time}.000Z", last=f"{time}.500Z", **fields)

    began = at("2026-01-01T00:00:00")
    others = [at("2026-01-01T01:00:00", **other) for other in ({"user": "bob"}, {"node": "n2"}, {"cluster": "b"})]
    ended = at("2026-01-01T12:00:00", hook="epilog")
    within_a_day = at("2026-01-02T12:00:00", head=False)
    within_a_week = at("2026-01-09T12:00:00")
    later = at("2026-01-16T12:00:01")
    assert summarize([began, *others, ended, within_a_day, within_a_week, later]).returns == Returns(7, 1, 2)
    assert summarize([began, prolog(first="damaged")]).returns == Returns(2, 0, 0)
    assert summarize([at("2026-01-01T00:00:00", user=""), at("2026-01-01T00:00:01", user="")]).returns == Returns(
        0, 0, 0
    )


def test_a_start_that_is_warm_by_a_job_that_runs() -> None:
    """As long as that job runs: afterwards the jobs would be warm all the same."""

    def given(job: int, bundle: str) -> Run:
        seeding = Seeding("numba", "overlay", 1, 1, ("user-1-a",), 0, 0.1, from_bundles=(bundle,))
        return prolog(job=job, seedings={"numba": seeding})

    live = Run("background", "0c", "n1", job=7, done_by="background", harvests=[Harvest("numba", 2, 0, 0, 9, 0.1)])
    live.harvests[0] = live.harvests[0]._replace(running=True)
    live.made = [Made("b1"), Made("b2", ("b0", "b1"))]
    found = summarize([given(7, "b0"), live, given(8, "b1"), given(9, "b2"), epilog(job=7), given(10, "b2")])
    assert (found.jobs, found.warm_by_running) == (4, 2)


def test_what_steps_images_have_is_counted_and_starts_no_job() -> None:
    sets = [
        prolog(hook="asks", set_of="r/a:1", cold={"numba": "nothing-published"}),
        prolog(hook="asks", set_of="r/a:1", warm=["numba"], cold={"triton": "no-vote"}, node="n2"),
    ]
    found = summarize([prolog(warm=["numba"]), *sets])
    assert (found.jobs, found.sets, found.warm_sets) == (1, 2, 1)
    assert found.cold_anyway == (Counted("triton: no-vote", 1),)
    assert found.cold_by_user[0].times == 2


def epilog(*harvests: Harvest, **fields: object) -> Run:
    run = Run("epilog", "0b", "n1", job=7, user="alice", first="2026-01-31T10:30:00.000Z", harvests=[*harvests])
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def harvest(profile: str, use: str, *, entries: int = 0, seeded: int = 0, changed: int = 0, akin: int = 0) -> Harvest:
    return Harvest(profile, entries, 0, changed, 0, 0.1, seeded, use, akin)


def test_hit_rates() -> None:
    found = summarize(
        [
            epilog(harvest("numba", "hit"), harvest("triton", "unknown"), harvest("jax", "untouched")),
            epilog(harvest("numba", "built"), harvest("numba", ""), harvest("triton", "unknown")),
            epilog(harvest("numba", "hit"), harvest("jax", "built"), user="bob"),
        ]
    )
    assert found.profiles == (
        Uses("numba", 2, 1, 0, 0, 0),
        Uses("triton", 0, 0, 2, 0, 0),
        Uses("jax", 0, 1, 0, 1, 0),
    )
    assert found.by_user == (Uses("alice", 1, 1, 2, 1, 0), Uses("bob", 1, 1, 0, 0, 0))
    assert [uses.percent for uses in found.profiles] == ["66.7%", "-", "0.0%"]
    assert found.caches == Uses("", 2, 2, 2, 1, 0)


def test_a_profile_whose_hits_nobody_sees_has_no_rate() -> None:
    """Its builds alone are seen: they would make a rate of nothing, of the profile, its user, the day and all."""
    found = summarize(
        [
            epilog(harvest("jax", "built"), harvest("numba", "built")),
            *(epilog(harvest("jax", "unknown"), harvest("numba", "hit")) for _ in range(3)),
        ]
    )
    assert found.profiles == (Uses("jax", 0, 0, 4, 0, 0), Uses("numba", 3, 1, 0, 0, 0))
    assert [uses.percent for uses in found.profiles] == ["-", "75.0%"]
    assert (found.caches.percent, found.caches.unknown) == ("75.0%", 4)
    assert found.by_user == (Uses("alice", 3, 1, 4, 0, 0),)
    assert [(day.hits, day.built) for day in found.periods] == [(3, 1)]


def test_who_goes_around_a_cache() -> None:
    around = harvest("triton", "around")._replace(own=("TRITON_CACHE_DIR",))
    built = harvest("cute-dsl", "built")._replace(own=("QUACK_CACHE_DIR",))
    found = summarize(
        [
            epilog(around, built),
            epilog(around, node="n2"),
            *(epilog(around, job=job, user="bob") for job in (8, 9)),
        ]
    )
    assert found.around == (
        SetByJobs("TRITON_CACHE_DIR", "triton", 3, 2),
        SetByJobs("QUACK_CACHE_DIR", "cute-dsl", 1, 1),
    )
    assert found.profiles == (Uses("cute-dsl", 0, 1, 0, 0, 0), Uses("triton", 0, 0, 0, 0, 4))
    assert found.caches.percent == "0.0%"


def test_a_hit_saves_what_a_cold_start_took() -> None:
    cold = harvest("numba", "built", entries=3)
    runs_ = [
        epilog(cold._replace(building=10.0), user="alice"),
        epilog(cold._replace(building=20.0), user="alice"),
        epilog(cold._replace(building=60.0), user="bob"),
        epilog(cold._replace(building=500.0, seeded=1), user="alice"),
        *(epilog(harvest("numba", "hit", seeded=3), user=user) for user in ("alice", "alice", "carol")),
        epilog(harvest("jax", "hit", seeded=3)),
    ]
    assert summarize(runs_).compiling == Saved(15.0 + 15.0 + 30.0, 3, 1)


def test_what_was_not_used_did_not_begin_cold() -> None:
    cold = dict.fromkeys(("numba", "triton", "jax", "vllm"), "nothing-published")
    uses = {"numba": "untouched", "triton": "around", "jax": "built", "vllm": "unknown"}
    end = epilog(*(Harvest(name, 0, 0, 0, 0, 0.1, use=use) for name, use in uses.items()))
    (alice,) = summarize([prolog(cold=cold), end]).cold_by_user
    assert (alice.times, alice.unknown, alice.why) == (2, 1, (Counted("nothing-published", 2),))
    (alice,) = summarize([prolog(cold=cold), prolog(cold=cold), prolog(cold=cold, node="n2"), end]).cold_by_user
    assert (alice.times, alice.unknown) == (8, 6)


def test_why_it_was_cold() -> None:
    cold = {
        "numba": "nothing-published",
        "triton": "bundles-left-out",
        "jax": "asked-fresh",
        "vllm": "nothing-proposed",
    }
    found = summarize([prolog(cold=cold), prolog(user="bob", cold={"numba": "nodes-differ: cpu"})])
    assert found.cold_anyway == (Counted("numba: nodes-differ: cpu", 1), Counted("triton: bundles-left-out", 1))
    assert [(one.user, one.times) for one in found.cold_by_user] == [("alice", 4), ("bob", 1)]
    assert found.cold_by_user[1].why == (Counted("nodes-differ", 1),)


@pytest.mark.parametrize(
    ("counts", "rejected", "why"),
    [
        ({}, {}, "the keys change"),
        ({"akin": 1}, {}, "the same names"),
        ({"changed": 1}, {}, "writes anew"),
        ({"akin": 1}, {"numba": {"two-writers": 1}}, "several processes"),
    ],
)
def test_a_cache_that_is_built_again_each_time(
    counts: dict[str, int], rejected: dict[str, dict[str, int]], why: str
) -> None:
    first, again = epilog(harvest("numba", "built", entries=2)), harvest("numba", "built", seeded=2, **counts)
    jobs = [epilog(again, rejected=rejected) for _ in range(3)]
    (found,) = summarize([first, *jobs]).unsettled
    assert (found.user, found.profile, found.jobs) == ("alice", "numba", 3)
    assert why in found.why
    assert summarize([first, *jobs[1:]]).unsettled == ()
    hit = epilog(harvest("numba", "hit", seeded=2), first="2026-01-31T11:00:00.000Z")
    assert summarize([*jobs, hit]).unsettled == summarize([hit, *jobs]).unsettled == ()
    later = [epilog(again, rejected=rejected, first=f"2026-01-31T12:0{number}:00.000Z") for number in range(3)]
    for log in ([*jobs, hit, *later], [*later, hit, *jobs]):
        assert [one.jobs for one in summarize(log).unsettled] == [3]
    assert summarize([*jobs[1:], epilog(again, user="bob")]).unsettled == ()


def test_imports_and_what_avoided_one() -> None:
    found = summarize([
        prolog(images=[image("imported", 50, waited=10)]),
        prolog(hook="import", images=[image("imported", 40)]),
        prolog(images=[image("waited", 30, waited=30)], head=False),
        prolog(images=[image("reused", 1)]), prolog(images=[image("reused", 5, "d2")]),
    ])  # fmt: skip
    images = found.images
    assert (images.imported, images.imported_bytes, images.avoided, images.waits) == (2, 2000, 2, 2)
    assert images.import_p50 == pytest.approx(40, rel=0.04)
    assert found.top_images == (Counted("r/d1", 3), Counted("r/d2", 1))


def test_a_background_import_is_no_jobs_use() -> None:
    asked, other = prolog(images=[image("waited", 30, waited=30)]), prolog(images=[image("waited", 9, waited=9)])
    import_run = Run("import", "0d", "n1", images=[image("imported", 28)])
    found = summarize([asked, import_run, other])
    assert (found.images.imported, found.images.avoided, found.images.waits) == (1, 1, 2)
    assert found.top_images == (Counted("r/d1", 2),)
    assert summarize([import_run]).images.avoided == 0  # the job that asked has gone


def test_time_saved() -> None:
    imported = prolog(images=[image("imported", 100)])
    assert summarize([imported, prolog(images=[image("reused", 1)])]).saved == Saved(99.0, 1, 0)
    assert summarize([imported, prolog(images=[image("stale", 1, "d2", 500)])]).saved == Saved(49.0, 1, 0)
    assert summarize([imported, prolog(images=[image("waited", 90, waited=90)])]).saved == Saved(0.0, 0, 0)
    assert summarize([imported, prolog(images=[image("reused", 1)], head=False)]).saved == Saved(0.0, 0, 0)
    assert summarize([prolog(images=[image("reused", 1)])]).saved == Saved(0.0, 0, 1)


def test_hooks() -> None:
    outcomes = ["ok"] * 98 + ["failed", "crashed"]
    found = summarize([prolog(seconds=0.05, outcome=outcome) for outcome in outcomes] + [Run("maintain", "0c", "n1")])
    (hook,) = found.hooks
    assert (hook.hook, hook.runs, hook.failed, hook.longest) == ("prolog", 100, 2, 0.05)
    assert hook.p50 == pytest.approx(0.05, rel=0.04)


def distinct(count: int) -> Iterator[Run]:
    """Yield prologs of ever other users, images and profiles."""
    for number in range(count):
        uses = [image("reused", 1, f"digest-{number}")]
        yield prolog(user=f"user-{number}", images=uses, cold={f"profile-{number}": "bundles-refused"})


def test_memory_is_bounded_whatever_the_names_are() -> None:
    tracemalloc.start()
    try:
        found = summarize(distinct(12_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20
    assert found.images.avoided == found.saved.unknown == 12_000
    assert sum(one.times for one in found.cold_anyway) == 12_000
