"""Last lines become hooks: whole ones, those that were killed, and whatever else a log has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.hook_lines import EPILOG, NOW, PROLOG, epilog, finished, started
from warmstart.audit.line import CUT, Line, shaped, timestamp
from warmstart.report.lines import KILLED, UNFINISHED, Hooks, hook_of, hooks, why_cold
from warmstart.report.story import about, advice, parts
from warmstart.report.summary import summarize

IMAGE = {"image": "r/a:1", "digest": "sha256:ab", "how": "waited", "bytes": 70, "ms": 3, "waited_ms": 2}
REFUSED = {"degree": "refused", "step": "image", "code": "x", "reason": "why", "hint": "do"}


def outcomes(*lines: Line, now: float = NOW) -> list[tuple[str, str]]:
    return [(hook.name, hook.outcome) for hook in hooks(lines, now)]


def test_a_last_line_is_read() -> None:
    caches = {"numba": {"warm": True}, "jax": {"warm": False, "cold": "no-vote"}, "triton@ab": {"entries": 3}}
    (hook,) = hooks(
        [
            started(),
            finished(head=True, images=[IMAGE], caches=caches, failures=[REFUSED]),
        ],
        NOW,
    )
    assert (hook.name, hook.node, hook.job, hook.user) == ("prolog", "n1", 7, "alice")
    assert (hook.began, hook.seconds, hook.outcome, hook.head) == ("2026-01-31T09:30:00.000Z", 1.0, "ok", True)
    assert (hook.images, hook.failures) == ([IMAGE], [REFUSED])
    assert [(profile, why_cold(item)) for profile, item in hook.starts] == [
        ("numba", ("", "")),
        ("jax", ("no-vote", "")),
    ]
    assert [profile for profile, _ in hook.harvests] == ["triton"]


@pytest.mark.parametrize(("degree", "what"), [(None, "seed"), (7, "seed"), ("refused", "refused")])
def test_a_failure_is_counted_by_its_degree_or_its_step(degree: object, what: str) -> None:
    line = finished(failures=[{"degree": degree, "step": "seed", "code": "x"}])
    assert summarize([line], NOW).failures == {f"{what}: x": 1}


def test_an_observed_job_does_not_begin() -> None:
    assert hook_of(finished(head=True, observed=True), "ok").head is False


def test_a_hook_without_a_last_line_was_killed_once_another_one_began() -> None:
    assert outcomes(started(), started(EPILOG), epilog()) == [("prolog", KILLED), ("epilog", "ok")]


def test_two_runs_of_a_hook_at_once_kill_none() -> None:
    """Slurm starts an epilog again if it hears of no end."""
    second = {**EPILOG, "run_id": "0d"}
    both = (started(EPILOG), started(second), finished(second), epilog())
    assert outcomes(*both) == [("epilog", "ok")] * 2
    assert outcomes(*both[:3]) == [("epilog", "ok"), ("epilog", KILLED)]


@pytest.mark.parametrize("other", [{"job_id": 8}, {"node": "n2"}, {"cluster": "d"}])
def test_hooks_of_other_jobs_and_nodes_kill_none(other: Line) -> None:
    assert outcomes(started(), started(**other), finished(**other), finished()) == [("prolog", "ok")] * 2


@pytest.mark.parametrize(("after", "outcome"), [(599.0, UNFINISHED), (602.0, KILLED)])
def test_a_hook_without_a_last_line_was_killed_after_ten_minutes(after: float, outcome: str) -> None:
    assert outcomes(started(ts=timestamp(NOW - after)), now=NOW) == [("prolog", outcome)]


def test_a_line_in_the_making_is_not_finished() -> None:
    """What the job's user finds in its view."""
    line = {name: value for name, value in finished().items() if name != "outcome"}
    assert outcomes(started(), line) == [("prolog", UNFINISHED)]


def test_programs_without_a_job_run_at_once() -> None:
    import_: Line = {"hook": "import", "node": "n1"}
    first, second = ({**import_, "run_id": run} for run in ("0e", "0f"))
    assert outcomes(started(first), started(second), finished(second), finished(first)) == [("import", "ok")] * 2


def test_what_is_done_for_another_job_is_its_own() -> None:
    theirs = {**EPILOG, "event": "harvest.finished", "job_id": 6, "done_by": {"hook": "epilog", "job_id": 7}}
    other, own = hooks([started(EPILOG), {**theirs, "caches": {"numba": {"entries": 3}}}, epilog()], NOW)
    assert (other.job, other.done_by, own.job, own.done_by) == (6, "epilog of job 7", 7, "")


def test_reading_can_go_on_between_first_and_last_line() -> None:
    first = Hooks()
    assert not [*first.add(started())]
    (hook,) = Hooks(first.begun).add(finished())
    assert hook.began == "2026-01-31T09:30:00.000Z"


def test_what_was_cut_is_nothing_of_its_own() -> None:
    """A list or an object that was cut says how many items it lacks in the form of one."""
    long = shaped(finished(images=[IMAGE] * 60, caches={f"p{n}": {"warm": True, "x": "y" * 90} for n in range(70)}))
    assert (CUT in str(long["images"]), CUT in str(long["caches"])) == (True, True)
    hook = hook_of(long, "ok")
    assert {image["how"] for image in hook.images} == {"waited"}
    assert len(hook.harvests) == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "ts", "node", "job_id", "steps", "images", "caches", "failures", "remarks", "told", "facts", "asked",
    "granted", "done_by", "look", "died_ms", "traceback", "outcome", "duration_ms", "error", "degree", "step", "code",
    "reason", "hint", "warm", "cold", "nodes", "use", "entries", "ignored", "own", "about", "text", "how", "image",
]  # fmt: skip
NESTED = st.dictionaries(st.sampled_from(["numba", "seed", "x"]), st.dictionaries(st.sampled_from(KEYS), VALUES))


@given(st.dictionaries(st.sampled_from(KEYS), VALUES | NESTED | st.lists(NESTED, max_size=2)))
def test_a_line_of_any_form_is_read(fields: Line) -> None:
    """Logs outlive releases, and others write into them, too."""
    for line in ({**PROLOG, **fields, "event": "hook.finished"}, {**fields, "event": "image.import-failed"}):
        summarize([line], NOW)
        for hook in hooks([line], NOW):
            assert [*about([hook])]
            parts(hook)
            advice([hook])
