"""A job's story: every cold profile has a reason, every failure what to do."""

from __future__ import annotations

import pytest

from warmstart.audit.runs import Cold, Failure, Harvest, ImageUse, Remark, Run, Seeding
from warmstart.report import story
from warmstart.report.story import History, Part, Spread, Story, named, tell
from warmstart.steps import seed

FACTS = {"image": "sha256:ab", "cpu": "x86_64-1f", "gpu": "none"}


def prolog(**fields: object) -> Run:
    run = Run(
        "prolog", "0a", "n1", job=7, user="alice", partition="gpu", first="2026-01-31T09:30:00.250Z", outcome="ok"
    )
    run.is_planned, run.facts = True, FACTS
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def parts(told: Story) -> list[Part]:
    return [part for hook in told.hooks for part in hook.parts]


def test_what_the_job_asked_and_got() -> None:
    run = prolog(
        asked={"images": ["r/a:1"], "fresh": True, "ports": 2}, rules=["all"], granted_profiles=["numba"], seconds=0.04,
        steps={"image": 0.004, "seed": 0.03, "x": 0.001}, told=[("x", "address", "n1")],
        images=[ImageUse("r/a:1", "sha256:ab", "waited", 1 << 30, 61.0, 60.0)], warm=["numba"],
        seedings={"numba": Seeding("numba", "overlay", 12, 1, ("site",), 2048, 0.02)},
    )  # fmt: skip
    told = tell([run], History())
    assert (told.job, told.user, told.nodes, told.refused) == (7, "alice", ("n1",), "")
    assert (told.asked, told.rules, told.added) == (("images r/a:1", "fresh", "ports 2"), ("all",), ("numba",))
    assert told.hooks[0][:5] == ("prolog", "n1", "2026-01-31T09:30:00.250Z", 0.04, "ok")
    assert parts(told) == [
        Part("image", "4ms", ""),
        Part("  image", "1m", "r/a:1 was imported meanwhile (1GiB), after 1m of waiting"),
        Part("seed", "30ms", ""),
        Part("  numba", "20ms", "warm: 12 entries of 1 bundle (site), by overlay, 2KiB fetched"),
        Part("x", "1ms", ""),
        Part("  address", "", "n1"),
    ]
    assert told.advice == ()


@pytest.mark.parametrize("reason", [*story._COLD, "store-failed"])
def test_every_cold_profile_has_a_reason(reason: str) -> None:
    told = tell([prolog(steps={"seed": 0.01}, cold={"numba": reason})], History())
    assert parts(told)[1].what.startswith("cold: ")
    assert reason in story._COLD or reason in parts(told)[1].what
    assert bool(told.advice) == (reason in story._ADVICE)


def test_of_a_cold_profile_that_the_job_did_not_use_there_is_no_advice() -> None:
    begun = prolog(steps={"seed": 0.01}, cold={"numba": seed.NOTHING_PUBLISHED, "inductor": seed.NOTHING_PUBLISHED})
    ended = Run("epilog", "0b", "n1", job=7, steps={"harvest": 0.1})
    ended.harvests = [Harvest("numba", 0, 0, 0, 0, 0.0, use="untouched")]
    (before,), (after,) = tell([begun], History()).advice, tell([begun, ended], History()).advice
    assert (before.partition(":")[0], after.partition(":")[0]) == ("numba, inductor", "inductor")


def test_what_the_nodes_of_a_job_agreed_on() -> None:
    differ = {"triton": Cold("nodes-differ: cpu", ("n2", "n3"))}
    runs = [
        prolog(
            node=f"n{number}", steps={"seed": 0.01}, warm=["numba"], cold={"triton": "nodes-differ: cpu"},
            agreed=differ, facts=FACTS if number == 1 else {**FACTS, "cpu": "x86_64-2a"},
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    told = tell(runs, History())
    assert told.spread == (
        Spread("numba", "warm", ("n1", "n2", "n3")),
        Spread("triton", "cold: nodes-differ: cpu, because of n2, n3", ("n1", "n2", "n3")),
        Spread("cpu", "x86_64-1f", ("n1",)),
        Spread("cpu", "x86_64-2a", ("n2", "n3")),
    )
    assert parts(told)[2].what == (
        "cold: the job's nodes differ in what its entries depend on (cpu); on all nodes of the job, because of n2, n3"
    )
    assert tell(runs[:1], History()).spread == ()
    assert named([f"n{number}" for number in range(12)]) == "n0, n1, n2, n3, n4, n5, n6, n7 and 4 more"


def test_the_caches_of_a_steps_image_are_told_with_it() -> None:
    """They come from no hook, which would have said that it ended."""
    told = tell([prolog(hook="asks", steps={"seed": 0.01}, warm=["numba"], set_of="r/a:1", outcome="")], History())
    assert (told.hooks[0].outcome, parts(told)[0].what) == ("ok", "caches of image r/a:1")
    assert parts(told)[1].part == "  numba"


def test_the_jobs_first_node_is_told_first() -> None:
    early = prolog(node="n2", first="2026-01-31T09:30:00.100Z")
    assert tell([early, prolog(node="n10"), prolog(node="n3", head=True)], History()).nodes == ("n3", "n2", "n10")


def test_which_fact_was_another_one() -> None:
    history = History()
    history.add(prolog(job=5, facts={**FACTS, "cpu": "x86_64-2a", "gpu": "H100"}))
    history.add(
        Run("epilog", "0b", "n1", job=5, harvests=[Harvest(name, 3, 0, 0, 9, 0.1) for name in ("numba", "acme")])
    )
    assert history.difference("numba", FACTS) == "entries of job 5 do not fit: cpu is x86_64-1f, was x86_64-2a"
    assert history.difference("triton", FACTS) == ""
    told = tell([prolog(steps={"seed": 0.01}, cold={"numba": "nothing-published"})], history)
    assert parts(told)[1].what.endswith("cpu is x86_64-1f, was x86_64-2a")
    assert "gpu is none, was H100" in history.difference("acme", FACTS)  # of the site's own, every fact may count


def test_what_a_job_was_refused_for_is_told_once() -> None:
    why = ("no such image", "check its name")
    failures = [Failure("failed", "image", "image-not-found", *why), Failure("refused", "", "job-refused", *why)]
    told = tell([prolog(steps={"image": 0.5}, failures=failures)], History())
    assert (told.refused, told.advice) == ("no such image", ("image-not-found: check its name",))
    assert parts(told) == [Part("image", "500ms", "no such image")]


def test_an_import_in_the_background() -> None:
    run = Run("import", "0c", "n1", job=7, images=[ImageUse("r/a:1", "d", "imported", 1 << 30, 61.0, 0.0)])
    told = tell([run], History())
    assert parts(told) == [Part("image", "1m", "r/a:1 was imported (1GiB)")]
    assert told.hooks[0].outcome == "ok"  # its end is in the log, and names no job
    run.images, run.failures = [], [Failure("failed", "import", "image-not-found", "no such image", "")]
    assert tell([run], History()).hooks[0].outcome == "failed"
    run.failures = []
    assert tell([run], History()).hooks[0].outcome == "unfinished"


@pytest.mark.parametrize(
    ("reasons", "why"),
    [
        (["damaged"] * 2, "cold: what is published is not used (damaged)"),
        (["damaged", "size"], "cold: what is published is not used (damaged; size)"),
        ([], "cold: what is published is not used"),
    ],
)
def test_why_what_is_published_is_not_used(reasons: list[str], why: str) -> None:
    remarks = [Remark("bundle.refused", "numba", reason) for reason in reasons]
    told = tell([prolog(steps={"seed": 0.01}, cold={"numba": "bundles-refused"}, remarks=remarks)], History())
    assert parts(told)[1].what == why
    assert len(parts(told)) == 2 + len({*reasons})


def test_what_a_harvest_left_out() -> None:
    """And why, with examples; where nothing was an entry's, how to find the pattern that fits."""
    ignored = {"no file of an entry": 4, "lock or temporary file": 1}
    run = Run("epilog", "0b", "n1", job=7, steps={"harvest": 0.1})
    left = {"ignored": ignored, "examples": ("v2/a/x.bin",), "truncated": "out of time"}
    run.harvests = [Harvest("acme", 0, 0, 0, 0, 0.0, use="untouched")._replace(**left)]  # type: ignore[arg-type]
    told = tell([prolog(), run], History())
    left_out = "left out: 4 no file of an entry, 1 lock or temporary file (v2/a/x.bin)"
    assert parts(told)[-1].what == f"nothing new; {left_out}; it ended early: out of time"
    assert "warmstart profile try DIRECTORY --profile acme" in told.advice[0]


@pytest.mark.report
def test_a_warm_job_is_not_told_that_its_profile_fits_nothing() -> None:
    """What it was seeded with did. Tools write of their own: JAX when it used what, vLLM what its keys are made of."""
    run = Run("epilog", "0b", "n1", job=7, steps={"harvest": 0.1})
    run.harvests = [
        Harvest("jax", 0, 0, 0, 0, 0.1, 12, "hit", ignored={"lock or temporary file": 12}),
        Harvest("vllm", 0, 0, 0, 0, 0.1, 3, "hit", ignored={"no file of an entry": 1}),
        Harvest("acme", 0, 3, 0, 0, 0.1, 0, "built", ignored={"no file of an entry": 1}),
    ]
    told = tell([prolog(), run], History())
    assert told.advice == ()
    assert [part.what for part in parts(told)[-3:]] == [
        "nothing new: the entries that it was given were used; left out: 12 lock or temporary file",
        "nothing new; left out: 1 no file of an entry",
        "nothing new; left out: 1 no file of an entry",
    ]


def test_what_was_brought_back_while_the_job_ran() -> None:
    told = tell(
        [
            prolog(steps={"seed": 0.1}, look=1_769_852_700),
            prolog(steps={"seed": 0.1}, at_end="it began cold on purpose", node="n2", head=False),
            Run(
                "background", "0b", "n1", job=7, done_by="background", first="2026-01-31T09:45:00.250Z",
                look=1_769_854_500, steps={"harvest": 0.1},
                harvests=[Harvest("numba", 2, 0, 0, 2048, 0.1, running=True)],
            ),
        ],
        History(),
    )  # fmt: skip
    assert [part.what for part in parts(told) if "harvest" in part.what or "published" in part.what] == [
        "it is harvested next at 2026-01-31T09:45:00.000Z, or when it makes the file .harvest in its cache",
        "it is harvested at its end alone: it began cold on purpose",
        "2 new entries published while the job ran, 2KiB",
        "it is harvested next at 2026-01-31T10:15:00.000Z, or when it makes the file .harvest in its cache",
    ]


def test_what_a_node_hands_in_is_not_nothing() -> None:
    epilog = Run("epilog", "0b", "n2", job=7, first="2026-01-31T10:30:00.250Z", steps={"harvest": 0.4})
    epilog.harvests = [Harvest("numba", 0, 12, 0, 2048, 0.3)]
    epilog.handed_in = {"numba": 3}
    merged = Run("background", "0c", "n2", job=7, first="2026-01-31T10:30:01.250Z", done_by="background")
    merged.remarks = [Remark("harvest.merged", "n3, n4", "")]
    told = tell([prolog(), epilog, merged], History())
    assert told.hooks[1].parts[1].what == "3 new entries handed in, to be published with those of the job's other nodes"
    assert told.hooks[2].parts == (
        Part("remark", "", "n3, n4: published without these nodes, which had not handed in all by then"),
    )


def test_an_epilog_and_its_failures() -> None:
    epilog = Run("epilog", "0b", "n1", job=7, first="2026-01-31T10:30:00.250Z", steps={"harvest": 0.4})
    epilog.harvests = [Harvest("numba", 3, 12, 1, 2048, 0.3), Harvest("jax", 0, 9, 0, 0, 0.1)]
    epilog.rejected = {"numba": {"smaller": 2}}
    epilog.failures = [Failure("failed", "harvest", "store-full", "no space", "free space")]
    epilog.remarks = [Remark("harvest.deferred", "triton", "")]
    told = tell([epilog, prolog()], History())
    assert [hook.hook for hook in told.hooks] == ["prolog", "epilog"]
    assert told.hooks[1].outcome == "unfinished"
    assert parts(told) == [
        Part("harvest", "400ms", "no space"),
        Part("  numba", "300ms", "3 new entries published, 2KiB, 1 of them in place of seeded ones"),
        Part("  jax", "100ms", "nothing new"),
        Part("  numba", "", "entries rejected: 2 smaller"),
        Part("remark", "", "triton: the epilog had no time or no space; maintenance harvests it"),
    ]
    assert told.advice == ("store-full: free space",)


def test_what_an_epilog_has_seen_of_a_caches_use() -> None:
    epilog = Run("epilog", "0b", "n1", job=7, first="2026-01-31T10:30:00.250Z", steps={"harvest": 0.4})
    epilog.harvests = [
        Harvest("numba", 0, 0, 0, 0, 0.1, 12, "hit"),
        Harvest("triton", 0, 0, 0, 0, 0.1, 3, "unknown"),
        Harvest("jax", 0, 0, 0, 0, 0.1, 0, "untouched"),
        Harvest("inductor", 2, 0, 0, 2048, 0.1, 5, "built"),
    ]
    told = [part.what for part in parts(tell([epilog], History()))[1:]]
    assert told == [
        "nothing new: the entries that it was given were used",
        "nothing new; whether it used what it was given cannot be seen",
        "nothing new: not used; the script may set its variables itself",
        "2 new entries published, 2KiB, although it was seeded with 5",
    ]


def test_what_a_job_set_itself_is_named() -> None:
    own = ("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR")
    run = Run("epilog", "0b", "n1", job=7, steps={"harvest": 0.1})
    run.harvests = [
        Harvest("triton", 0, 0, 0, 0, 0.1, 2, "around", own=own[1:]),
        Harvest("flashinfer", 1, 0, 0, 2048, 0.1, 0, "built", own=own[:1]),
    ]
    history = History()
    for job in range(7, 47):
        history.add_uses(Run("epilog", "0b", "n1", job=job, harvests=run.harvests[:1]))
    told = tell([run], history)
    assert [part.what for part in parts(told)[1:]] == [
        "nothing new: the job went around it; set by the job itself: TRITON_CACHE_DIR",
        "1 new entry published, 2KiB; set by the job itself: FLASHINFER_WORKSPACE_BASE",
    ]
    assert told.advice[:2] == (
        "40 jobs of this user set TRITON_CACHE_DIR themselves, or their image does",
        "1 job of this user set FLASHINFER_WORKSPACE_BASE itself, or its image does",
    )
    (line,) = told.advice[2:]
    assert line.startswith("`override: [FLASHINFER_WORKSPACE_BASE, TRITON_CACHE_DIR]` in the jobs' rule ends that")


def test_a_cache_that_never_settles_is_named() -> None:
    history = History()
    built = Harvest("numba", 2, 0, 0, 9, 0.1, 5, "built", 2)
    run = Run("epilog", "0b", "n1", job=7, first="2026-01-31T09:30:00.250Z", harvests=[built])
    for _ in range(2):
        history.add_uses(run)
    assert tell([run], history).advice == ()
    history.add_uses(run)
    (advice,) = tell([run], history).advice
    assert advice.startswith(
        "numba: the last 3 jobs that were seeded have each built new entries; most likely the same names"
    )


def test_a_name_that_is_new_in_each_job_is_told() -> None:
    for names, told in (("abcd", True), ("abca", False), ("abc", False)):
        history = History()
        for job, name in enumerate(names, 1):
            run = Run("prolog", "0a", "n1", job=job, asked={"cache": name})
            history.add_uses(run)
        expected = "cache=d: the last 4 jobs that gave their caches a name gave each another one"
        assert tell([run], history).advice == ((expected,) if told else ())


@pytest.mark.parametrize(("died", "told"), [(0.0, False), (40.0, True), (400.0, False)])
def test_an_early_death_after_a_warm_start_is_told(died: float, told: bool) -> None:
    ends = [Run("epilog", f"0{node}", f"n{node}", job=7, steps={"release": 0.1}, died=died) for node in (1, 2)]
    line = (
        "the job began warm and died after 40s: if that repeats, submit it with --warm-fresh, or with cache=NAME, "
        "another one for each configuration"
    )
    assert tell(ends, History()).advice == ((line,) if told else ())
