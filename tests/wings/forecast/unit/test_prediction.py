"""What observed jobs would have got, from their lines alone."""

from __future__ import annotations

import random

import pytest

from warmstart.audit.line import Line, timestamp
from warmstart.audit.runs import runs
from warmstart.wings.forecast import prediction
from warmstart.wings.forecast.prediction import Hits, Predicted, Prediction

USER = "user-1-a"


def line(event: str, at: float, job: int = 1, node: str = "n1", **fields: object) -> Line:
    """Return a line as the log has it."""
    return {"ts": timestamp(1e9 + at), "event": event, "cluster": "c", "node": node, "job_id": job, **fields}


def image(at: float, name: str = "a", *, found: bool = False, head: bool = True, **fields: int) -> Line:
    """Return that a job wants an image."""
    return line("image.observed", at, image=name, found=found, head=head, **fields)  # type: ignore[arg-type]


def cache(at: float, job: int, scopes: tuple[str, ...] = (USER,), publishes: str = USER, **fields: object) -> Line:
    """Return that a job wants a profile; among `fields` may be its node."""
    known: dict[str, object] = {"profile": "numba", "namespace": "n", "entries": 0, "fresh": False, **fields}
    return line("cache.observed", at, job, scopes=list(scopes), publishes=publishes, **known)  # type: ignore[arg-type]


def end(at: float, job: int, hook: str = "epilog", node: str = "n1") -> Line:
    """Return that a hook of a job has ended."""
    return line("hook.finished", at, job, node, hook=hook)


def predicted(*lines: Line) -> Predicted:
    """Add lines up."""
    found = Prediction()
    for one in lines:
        for run in runs([one]):
            found.add(run)
    return found.result()


def hits(*lines: Line) -> dict[str, tuple[int, int]]:
    """Return how often each profile begins with entries, and without."""
    return {found.name: (found.warm, found.cold) for found in predicted(*lines).profiles}


def test_the_first_job_imports() -> None:
    """However many follow, on however many nodes; what is in the store is imported by nobody."""
    lines = [image(1), image(2, head=False), image(3), image(4, "b"), image(5, "c", found=True)]
    random.Random(1).shuffle(lines)
    found = predicted(*lines)
    assert (found.imports, found.avoided, found.saved_s, found.saves_unknown) == (2, 3, 0.0, 2)


def test_the_first_job_has_what_a_wing_makes_made() -> None:
    """Those that begin later have it in time, until its name changes; what cannot be looked at counts nowhere."""

    def toy(at: float, version: str, *, found: bool = False, head: bool = True, reason: str = "") -> Line:
        return line("toy.observed", at, namespace=version, found=found, head=head, reason=reason)

    lines = [toy(0, "a"), toy(1, "a"), toy(2, "a", head=False), toy(700, "a"), toy(701, "b")]
    found = predicted(*lines, toy(9, "c", found=True), toy(800, "", reason="toy-unusable"))
    assert found.others == (Hits("toy", 2, 3),)


def test_time_is_what_an_import_was_seen_to_take() -> None:
    """That image's own imports, else all; who would have waited saves nothing."""
    imported = [
        line("image.imported", 0, image=name, duration_ms=ms) for name, ms in (("a", 1e4), ("a", 2e4), ("b", 3e4))
    ]
    lines = [image(100), image(114), image(116), image(200, head=False), image(300), image(1, "z", found=True)]
    assert predicted(*imported, *lines).saved_s == 15 + 15 + 20
    assert predicted(*lines).saves_unknown == 4


def test_a_namespace_is_warm_once_a_job_of_it_has_ended() -> None:
    """Jobs that run at the same time are all cold; the end of another hook is none, nor is that of another node's."""
    lines = [cache(1, 1), cache(2, 2), end(3, 1, "prolog"), end(4, 2, node="n2"), cache(5, 3), end(6, 2), cache(7, 4)]
    assert hits(*lines) == {"numba": (1, 3)}
    assert hits(*lines, end(8, 1), cache(9, 5, fresh=True), cache(3, 6, entries=4))["numba"] == (2, 4)


@pytest.mark.parametrize(
    ("scopes", "publishes", "warm"),
    [
        (("site", USER), "site", True),
        (("account-x", USER), USER, True),
        (("user-2-b",), USER, False),
        ((USER,), "", False),
    ],
)
def test_scopes_decide_who_finds_it(scopes: tuple[str, ...], publishes: str, warm: bool) -> None:
    """A job is warm by what was published in any scope that it reads."""
    assert hits(cache(1, 1, publishes=publishes), end(2, 1), cache(3, 2, scopes)) == {"numba": (warm, 2 - warm)}


def test_nodes_of_a_job_that_differ_are_all_cold() -> None:
    """Where the tool compiles in step: one node has another CPU, so no node would be shown anything."""
    filled = [cache(1, 1), cache(1, 2, namespace="m"), end(2, 1), end(2, 2)]
    alike = [cache(3, 3, node="n1", together=True), cache(3, 3, node="n2", together=True)]
    differ = [cache(3, 4, node="n1", together=True), cache(4, 4, node="n2", namespace="m", entries=5, together=True)]
    apart = [cache(3, 5, node="n1"), cache(4, 5, node="n2", namespace="m")]
    assert hits(*filled, *alike) == {"numba": (2, 2)}
    assert hits(*filled, *differ) == {"numba": (0, 4)}
    assert hits(*filled, *differ, *alike, *apart) == {"numba": (4, 4)}


def test_jobs_on_several_nodes_are_judged_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first; what they publish counts all the same."""
    monkeypatch.setattr(prediction, "MOST_OPEN", 2)
    lines = [cache(1, job, node=node, together=True) for job in (1, 2, 3) for node in ("n1", "n2")]
    assert hits(*lines, end(2, 3), cache(3, 4)) == {"numba": (1, 6)}


def test_namespaces_and_profiles_are_apart() -> None:
    """Entries of one serve no other."""
    others = [cache(3, 2, namespace="m"), cache(4, 3, profile="triton"), cache(5, 4)]
    assert hits(cache(1, 1), end(2, 1), *others) == {"numba": (1, 2), "triton": (0, 1)}


def test_what_would_have_gone_wrong_is_counted() -> None:
    """Refused jobs, and drains."""
    lines = [line("job.observed", 1), line("job.observed", 2, refused={"code": "x"}), line("drain.observed", 3)]
    found = predicted(*lines, line("job.refused", 4), {"event": "cache.observed", "scopes": 3}, {})
    assert (found.jobs, found.refused, found.drains) == (2, 1, 1)


def test_jobs_without_an_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, so that memory is bounded."""
    monkeypatch.setattr(prediction, "MOST_OPEN", 2)
    lines = [*(cache(1, job) for job in (1, 2, 3)), end(2, 1), cache(3, 4)]
    assert hits(*lines) == {"numba": (0, 4)}
    assert hits(*lines, end(4, 4), cache(5, 5)) == {"numba": (1, 4)}


def test_what_a_users_enforced_jobs_do_not_use_is_left_out() -> None:
    """Of that user's; and it is said of how many starts nobody knows."""

    def ended(at: float, job: int, use: str, user: str) -> Line:
        return line("cache.harvested", at, job, hook="epilog", profile="numba", use=use, user=user)

    found = predicted(
        ended(1, 1, "untouched", "a"),
        ended(2, 2, "untouched", "b"),
        ended(3, 3, "built", "b"),
        cache(4, 4, user="a"),
        cache(5, 5, user="b"),
        cache(6, 6, user="c"),
        cache(7, 7, user="c"),
    )
    assert found.profiles == (Hits("numba", 0, 3, unknown=2, unused=1),)
