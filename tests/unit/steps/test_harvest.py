"""The harvest of one run into a real store, as whoever runs the tests: what is taken, told and left."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.lib.cache_files import numba_files
from tests.lib.numba_entries import numba_entry
from tests.lib.runs import a_context, changed, result
from tests.lib.worker_calls import answer_here
from warmstart.audit.log import Log
from warmstart.caches.store import bundles, ending, generations
from warmstart.caches.store.layout import Namespace
from warmstart.caches.store.listing import Row
from warmstart.harvest import collect, live, pack, publish, stage
from warmstart.harvest.collect import Collected
from warmstart.harvest.scan import OUT_OF_TIME, Found
from warmstart.host import space
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.host.identity import WorkerSilent
from warmstart.host.process import ProgramTooSlow
from warmstart.host.remove import remove_tree
from warmstart.profiles import client
from warmstart.queue import Queue
from warmstart.run.state import Caches, Seeded, SeededBundle
from warmstart.seed.overlay_end import OpenedOverlay
from warmstart.steps import harvest
from warmstart.steps.contract import CacheFailed, Context
from warmstart.steps.harvest import Harvested, Options
from warmstart.store.layout import StoreFailed

SCOPE = "user-64201-ws-alice"
PLENTY = Options(30)
RTX = {"runtime_cache.bin": b"kernel"}
ENTRY = next(iter(numba_files())).removesuffix(".nbi")
SECOND = numba_entry(1)[0]


class Job:
    """A run whose job has ended, on a node beside a store."""

    def __init__(self, root: Path) -> None:
        (root / "store").mkdir()
        self.store = str(root / "store")
        context = a_context(root)
        record = changed(context.run, publish_scope=SCOPE, seeded={"numba": Seeded("ns", [])}, facts={"cpu": "x"})
        self.context: Context = context._replace(run=record)
        os.makedirs(f"{record.directory}/cache")

    def change(self, **fields: Any) -> None:  # noqa: ANN401 - of Run
        self.context = self.context._replace(run=changed(self.context.run, **fields))

    def seeded(self, **profiles: Seeded) -> None:
        """Say what the job was seeded with; `_` stands for a dash."""
        self.change(seeded={name.replace("_", "-"): found for name, found in profiles.items()})

    def write(self, subdir: str, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            path = Path(self.context.run.directory, "cache", subdir, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def harvest(self, options: Options = PLENTY) -> Harvested:
        outcome = harvest.run(self.context, options)
        assert os.listdir(self.context.paths.stage) == []
        return outcome

    def where(self, profile: str = "numba", namespace: str = "ns") -> Namespace:
        return Namespace(self.store, SCOPE, profile, namespace)

    def offered(self, profile: str = "numba", namespace: str = "ns") -> list[str]:
        return [entry for names in generations.read(self.where(profile, namespace)).names for entry in names]

    def row(self, profile: str = "numba") -> Row:
        (row,) = generations.read(self.where(profile)).rows
        return row

    def entries(self, options: Options = PLENTY) -> int:
        """Harvest; return how many entries that has published, by its log."""
        self.harvest(options)
        return sum(cache.get("entries", 0) for cache in self.logged().values())

    def logged(self) -> dict[str, dict[str, Any]]:
        """Return what the log says of the caches since this was asked last."""
        caches: dict[str, dict[str, Any]] = result(self.context).get("caches", {})
        log = Log(self.context.policy.paths.audit, {"hook": "epilog", "run_id": "0a1b2c3d"})
        self.context = self.context._replace(audit=log)
        return caches


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_new_entries_reach_the_store(job: Job) -> None:
    job.write("numba", numba_files() | {"tmp.lock": b"", "readme": b""})
    outcome = job.harvest()
    assert (outcome.run, outcome.is_done, outcome.degraded) == (job.context.run, True, [])
    assert job.offered() == [ENTRY]
    told = job.logged()["numba"]
    assert (told["entries"], told["scope"], "truncated" in told) == (1, SCOPE, False)
    assert (told["ignored"], told["ignored_examples"]) == (
        {"lock or temporary file": 1, "no file of an entry": 1},
        [["readme", "no file of an entry"]],
    )
    row = job.row()
    assert (row.sha256, row.job, row.user) == (told["bundle"], 7, "ws-alice")
    assert bundles.facts(job.where()) == {"cpu": "x"}


def test_what_the_validator_refuses_goes_nowhere(job: Job) -> None:
    base = ENTRY.replace("mod.outer", "mod.other")
    job.write("numba", numba_files() | {f"{base}.nbi": b"\x80\x05"})
    job.harvest()
    assert job.offered() == [ENTRY]
    assert [(told["entries"], told["rejected"]) for told in job.logged().values()] == [(1, {"incomplete": 1})]


@pytest.mark.parametrize("failure", [StoreFailed(what="x", problem="y"), WorkerSilent(what="f", problem="p")])
@pytest.mark.parametrize("call", [bundles.publish, bundles.known])
def test_what_the_store_does_not_take_is_left(
    job: Job, monkeypatch: pytest.MonkeyPatch, failure: StoreFailed | WorkerSilent, call: Callable[..., object]
) -> None:
    job.write("numba", numba_files())

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise failure

    with monkeypatch.context() as patch:
        answer_here(patch, call, refuse)
        outcome = job.harvest()
    assert ([type(error) for error in outcome.degraded], outcome.lost) == ([type(failure)], False)
    assert (outcome.run.left, outcome.is_done, job.offered()) == (["numba"], False, [])
    job.context = job.context._replace(run=outcome.run)
    outcome = harvest.harvest(job.context)
    assert (outcome.run.left, outcome.is_done, job.offered()) == ([], True, [ENTRY])


def test_a_store_that_does_not_answer_is_asked_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epilog waits for it as long as for one profile."""
    job.seeded(numba=Seeded("ns", []), trt_rtx=Seeded("ns", []))
    job.write("numba", numba_files())
    job.write("trt-rtx", RTX)
    asked = []

    def silent(*_args: object, **_kwargs: object) -> NoReturn:
        asked.append(1)
        raise WorkerSilent(what="f", problem="p")

    answer_here(monkeypatch, bundles.known, silent)
    outcome = job.harvest()
    assert (outcome.run.left, outcome.is_done, len(asked)) == (["numba", "trt-rtx"], False, 1)


def with_another_set(job: Job) -> Caches:
    """Have the job run in one more image, and compile there what it compiles outside."""
    other = Caches("c0ffee00", "sha256:ab", publish_scope=SCOPE, seeded={"numba": Seeded("other", [])})
    job.change(others=[other])
    job.write("numba", numba_files())
    job.write(f"../caches/{other.key}/cache/numba", numba_files())
    return other


def test_each_set_is_published_in_its_own_namespace(job: Job) -> None:
    other = with_another_set(job)
    outcome = job.harvest()
    assert outcome.run == job.context.run
    told = {name: (cache["namespace"], cache["entries"]) for name, cache in job.logged().items()}
    assert told == {"numba": ("ns", 1), f"numba@{other.key}": ("other", 1)}
    assert job.offered(namespace="other") == job.offered() == [ENTRY]


@pytest.mark.parametrize("late", [True, False])
def test_a_validator_at_its_deadline_leaves_and_else_fails(
    job: Job, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    job.write("numba", numba_files())

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        if late:
            monkeypatch.setattr(Deadline, "expired", lambda one: one.left() > stage.CLEANING_SECONDS)
        raise WorkerSilent(what="judge", problem="p")

    monkeypatch.setattr(client, "judged", refuse)
    outcome = job.harvest()
    assert (outcome.run.left, outcome.lost) == (["numba"] if late else [], not late)
    assert [type(error) for error in outcome.degraded] == [] if late else [CacheFailed]


def test_a_bundle_that_is_not_packed_in_time_is_left(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("numba", numba_files())

    def refuse(*_: object) -> NoReturn:
        raise ProgramTooSlow(program="mksquashfs")

    monkeypatch.setattr(pack, "pack", refuse)
    outcome = job.harvest()
    assert (outcome.run.left, outcome.degraded, outcome.lost) == (["numba"], [], False)


def test_what_was_not_looked_at_is_late(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("numba", numba_files())
    real = collect.collect

    def slow(*args: Any) -> Collected:  # noqa: ANN401
        return real(*args)._replace(truncated=OUT_OF_TIME)

    monkeypatch.setattr(harvest, "collect", slow)
    outcome, left = job.harvest(), changed(job.context.run, left=["numba"])
    assert (outcome.run, outcome.is_done, job.logged()["numba"]["entries"]) == (left, False, 1)
    outcome = job.harvest()  # what is published is known
    assert (outcome.run, outcome.is_done, job.logged()["numba"]["entries"]) == (left, False, 0)


@pytest.mark.parametrize("why", ["no room", "no place for a stage", "a killed epilog left much"])
def test_a_node_whose_disk_takes_no_stage_leaves_it(job: Job, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    job.write("numba", numba_files())

    def fails(number: int) -> Callable[..., NoReturn]:
        def fail(*_: object) -> NoReturn:
            raise OSError(number, os.strerror(number))

        return fail

    if why == "no room":
        monkeypatch.setattr(space, "room", lambda _fd: 0)
    elif why == "no place for a stage":
        monkeypatch.setattr(stage, "ensure_dir", fails(errno.ENOSPC))
    else:
        monkeypatch.setattr(stage, "remove_tree", fails(errno.ETIME))
    outcome = harvest.run(job.context, PLENTY)
    assert outcome.run == changed(job.context.run, left=["numba"])
    assert (outcome.degraded, outcome.lost, job.offered()) == ([], False, [])


@pytest.mark.report
def test_a_cache_that_can_not_be_read_is_lost(job: Job) -> None:
    shutil.rmtree(job.context.run.directory)
    outcome = job.harvest()
    assert [type(error) for error in outcome.degraded] == [CacheFailed]
    (error,) = outcome.degraded
    assert str(error).startswith(f"profile numba: {job.context.run.directory}: No such file")
    assert "space" not in error.hint
    assert outcome.lost


def test_a_stage_that_is_not_removed_changes_no_result(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published is published, and the hint says nothing else."""
    job.write("numba", numba_files())
    path = Path(job.context.paths.stage, f"{job.context.run.name}.numba")

    def remove(parent: int, name: str, deadline: Deadline) -> None:
        if path.exists():
            raise OSError(errno.ETIME, "not all removed before the deadline", name)
        remove_tree(parent, name, deadline)

    monkeypatch.setattr(stage, "remove_tree", remove)
    outcome = harvest.run(job.context, PLENTY)
    (error,) = outcome.degraded
    assert isinstance(error, DiskFailed)
    assert (str(path) in str(error), "lost" in error.hint) == (True, False)
    assert (outcome.run, job.offered()) == (job.context.run, [ENTRY])


def test_only_what_a_success_left_where_that_matters(job: Job) -> None:
    job.seeded(trt_rtx=Seeded("ns", []), numba=Seeded("ns", []))
    job.write("numba", numba_files())
    job.write("trt-rtx", RTX)
    failed = PLENTY._replace(failure=lambda _deadline: "the job failed", after_success=frozenset({"trt-rtx"}))
    job.harvest(failed)
    assert (job.offered("trt-rtx"), job.offered()) == ([], [ENTRY])
    told = job.logged()
    assert (told["trt-rtx"], told["numba"]["entries"]) == ({"left_out": "the job failed"}, 1)
    assert job.entries(failed._replace(failure=lambda _deadline: "")) == 1


def two_given(job: Job) -> SeededBundle:
    """Let a job publish two entries; return what it is seeded with then."""
    job.write("numba", numba_files() | numba_entry(1)[1])
    job.harvest()
    first = job.row()
    return SeededBundle(SCOPE, first.sha256, [ENTRY, SECOND])


def remove(job: Job, entry: str) -> None:
    top = Path(job.context.run.directory, "cache/numba")
    for path in top.glob(f"{entry}.*"):
        path.unlink()


@pytest.mark.report
@pytest.mark.parametrize("cut_short", [False, True])
def test_who_removes_most_of_it_cleans_up(job: Job, monkeypatch: pytest.MonkeyPatch, cut_short: bool) -> None:
    job.seeded(numba=Seeded("ns", [two_given(job)]))
    remove(job, ENTRY)
    if cut_short:
        job.write("numba", {f"a/{number}.lock": b"" for number in range(20)})
        job.change(left=["numba"])
        monkeypatch.setattr(harvest, "MOST_ENTRIES", 1)
        harvest.harvest(job.context)
    else:
        remove(job, SECOND)
        job.harvest()
    why = harvest.CUT_SHORT if cut_short else harvest.CLEANED_UP
    told = job.logged()["numba"]
    assert (told["rejected"][why], told["retired"]) == (1 if cut_short else 2, 0)
    assert sorted(job.offered()) == sorted([ENTRY, SECOND])


def test_the_end_brings_what_has_changed_since_the_job_was_harvested(job: Job) -> None:
    job.seeded(trt_rtx=Seeded("ns", []))
    job.write("trt-rtx", RTX)
    policy, paths, run = job.context.policy, job.context.paths, job.context.run
    live.watch(policy, paths, run)
    assert live.end(paths, run) == run  # it was not harvested yet
    live.watch(policy, paths, run)
    assert Queue(paths, live.LIVE).begin(Queue(paths, live.LIVE).all()[0])
    job.harvest()
    first = job.row("trt-rtx")
    job.write("trt-rtx", {"runtime_cache.bin": b"another"})
    job.context = job.context._replace(run=live.end(paths, run))
    assert job.entries() == 1
    assert job.row("trt-rtx").sha256 != first.sha256
    assert Queue(paths, live.LIVE).all() == []


def test_nobody_knows_the_names_any_more(job: Job) -> None:
    job.seeded(numba=Seeded("ns", [SeededBundle(SCOPE, "ab" * 32, [], 1)]))
    job.write("numba", numba_files())
    outcome = job.harvest()
    assert [error.code for error in outcome.degraded] == ["cache-failed"]
    assert "names what it was seeded with, is gone" in str(outcome.degraded[0])
    assert job.offered() == []


@pytest.mark.parametrize("missing", ["its overlay is not mounted any more", "it is being removed"])
def test_what_is_missing_was_not_always_removed_by_the_job(job: Job, missing: str) -> None:
    job.write("numba", numba_files())
    job.harvest()
    first = job.row()
    job.seeded(numba=Seeded("ns", [SeededBundle(SCOPE, first.sha256, [ENTRY])]))
    run = job.context.run.directory
    shutil.rmtree(f"{run}/cache/numba")
    os.mkdir(f"{run}/cache/numba")
    if missing == "it is being removed":
        os.rename(f"{run}/cache", f"{run}/.cache")
    else:
        os.makedirs(f"{run}/.seed/numba")
    job.harvest()
    assert job.offered() == [ENTRY]


def on(job: Job, node: str, **changes: Any) -> None:  # noqa: ANN401 - fields of Run
    """Let the job have run on two nodes; this is one of them."""
    job.change(node=node, nodelist="n[1-2]", **changes)
    os.makedirs(f"{job.context.run.directory}/cache", exist_ok=True)
    os.makedirs(job.context.paths.stage, mode=0o700, exist_ok=True)


@pytest.fixture
def handed(job: Job) -> Callable[[str], list[str]]:
    """Return what asks which entries a node has handed in."""
    run = ending.Run(job.store, ending.name_of(job.context.run.uid, "test", 7, 0))
    return lambda node: ending.handed(run, job.where(), [node])


@pytest.fixture
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "HEAD_SECONDS", 0.0)


def test_nodes_publish_when_all_have_ended(job: Job, handed: Callable[[str], list[str]]) -> None:
    on(job, "n1")
    job.write("numba", numba_files())
    assert job.harvest().degraded == []
    assert (job.offered(), handed("n1")) == ([], [ENTRY])
    told = job.logged()["numba"]
    assert ("bundle" in told, told["entries"], told["handed_in"]) == (False, 0, 1)
    on(job, "n2")
    job.write("numba", numba_entry(1)[1])
    job.harvest()
    assert sorted(job.offered()) == sorted([ENTRY, SECOND])
    assert os.listdir(f"{job.store}/ending") == []


@pytest.mark.usefixtures("_no_patience")
def test_what_the_first_node_has_handed_in_is_left_out(job: Job, handed: Callable[[str], list[str]]) -> None:
    for node, own in (("n1", [ENTRY]), ("n3", [])):
        on(job, node)
        job.write("numba", numba_files())
        job.harvest()
        assert handed(node) == own


def test_a_node_that_harvests_again_hands_in_nothing_twice(job: Job) -> None:
    on(job, "n1")
    job.write("numba", numba_files())
    job.harvest()
    job.logged()
    job.harvest()
    assert "handed_in" not in job.logged()["numba"]


@pytest.mark.usefixtures("_no_patience")
@pytest.mark.parametrize(("node", "stays"), [("n1", False), ("n2", True)])
def test_only_the_first_node_says_what_is_stale(job: Job, node: str, stays: bool) -> None:
    job.seeded(numba=Seeded("ns", [two_given(job)]))
    remove(job, ENTRY)
    on(job, node)
    job.write("numba", {"other": b"x"})
    job.harvest()
    on(job, "n2" if node == "n1" else "n1")
    job.write("numba", numba_files())
    job.harvest()
    assert (ENTRY in job.offered(), SECOND in job.offered()) == (stays, True)


@pytest.mark.parametrize(
    ("left", "own", "use"),
    [
        ([".own-NUMBA_CACHE_DIR"], ["NUMBA_CACHE_DIR"], "around"),
        ([".own-TRITON_CACHE_DIR", ".own-", ".own-x\ny", "NUMBA_CACHE_DIR"], [], "untouched"),
        ([], [], "untouched"),
    ],
)
def test_what_a_job_says_that_it_set_itself(job: Job, left: list[str], own: list[str], use: str) -> None:
    for name in left:
        Path(job.context.run.directory, "cache", name).touch()
    job.harvest()
    told = job.logged()["numba"]
    assert (told.get("own", []), told["use"]) == (own, use)


@pytest.mark.parametrize(
    ("profile", "empty", "hides", "use"),
    [
        ("numba", False, False, "hit"),
        ("numba", False, True, "unknown"),
        ("numba", True, False, "untouched"),
        ("warp", True, False, "unknown"),
    ],
)
def test_what_an_overlay_tells_of_its_use(  # noqa: PLR0917 - a row
    job: Job, monkeypatch: pytest.MonkeyPatch, profile: str, empty: bool, hides: bool, use: str
) -> None:
    found = Found(upper=True)
    found.is_empty, found.has_whiteouts = empty, hides

    @contextmanager
    def frozen(*_: object) -> Iterator[OpenedOverlay]:
        yield OpenedOverlay(-1, -1)

    monkeypatch.setattr(harvest, "opened_overlay", frozen)
    monkeypatch.setattr(harvest, "collect", lambda *_: Collected(found, {}, []))
    given = SeededBundle("site", "ab" * 32, [ENTRY])
    job.seeded(**{profile: Seeded("ns", [given])})
    job.harvest()
    assert [cache["use"] for cache in job.logged().values()] == [use]
