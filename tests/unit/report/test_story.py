"""A job's story: every cold profile has a reason, every failure what to do."""

from __future__ import annotations

import pytest

from tests.lib.hook_lines import NOW, act, epilog, finished, started
from warmstart.audit.line import Line
from warmstart.report import story
from warmstart.report.lines import Hook, hooks
from warmstart.report.story import Part, about, advice, first_node, named

FACTS = {"image": "sha256:ab", "cpu": "x86_64-1f", "gpu": "none"}


def of(*lines: Line) -> list[Hook]:
    return hooks(lines, NOW)


def cold(reason: str, profile: str = "numba", **fields: object) -> Line:
    return finished(steps={"seed": 10}, facts=FACTS, caches={profile: {"warm": False, "cold": reason, **fields}})


def parts(found: list[Hook]) -> list[Part]:
    return [part for hook in found for part in story.parts(hook)]


def told_of(caches: dict[str, Line]) -> list[str]:
    """Return what is said of the caches of an epilog."""
    return [part.what for part in parts(of(epilog(steps={"harvest": 100}, caches=caches)))[1:]]


def test_what_the_job_asked_and_got() -> None:
    image = {"image": "r/a:1", "how": "waited", "bytes": 1 << 30, "ms": 61_000, "waited_ms": 60_000}
    warm = {"warm": True, "way": "overlay", "entries": 12, "bundles": 1, "scopes": ["site"], "fetched_bytes": 2048}
    told = of(
        started(),
        finished(
            head=True, partition="gpu", asked={"images": ["r/a:1"], "fresh": True, "ports": 2}, rules=["all"],
            granted={"profiles": ["numba"]}, steps={"image": 4, "seed": 30, "x": 1}, images=[image],
            caches={"numba": {**warm, "ms": 20}}, told={"x": {"address": "n1", "numbers": [20017, 1]}},
            remarks=[{"about": "r/a:1", "text": "was imported without a lock"}], duration_ms=40,
        ),
    )  # fmt: skip
    assert [*about(told)] == [
        "job 7 of alice, cluster c, partition gpu",
        "asked: images r/a:1, fresh, ports 2",
        "rules: all",
        "granted: profiles numba",
    ]
    assert parts(told) == [
        Part("image", "4ms", ""),
        Part("  image", "1m", "r/a:1 was imported meanwhile (1GiB), after 1m of waiting"),
        Part("seed", "30ms", ""),
        Part("  numba", "20ms", "warm: 12 entries of 1 bundle (site), by overlay, 2KiB fetched"),
        Part("x", "1ms", ""),
        Part("  address", "", "n1"),
        Part("  numbers", "", "20017, 1"),
        Part("remark", "", "r/a:1: was imported without a lock"),
    ]
    assert advice(told) == []


@pytest.mark.parametrize(
    ("fields", "excluded"),
    [
        ({}, "it is only observed (mode: observe)"),
        ({"excluded": "no rule matches it on this node"}, "no rule matches it on this node"),
    ],
)
def test_an_observed_job_has_nothing_and_is_told_why(fields: Line, excluded: str) -> None:
    told = of(finished(observed=True, rules=[], asked={"fresh": True}, **fields))
    assert [*about(told)][1:] == ["asked: fresh", f"warmstart does nothing for it: {excluded}"]


@pytest.mark.parametrize("reason", [*story.COLD, "store-failed"])
def test_every_cold_profile_has_a_reason(reason: str) -> None:
    told = of(cold(reason))
    assert parts(told)[1].what.startswith("cold: ")
    assert reason in story.COLD or reason in parts(told)[1].what
    assert [*about(told)][1:] == ["facts: image sha256:ab, cpu x86_64-1f, gpu none"]


def test_because_of_which_nodes_a_cache_is_cold() -> None:
    told = of(cold("nodes-differ: cpu", nodes=["n2", "n3"]))
    assert parts(told)[1].what == (
        "cold: the job's nodes differ in what its entries depend on (cpu); on all nodes of the job, because of n2, n3"
    )
    assert named([f"n{number}" for number in range(12)]) == "n0, n1, n2, n3, n4, n5, n6, n7 and 4 more"


def test_the_caches_of_a_steps_image_are_told_with_it() -> None:
    told = of(finished(hook="asks", of="r/a:1", caches={"numba": {"warm": True}}))
    assert [part[::2] for part in parts(told)[:2]] == [("seed", ""), ("  image", "caches of r/a:1")]
    assert told_of({"numba@ab": {"image": "r/a:1", "entries": 1}}) == ["1 new entry published"]


def test_what_the_jobs_first_node_says_counts() -> None:
    early = finished(node="n2", ts="2026-01-31T09:29:00.000Z", rules=["x"])
    late = epilog(node="n10", user="bob")
    told = of(early, finished(node="n10"), finished(node="n3", head=True, rules=["a", "b"]), late)
    assert (first_node(told), [*about(told)]) == ("n3", ["job 7 of alice, cluster c", "rules: a, b"])
    assert first_node(of(early, finished(node="n10"))) == "n2"
    assert first_node(of(late)) == "n10"


def test_what_a_job_was_refused_for() -> None:
    why = {"code": "image-not-found", "reason": "no such image", "hint": "check its name"}
    told = of(
        finished(outcome="refused", steps={"image": 500}, failures=[{"degree": "refused", "step": "image", **why}])
    )
    assert ([*about(told)][1:], advice(told)) == (["refused: no such image"], ["image-not-found: check its name"])
    assert parts(told) == [Part("image", "500ms", "no such image")]


def test_a_failure_of_no_step_and_a_bug() -> None:
    failure = {"step": "policy", "code": "trust-unproven", "reason": "it is not proven"}
    told = of(finished(outcome="crashed", failures=[failure], traceback="Traceback …\n  x\nKeyError: 'a'\n"))
    assert parts(told) == [Part("failed", "", "it is not proven"), Part("bug", "", "KeyError: 'a'")]


def test_of_what_is_done_for_another_job_there_is_the_harvest() -> None:
    line = act("harvest.finished", job_id=7, done_by={"hook": "maintain"}, caches={"numba": {"entries": 3, "size": 9}})
    assert [part.part for part in parts(of(line))] == ["harvest", "  numba"]


LEFT_OUT = "left out: 4 no file of an entry, 1 lock or temporary file (v2/a/x.bin)"
LOST = {"no file of an entry": 4, "lock or temporary file": 1}
PAIR = [["v2/a/x.bin", "no file of an entry"]]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"use": "hit"}, "nothing new: the entries that it was given were used"),
        ({"use": "unknown"}, "nothing new; whether it used what it was given cannot be seen"),
        ({"use": "untouched"}, "nothing new: not used; the script may set its variables itself"),
        ({"entries": 2, "changed": 1}, "2 new entries published; 1 of them in place of seeded ones"),
        ({"entries": 1, "running": True}, "1 new entry published while the job ran"),
        ({"handed_in": 3}, "3 new entries handed in, to be published with those of the job's other nodes"),
        ({"left_out": "the job failed"}, "not harvested, or not all: the job failed"),
        (
            {"ignored": LOST, "ignored_examples": PAIR, "truncated": "out of time"},
            f"not harvested, or not all: out of time; {LEFT_OUT}",
        ),
        ({"rejected": {"smaller": 2}}, "nothing new; entries rejected: 2 smaller"),
        ({"retired": 2, "retired_examples": ["a", "b"]}, "nothing new; removed, and so retired: 2 entries (a, b)"),
        ({"use": "around", "own": ["X"]}, "nothing new: the job went around it; set by the job itself: X"),
    ],
)  # fmt: skip
def test_what_came_of_a_cache(item: Line, text: str) -> None:
    assert told_of({"numba": item}) == [text]


@pytest.mark.parametrize(("died", "told"), [(0, False), (40_000, True), (400_000, False)])
def test_an_early_death_after_a_warm_start_is_told(died: int, told: bool) -> None:
    said = advice(of(*(epilog(node=node, died_ms=died) for node in ("n1", "n2"))))
    assert [line.startswith("the job began warm and died after 40s") for line in said] == [True] * told
