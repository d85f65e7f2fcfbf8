"""A load run (tools/load), shorter than `python -m tools.load`; and that its checks see what they are to see."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.wing_load import WRONG
from tools.load import history, judge
from tools.load.front import KINDS as KINDS_OF_NONSENSE
from tools.load.front import Front
from tools.load.jobs import DONE, KINDS, NO_IMAGE, OF_WINGS, WITHOUT, Job, mix
from tools.load.run import Load, Submitted, prepared, record, wrong_end
from tools.load.story import Call, Ended, Off, gaps, printed
from warmstart.audit.line import Line

ONE = Ended(7, "COMPLETED", ("n1",))


@pytest.mark.sweep
def test_nothing_is_left_drained_or_untold(capable_host: None) -> None:
    """300 jobs of all kinds, with faults; the figures go to build/reliability."""
    with prepared() as (site, registry, front):
        outcome = Load(site, registry, front, 300, 2).run(print)
    record(outcome)
    assert outcome.findings == []
    assert outcome.jobs >= 300
    assert len(outcome.faults) > 6


def test_the_mix_is_the_same_for_a_seed_and_has_every_kind() -> None:
    """And it is of the size that was asked for."""
    images = ("r/a:1", "r/b:1")
    jobs = list(mix(500, 1, images))
    assert jobs == list(mix(500, 1, images)) != list(mix(500, 2, images))
    assert {job.kind for job in jobs} == set(KINDS)
    assert 500 <= sum(KINDS[job.kind].tasks for job in jobs) < 503


def calls(*hooks: str, status: int | None = 0) -> list[Call]:
    """Return what the witness saw of job 7 on n1."""
    return [Call(hook, 7, "n1", float(at), status, 0.1) for at, hook in enumerate(hooks, 1)]


def told(*hooks: str, last: str = "hook.finished") -> list[Line]:
    """Return the audit's lines of job 7 on n1."""
    found: list[Line] = []
    for number, hook in enumerate(hooks):
        run: Line = {"hook": hook, "run_id": f"{number}", "node": "n1", "job_id": 7, "user": "a"}
        found += [{**run, "event": "hook.started", "ts": f"{number}a"}]
        found += [{**run, "event": last, "outcome": "ok", "ts": f"{number}b"}] if last else []
    return found


def for_another_job() -> list[Line]:
    """Return the line of an epilog of job 8 that delivers a bundle of job 7."""
    run: Line = {"hook": "epilog", "run_id": "9", "node": "n1", "job_id": 7, "user": "a"}
    return [{**run, "event": "bundle.published", "ts": "9a", "done_by": {"hook": "epilog", "job_id": 8}}]


BOTH = ("prolog", "epilog")


@pytest.mark.parametrize(
    ("seen", "lines", "found"),
    [
        (calls(*BOTH), told(*BOTH), []),
        (calls(*BOTH, *BOTH), told(*BOTH, *BOTH), []),
        (calls(*BOTH, status=1), told(*BOTH), ["prolog of job 7 on n1: exit status 1"]),
        (calls(*BOTH, status=None), told(*BOTH), ["prolog of job 7 on n1 did not end"]),
        (calls(*BOTH), told("prolog"), ["epilog of job 7 on n1: 1 started, 0 in the audit"]),
        (calls(*BOTH), told(*BOTH, "epilog"), ["epilog of job 7 on n1: 1 started, 2 in the audit"]),
        (calls(*BOTH), [*told(*BOTH), *for_another_job()], []),
        (calls(*BOTH), told(*BOTH, last=""), ["prolog of job 7 on n1: unfinished in the audit"]),
        (calls(*BOTH), told(*BOTH, last="hook.crashed"), ["prolog of job 7 on n1: crashed in the audit"]),
        (calls("prolog"), told("prolog"), ["job 7 COMPLETED on n1 without an epilog"]),
        (calls("epilog"), told("epilog"), ["job 7 COMPLETED on n1 without a prolog"]),
        (calls(*BOTH, "epilog"), told(*BOTH, "epilog"), ["job 7 COMPLETED on n1 without a prolog"]),
    ],
)
def test_what_the_audit_lacks_is_found(seen: Sequence[Call], lines: Sequence[Line], found: list[str]) -> None:
    """Each gap alone; the same twice where both hooks have it."""
    assert gaps(seen, lines, [ONE])[: max(len(found), 1)] == found


def test_a_hook_may_be_missing_while_warmstart_is_off() -> None:
    """Only one that ran then."""
    assert gaps(calls(*BOTH), [], [ONE], [Off(0.5, 2.05)]) == gaps(calls(*BOTH), [], [ONE], [Off(0.5, 9, "n1")]) == []
    lacks = ["prolog of job 7 on n1: 1 started, 0 in the audit", "epilog of job 7 on n1: 1 started, 0 in the audit"]
    assert gaps(calls(*BOTH), [], [ONE], [Off(0.5, 1.9)]) == lacks[1:]
    assert sorted(gaps(calls(*BOTH), [], [ONE], [Off(0.5, 9, "n2")])) == sorted(lacks)


def test_what_had_no_room_in_the_audit_is_read_where_it_went(tmp_path: Path) -> None:
    """Each event is a line of stderr; what else is there is none."""
    lines = [{**line, "ts": float(at)} for at, line in enumerate(told("epilog"))]
    text = "".join(f"warmstart: {json.dumps(line)}\n" for line in lines)
    (tmp_path / "hooks.stderr").write_text(f"warmstart: no space\n{text}17\n")
    assert gaps(calls(*BOTH), [*told("prolog"), *printed(tmp_path / "hooks")], [ONE]) == []


def submitted(kind: str, *faults: str, refused: str = "", image: str = "") -> Submitted:
    """Return a job with faults in its wave."""
    return Submitted(Job(kind, "a", "", (), refused, image), set(faults))


def stored(*faults: str) -> Submitted:
    """Return a job whose image was in the store."""
    return submitted("has an image", *faults, image="r/a")._replace(had_image=True)


def remembering(*faults: str) -> Submitted:
    """Return a job with an image that had a fault of its own, and others shortly before."""
    return submitted("has an image", "a store gone", image="r/a")._replace(remembered=frozenset(faults))


@pytest.mark.parametrize(
    ("of", "state", "output", "fine"),
    [
        (submitted("array"), "COMPLETED", f"{DONE}\n", True),
        (submitted("fails"), "FAILED", f"{DONE}\n", True),
        (submitted("fails"), "COMPLETED", f"{DONE}\n", False),
        (submitted("array"), "COMPLETED", "", False),
        (submitted("array"), "COMPLETED", f"{WRONG}: half\n{DONE}\n", False),
        (stored("a store gone"), "COMPLETED", f"{NO_IMAGE}\n{DONE}\n", True),
        (stored("a full store"), "COMPLETED", f"{NO_IMAGE}\n{DONE}\n", False),
        (stored("a store not connected"), "COMPLETED", f"{NO_IMAGE}\n{DONE}\n", True),
        (stored("a store not connected"), "FAILED", "warmstart: image r/a: not connected", False),
        (stored("a store gone"), "COMPLETED", f"{WRONG}: the image says 3\n{DONE}\n", False),
        (submitted("array"), "CANCELLED", "", False),
        (submitted("array", "a job cancelled"), "CANCELLED", "", True),
        (submitted("array"), "COMPLETED", f"{WITHOUT}\n", False),
        (submitted("array", "switched off"), "COMPLETED", f"{WITHOUT}\n", True),
        (submitted("array", "off on one node"), "COMPLETED", f"{WITHOUT}\n", True),
        (submitted("array", "torn files"), "FAILED", "", False),
        (submitted("of two nodes", "off on one node"), "COMPLETED", f"{WRONG}: n2 cannot write\n{DONE}\n", False),
        (submitted("array", "a full state disk"), "COMPLETED", f"{WITHOUT}\n", False),
        (submitted("array", "a full state disk"), "COMPLETED", f"warmstart: no space\n{WITHOUT}\n", True),
        (submitted("has an image", image="r/a"), "FAILED", "image r/a is still missing", False),
        (submitted("has an image", "a silent registry", image="r/a"), "FAILED", "image r/a is still missing", True),
        (submitted("has an image", "a silent registry", image="r/a"), "FAILED", "the image is still missing", False),
        (submitted("has an image", "a full state disk", image="r/a"), "COMPLETED", f"{WITHOUT}\n", False),
        (stored("a full state disk"), "FAILED", "no space for warmstart's state /var", True),
        (stored("a full store"), "FAILED", "no space for warmstart's state /var", False),
        (stored("a silent registry"), "FAILED", "image r/a is still missing", False),
        (stored("a store gone"), "FAILED", "image r/a is still missing", True),
        (stored("a store gone"), "FAILED", "warmstart: image r/a: No space left on device", False),
        (stored("a full store", "a store gone"), "FAILED", "warmstart: image r/a: No space left on device", True),
        (remembering("a full store"), "FAILED", "warmstart: image r/a: No space left on device", True),
        (remembering("a silent registry"), "FAILED", "warmstart: image r/a: No space left on device", False),
        (stored("a store gone"), "FAILED", "image r/a: warmstart.images.store.layout:find: its process died", False),
        (submitted("asks for too much", refused="nope"), "FAILED", "no profile nope", True),
        (submitted("asks for too much", refused="nope"), "FAILED", f"{DONE}\n", False),
        (submitted("array", "a job requeued"), "NODE_FAIL", "", False),
    ],
)
def test_an_end_that_was_not_to_be_is_found(of: Submitted, state: str, output: str, fine: bool) -> None:
    """What a fault of the job's wave explains is fine."""
    assert (wrong_end(of, state, output) == "") is fine


def test_a_fault_excuses_what_a_wing_says() -> None:
    """As the wing's own jobs say it, and no other fault does."""
    for line, faults in ((line, faults) for wing in OF_WINGS for line, faults in wing.excused.items()):
        for fault in ("", *faults):
            assert bool(wrong_end(submitted("array", fault), "COMPLETED", f"{line}\n{DONE}\n")) is not bool(fault)


ALICE, BOB = ("a", 1), ("b", 2)


def witness(who: tuple[str, int], began: float = 0.0, output: str = "") -> judge.Witness:
    """Return a job of a user that began at a time and said something."""
    return judge.Witness(*who, began, judge.Said.of(output))


def event(name: str, at: float, job: int, who: tuple[str, int] = ALICE, **fields: object) -> judge.Event:
    """Return a line of the audit."""
    user, uid = who
    return judge.Event(name, at, job, {"bundle": "b", "user": user, "uid": uid, **fields})


def test_an_event_that_names_a_wrong_producer_is_found(tmp_path: Path) -> None:
    """By Slurm's word of the job's user, and by what the bundle's entries say."""
    jobs = {7: witness(ALICE), 8: witness(ALICE)}
    assert judge.wrong_producers([event("bundle.published", 1, 7)], jobs, tmp_path) == []
    for wrong in (event("bundle.published", 1, 7, BOB), event("bundle.published", 1, 9)):
        assert len(judge.wrong_producers([wrong], jobs, tmp_path)) == 1
    entries, bundle = tmp_path / "entries", tmp_path / "artifacts/p/n/s/b.sqsh"
    entries.mkdir()
    (entries / "e1.bin").write_text("e1\ne1 a 7\nend e1\n")
    bundle.parent.mkdir(parents=True)
    subprocess.run(["/usr/bin/mksquashfs", entries, bundle, "-quiet", "-no-progress"], check=True)
    assert judge.wrong_producers([event("bundle.published", 1, 7)], jobs, tmp_path) == []
    assert len(judge.wrong_producers([event("bundle.published", 1, 8)], jobs, tmp_path)) == 1


def hook(name: str, job: int, at: float, *more: judge.Event) -> list[judge.Event]:
    """Return the events of a hook."""
    run = {"run_id": f"{name} {job}", "node": "n1", "hook": name}
    events = [event("hook.started", at, job, partition="main"), *more, event("hook.finished", at + 1, job)]
    return [one._replace(fields={**one.fields, **run}) for one in events]


def epilog(job: int, namespace: str, superseding: int) -> list[judge.Event]:
    """Return the events of an epilog that publishes one entry."""
    published = event("bundle.published", job, job, profile="alpha", scope="user-1-a", namespace=namespace)
    published = published._replace(fields={**published.fields, "superseding": superseding})
    harvested = event("cache.harvested", job, job, profile="alpha", entries=1)
    return hook("epilog", job, job - 0.5, published, harvested)


def prolog(job: int, namespace: str) -> list[judge.Event]:
    """Return the events of a prolog that seeds the cache."""
    seeded = event("cache.seeded", job, job, profile="alpha", namespace=namespace, scopes=["user-1-a"])
    return hook("prolog", job, job - 0.5, event("job.planned", job - 0.4, job, head=True), seeded)


def told_wrong(log: list[judge.Event], jobs: dict[int, judge.Witness]) -> list[str]:
    """Return all that is wrong in a history."""
    return [line for one in history.judged(log, jobs) for line in one.wrong]


@pytest.mark.parametrize("namespace", ["same", "of an image"])
def test_an_entry_hides_those_of_its_namespace(namespace: str) -> None:
    """What jobs in an image made is nobody else's."""
    log = [*epilog(7, namespace, 0), *epilog(8, "same", 1), *prolog(9, namespace)]
    jobs = {
        7: witness(ALICE, 6, f"made e1 a 7\n{DONE}\n"),
        8: witness(ALICE, 7.1, f"removed e1 a 3\nmade e1 a 8\n{DONE}\n"),
        9: witness(ALICE, 8.5, "saw e1 a 7"),
    }
    hidden = ["job 9 saw e1 a 7, of which job 8 had taken the place"]
    assert told_wrong(log, jobs) == (hidden if namespace == "same" else [])


@pytest.mark.parametrize(
    ("saw", "wrong"),
    [
        ("saw e1 a 7\n", []),
        ("", ["job 9 did not see e1, which job 7 had published"]),
        ("saw e1 a 7\nsaw e2 a 7\n", ["job 9 saw e2 a 7, which nobody had published"]),
    ],
)
def test_what_a_job_misses_or_invents_is_found(saw: str, wrong: list[str]) -> None:
    """It has a right to what was published before it began, and to nothing else."""
    jobs = {7: witness(ALICE, 6, f"made e1 a 7\n{DONE}\n"), 9: witness(ALICE, 8.5, f"{saw}{DONE}\n")}
    assert told_wrong([*epilog(7, "same", 0), *prolog(9, "same")], jobs) == wrong


def test_an_entry_of_a_stranger_is_found() -> None:
    """Those of one user are shared."""
    assert judge.strangers({3: witness(BOB, 1, "saw e1 a 1\nsaw e2 b 2")}, "a") == []
    assert judge.strangers({3: witness(ALICE, 1, "saw e1 b 1")}, "a") == ["job 3 of a saw e1 b 1"]


@pytest.mark.parametrize("kind", ["", *KINDS_OF_NONSENSE])
def test_the_proxy_passes_everything_on_until_it_is_told_otherwise(kind: str, tmp_path: Path) -> None:
    """Against a server of one file."""
    (tmp_path / "file").write_text("a sha256:0123")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Front(f"127.0.0.1:{server.server_address[1]}") as front, front.nonsense(kind):
            connection = http.client.HTTPConnection(front.url, timeout=10)
            connection.request("GET", "/file")
            answer = connection.getresponse()
            try:
                said: tuple[int, bytes] = (answer.status, answer.read())
            except http.client.IncompleteRead as error:
                said = (answer.status, error.partial)
            connection.close()
        server.shutdown()
    assert (said == (200, b"a sha256:0123")) is (kind == "")
