"""A whole prolog, as whoever runs the tests: what the job finds, what it is refused, and that nothing is half there."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.node import NUMBA, Node
from warmstart import plan, runner, wing
from warmstart.audit import syslog
from warmstart.ending import release
from warmstart.entry import epilog, prolog
from warmstart.host.deadline import Deadline
from warmstart.host.files import FileSystemBroken
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.job import Job
from warmstart.maintenance.node import maintain_node
from warmstart.policy.keys import Match, Policy, Wing
from warmstart.run import state as runs
from warmstart.run.state import Run, StateFull
from warmstart.runner import Prepared
from warmstart.slurm import commands
from warmstart.steps import image, seed
from warmstart.steps.contract import CacheFailed, Context
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed


def run(site: Node) -> Run | None:
    assert prolog.main(site.installation.prefix) == 0
    return runs.load(site.paths.state, 7)


def environment(site: Node) -> str:
    return Path(site.paths.view, "7", "environment").read_text()


@pytest.mark.parametrize(
    ("nodelist", "written"), [("n1", ("", 2, True)), ("n[1-2]", ("n[1-2]", 2, True)), ("n0,n1", ("n0,n1", 2, False))]
)
def test_the_record_tells_whose_nodes_publish_together(
    node: Node, nodelist: str, written: tuple[str, int, bool]
) -> None:
    node.environ(SLURM_JOB_NODELIST=nodelist, SLURM_JOB_RESTART_COUNT="2")
    rules = tuple(rule._replace(images=()) for rule in node.policy.rules)
    node.write(node.policy._replace(rules=rules))
    record = run(node)
    assert record
    assert (record.nodelist, record.restarts, record.head) == written


def test_the_job_reads_what_was_done_for_it(node: Node) -> None:
    node.environ(SLURM_JOB_COMMENT="warmstart: profiles=jax fresh")
    run(node)
    view = Path(node.paths.view, "7", "events")
    begun, so_far = map(json.loads, view.read_text().splitlines())
    assert (begun["event"], so_far["outcome"]) == ("hook.started", "ok")  # what follows would take the view away
    assert so_far["asked"] == {"profiles": ["jax"], "fresh": True}
    assert (so_far["granted"], so_far["head"], "rules" in so_far) == (
        {"images": [], "profiles": ["numba"]},
        True,
        False,
    )
    assert {name: cache["cold"] for name, cache in so_far["caches"].items()} == dict.fromkeys(
        ("numba", "jax"), "asked-fresh"
    )
    assert node.result("prolog")["rules"] == ["everyone"]
    node.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    run(node)
    refused = json.loads(view.read_text().splitlines()[-1])
    (failure,) = refused["failures"]
    assert refused["outcome"] == "refused"
    assert (failure["degree"], failure["code"]) == ("refused", "not-offered")


@pytest.mark.parametrize("full", ["job_lock", "save"])
def test_a_job_of_which_nothing_can_be_written_down_runs_and_syslog_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    """Also one that must have its image."""
    told: list[str] = []

    def no_space(*_: object) -> None:
        raise StateFull(path="/run", problem="No space left on device")

    monkeypatch.setattr(runs, full, no_space)
    monkeypatch.setattr(syslog, "say", told.append)
    node.environ(SLURM_JOB_COMMENT="warmstart: image=reg.example.com/a:1")
    node.write(node.policy._replace(images=node.policy.images._replace(registries=("reg.example.com",))))
    assert run(node) is None
    assert told == ["job 7 runs without warmstart: no space for warmstart's state /run: No space left on device"]
    assert (os.listdir(node.paths.view), node.result("prolog")["outcome"]) == ([], "failed")
    assert [(failure["step"], failure["code"]) for failure in node.failures()] == [("prolog", "state-full")]


def test_after_a_boot_a_job_has_a_directory_of_its_own_and_the_one_before_goes(node: Node) -> None:
    """Nothing in /run names the run before the boot; slurmctld may have lost its state, and the id comes again."""
    before = run(node)
    shutil.rmtree(node.installation.runtime)
    after = run(node)
    assert before is not None
    assert after is not None
    assert (after.apart, os.path.isdir(before.directory)) == (True, True)
    assert maintain_node(node.installation, node.name, "").removed == 1
    assert os.listdir(node.workspace) == [after.place]
    assert epilog.main(node.installation.prefix) == 0
    assert os.listdir(node.workspace) == []


def test_a_job_without_its_image_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImageWaitExpired(image="reg.example.com/a:1", waited_s=5, producer="somebody")

    monkeypatch.setattr(image, "run", missing)
    node.environ(SLURM_JOB_COMMENT="warmstart: image=reg.example.com/a:1")
    images = node.policy.images._replace(registries=("reg.example.com",))
    node.write(node.policy._replace(images=images))
    record = run(node)
    assert record is not None
    verdict = Path(node.paths.view, "7", "verdict").read_text()
    assert "reg.example.com/a:1 is still missing" in verdict
    assert "the import goes on: submit the job again when it is done" in verdict
    (failure,) = node.failures(degree="refused")
    assert (failure["step"], failure["code"]) == ("image", "image-wait-expired")
    assert node.result("prolog")["outcome"] == "refused"


@pytest.mark.report
def test_a_refused_jobs_directory_of_its_own_goes_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier job of that id has left one of its name."""
    left = node.base / "workspace" / "7.00000000"
    left.mkdir(parents=True)
    (left / "theirs").touch()
    test_a_job_without_its_image_is_told(node, monkeypatch)
    assert len(os.listdir(left.parent)) == 2
    assert epilog.main(node.installation.prefix) == 0
    assert os.listdir(left.parent) == [left.name]


def test_a_job_that_no_rule_gives_anything_has_no_state(node: Node) -> None:
    node.write(node.policy._replace(rules=()))
    assert run(node) is None
    assert os.listdir(node.paths.view) == []
    assert not (node.base / "workspace").exists()


def test_a_job_that_no_rule_matches_is_told_so_if_it_asks(node: Node) -> None:
    elsewhere = NUMBA._replace(match=Match(node=("n2",)))
    node.write(node.policy._replace(rules=(elsewhere,)))
    node.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers nonsense")
    record = run(node)
    assert record
    assert (record.workspace, record.own.publish_scope) == ("", "")
    assert sorted(os.listdir(f"{node.paths.view}/7")) == ["events", "notice"]
    assert "no rule of this cluster matches this job on node n1" in Path(node.paths.view, "7/notice").read_text()
    assert node.result("prolog")["excluded"] == "no rule matches it on this node"
    assert not (node.base / "workspace").exists()
    assert epilog.main(node.installation.prefix) == 0
    assert (os.listdir(node.paths.view), os.listdir(node.paths.state)) == ([], [])
    assert node.failures() == []


def test_a_store_that_is_away_leaves_the_job_cold(node: Node) -> None:
    node.store.rmdir()
    record = run(node)
    assert record
    assert record.own.seeded["numba"].bundles == []
    assert "NUMBA_CACHE_DIR" in environment(node)


@pytest.mark.parametrize("bug", [False, True])
def test_a_failure_leaves_nothing_half_applied(node: Node, monkeypatch: pytest.MonkeyPatch, bug: bool) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError if bug else FileSystemBroken(path="/var", problem="read-only")

    monkeypatch.setattr(seed, "run", fail)
    monkeypatch.setattr(commands, "drain_node", lambda *_: True)
    assert prolog.main(node.installation.prefix) == (0 if bug else 1)
    assert runs.load(node.paths.state, 7) is None
    assert os.listdir(node.base / "workspace") == []
    assert os.listdir(node.paths.view) == []
    assert node.result("prolog")["outcome"] == ("crashed" if bug else "drained")


def test_a_requeued_job_begins_anew(node: Node) -> None:
    first = run(node)
    assert first
    os.chmod(f"{node.paths.view}/7", 0o700)  # root alone could replace the job's own
    second = run(node)
    assert second
    assert first.run_id != second.run_id
    assert os.listdir(node.base / "workspace") == [second.place]
    assert second.mark in os.listdir(second.directory)
    assert node.remarks() == [f"{first.run_id}: an earlier run of the job was removed: the job was requeued"]


@pytest.mark.parametrize(
    ("unseen", "name", "asked", "found"),
    [
        (("job_name",), "night", 1, True),
        (("job_name",), "day", 1, False),
        (("job_name",), None, 1, False),
        ((), "night", 0, False),
    ],
)
def test_wings_are_asked_where_a_rule_needs_what_slurmd_does_not_tell(  # noqa: PLR0917 - a case, and two fixtures
    node: Node, monkeypatch: pytest.MonkeyPatch, unseen: tuple[str, ...], name: str | None, asked: int,
    found: bool,
) -> None:  # fmt: skip
    calls: list[Job] = []

    def informed(_policy: Policy, job: Job, _store: StoreClient, _deadline: Deadline) -> Job:
        calls.append(job)
        if name is None:
            raise StoreFailed(what="spec", problem="gone")
        return job._replace(job_name=name)

    load = wing.load
    part = SimpleNamespace(informed=informed)
    monkeypatch.setattr(wing, "load", lambda module: part if module == "w.informs" else load(module))
    rule = NUMBA._replace(match=Match(job_name=("night",)))
    informing = Wing("w", used=True, step="", early=False, end="", informs="w.informs")
    node.write(node.policy._replace(rules=(rule,), unseen=unseen, wings=(informing,)))
    node.environ(SLURM_JOB_RESTART_COUNT="0")
    assert (run(node) is not None) is found
    assert len(calls) == asked
    assert [failure["step"] for failure in node.failures()] == (["w"] if name is None else [])


def test_all_parts_share_one_budget(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with the hook. What one part takes, the next ones lack; the steps leave the reserve to what follows."""
    assert run(node)
    budget = plan.prolog_budget(node.policy)
    rules = node.policy
    assert budget == rules.images.wait + rules.seed.fetch_budget + 20
    now, limits = [1000.0], {}
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def release_run(context: Context, options: None, *, with_wings: bool = True) -> None:
        assert options is None
        limits["supersede" if with_wings else "undo"] = context.deadline.at
        now[0] += 7.0

    def steps(context: Context, _steps: object) -> Prepared:
        limits["steps"] = context.deadline.at
        raise CacheFailed(profile="numba", problem="x")

    monkeypatch.setattr(release, "release", release_run)
    monkeypatch.setattr(runner, "run_prolog", steps)
    assert prolog.main(node.installation.prefix) == 0
    end = 1000.0 + budget
    assert limits == {"supersede": 1010.0, "steps": end - 15, "undo": 1012.0}
