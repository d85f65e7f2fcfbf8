"""An observed job: its prolog says what it would do, and nothing is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import packed, superblocks
from tests.support.asked_trees import ask, offer_trees, packs
from tests.support.entry_site import NUMBA, SCOPE, EntrySite
from warmstart import record as records
from warmstart.entry import epilog, observe, prolog
from warmstart.host import deadline
from warmstart.images.choice import recipe
from warmstart.images.store import layout
from warmstart.policy.compiled import Condition, Pattern
from warmstart.profiles import facts, registry
from warmstart.record import Record
from warmstart.slurm import commands
from warmstart.store.layout import Namespace

IMAGE = "reg.example.com/a:1"
DIGEST = f"sha256:{'ab' * 32}"
BARE = facts.namespace(registry.get("numba"), facts.derive([registry.get("numba")], "label:bare"))


@pytest.fixture
def observed(entry_site: EntrySite) -> EntrySite:
    """Return a site whose policy observes, with a job that asks for nothing."""
    entry_site.write(entry_site.policy._replace(mode="observe"))
    return entry_site


def files(site: EntrySite) -> dict[str, bytes]:
    """Return all files of the site but the journals and the audit log."""
    found = {}
    for directory, _, names in os.walk(site.root):
        if "/journal" not in directory:
            found[directory] = b""
            found |= {f"{directory}/{name}": Path(directory, name).read_bytes() for name in names}
    return {path: data for path, data in found.items() if not path.endswith("audit.jsonl")}


def run(site: EntrySite) -> dict[str, Any]:
    """Run a prolog that touches nothing; return its `job.observed`."""
    for directory in (site.paths.state, site.paths.view):  # as after any other job
        os.makedirs(directory, exist_ok=True)
    before = files(site)
    assert prolog.main(site.installation.prefix) == 0
    assert files(site) == before
    assert [event["status"] for event in site.events("hook.finished")] == [0]
    (event,) = site.events("job.observed")
    return event


def test_what_a_job_would_get_is_said(observed: EntrySite) -> None:
    """The steps, and for each profile what the store has."""
    where = Namespace(str(observed.store), SCOPE, "numba", BARE)
    packed.publish(observed.root, where, {"m/f": {"m/f.nbi": b"index"}})
    assert run(observed)["steps"] == ["workspace", "seed", "environment"]
    (cache,) = observed.events("cache.observed")
    assert (cache["profile"], cache["namespace"], cache["scopes"], cache["publishes"]) == (
        "numba",
        BARE,
        [SCOPE],
        SCOPE,
    )
    assert (cache["entries"], cache["bundles"], cache["fresh"]) == (1, 1, False)
    assert cache["bytes"] > 0


@pytest.mark.parametrize(("nodelist", "publishes"), [("n1,n2", [SCOPE, SCOPE]), ("n0,n1", [SCOPE, ""])])
def test_every_node_would_publish_but_what_the_head_node_alone_does(
    observed: EntrySite, nodelist: str, publishes: list[str]
) -> None:
    """A cache that is one file is the head node's."""
    rule = NUMBA._replace(profiles=("numba", "cuda-computecache"), mode="observe")
    observed.write(observed.policy._replace(rules=(rule,)))
    observed.environ(SLURM_JOB_NODELIST=nodelist)
    run(observed)
    assert [event["publishes"] for event in observed.events("cache.observed")] == publishes


def test_an_index_that_is_gone_is_not_made_anew(observed: EntrySite) -> None:
    """The manifests are read instead."""
    where = Namespace(str(observed.store), SCOPE, "numba", BARE)
    packed.publish(observed.root, where, {"m/f": {"m/f.nbi": b"index"}})
    Path(where.path, "index.json").unlink()
    run(observed)
    assert [event["entries"] for event in observed.events("cache.observed")] == [1]


def test_images_are_looked_up(observed: EntrySite) -> None:
    """One that is missing counts by its reference, so that jobs with it share a namespace; another has its digest."""
    kind = f"{os.uname().machine}.{recipe(observed.policy.images.importer)}"
    images = observed.store / "images"
    images.mkdir()
    (images / f"{layout.image_name(DIGEST, kind)}.sqsh").write_bytes(superblocks.image())
    observed.environ(SLURM_JOB_COMMENT=f"warmstart: image={IMAGE} image=reg.example.com/b@{DIGEST} fresh")
    event = run(observed)
    assert event["asked"] == {"images": [IMAGE, f"reg.example.com/b@{DIGEST}"], "fresh": True}
    first, second = observed.events("image.observed")
    assert (first["image"], first["digest"], first["found"], first["bytes"]) == (IMAGE, "", False, 0)
    assert (second["digest"], second["found"], second["bytes"] > 0) == (DIGEST, True, True)
    (cache,) = observed.events("cache.observed")
    known = facts.derive([registry.get("numba")], f"unresolved:{IMAGE}")
    assert (cache["namespace"], cache["fresh"]) == (facts.namespace(registry.get("numba"), known), True)


def test_a_tree_is_looked_at_and_not_packed(observed: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a copy of it as it is now; nothing is asked for."""
    tree = offer_trees(observed, monkeypatch)
    observed.write(observed.policy._replace(constant_path="spank"))
    observed.environ(SLURM_JOB_COMMENT=f"warmstart: tree={tree}")
    assert "tree" in run(observed)["steps"]
    (event,) = observed.events("tree.observed")
    assert (event["tree"], event["found"], event["bytes"], event["reason"]) == (str(tree), False, 0, "")
    ask(observed, tree)
    packs(observed)
    assert prolog.main(observed.installation.prefix) == 0
    again = observed.events("tree.observed")[-1]
    assert (again["namespace"], again["found"], again["bytes"] > 0) == (event["namespace"], True, True)
    tree.rename(tree.parent / "gone")
    assert prolog.main(observed.installation.prefix) == 0
    assert observed.events("tree.observed")[-1]["reason"] == "tree-unusable"
    assert observed.events("tree.shown") == []


def test_a_job_that_would_be_refused_runs(observed: EntrySite) -> None:
    """The audit has the verdict; the job has no view."""
    observed.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    event = run(observed)
    assert (event["steps"], event["refused"]["code"]) == ([], "profile-not-offered")
    assert observed.events("job.refused") == []


def test_a_job_that_no_rule_matches_has_no_notice(observed: EntrySite) -> None:
    """Observing says nothing to users."""
    observed.write(observed.policy._replace(rules=()))
    observed.environ(SLURM_JOB_COMMENT="warmstart: profiles=numba")
    event = run(observed)
    assert (event["steps"], event["excluded"]) == ([], "no rule matches it on this node")


def test_a_store_that_is_away_costs_one_look(observed: EntrySite) -> None:
    """It is said once, and the plan is audited all the same."""
    observed.environ(SLURM_JOB_COMMENT=f"warmstart: image={IMAGE} image={IMAGE}0 profiles=inductor")
    shutil.rmtree(observed.store)
    assert len(run(observed)["steps"]) == 4
    assert [event["error"]["kind"] for event in observed.events("step.failed")] == ["store"]
    assert [event["entries"] for event in observed.events("cache.observed")] == [0, 0]


def test_a_store_that_hangs_costs_the_deadline(observed: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that looks is killed."""
    monkeypatch.setattr(observe, "after", lambda _seconds: deadline.after(0))
    run(observed)
    assert [event["error"]["code"] for event in observed.events("step.failed")] == ["store-unresponsive"]


def test_a_bug_in_observing_harms_no_job(observed: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where a bug fails jobs."""
    policy = observed.policy
    observed.write(policy._replace(on_error=policy.on_error._replace(bug="fail-job")))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(facts, "derive", fail)
    assert prolog.main(observed.installation.prefix) == 0
    assert (len(observed.events("hook.crashed")), os.listdir(observed.paths.view)) == (1, [])


@pytest.mark.parametrize("early", [False, True])
def test_a_broken_node_is_not_drained(observed: EntrySite, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    """The fault is audited if there is an audit, and does not count for the brake."""

    def broken(*_: object) -> None:
        raise records.StateUnusable(path="/var", problem="read-only")

    monkeypatch.setattr(commands, "drain_node", broken)
    if early:
        monkeypatch.setattr("warmstart.entry.hook.ensure_path", broken)
    else:
        monkeypatch.setattr(records, "job_lock", broken)
    for hook in (prolog, epilog):
        assert hook.main(observed.installation.prefix) == 0
    assert [event["error"]["code"] for event in observed.events("drain.observed")] == ["state-unusable"] * (
        2 - 2 * early
    )
    assert not Path(observed.installation.faults).exists()


def test_a_job_that_began_before_is_ended(entry_site: EntrySite) -> None:
    """With the epilog that its record asks for, whatever the mode is by now. One that was observed has none."""
    assert prolog.main(entry_site.installation.prefix) == 0
    record: Record | None = records.load(entry_site.paths.state, 7)
    assert record
    entry_site.write(entry_site.policy._replace(mode="observe"))
    assert epilog.main(entry_site.installation.prefix) == 0
    assert {event["step"] for event in entry_site.events("step.finished") if event["hook"] == "epilog"} == {
        *("harvest", "release", "spool")
    }
    assert not Path(record.run_directory).exists()
    assert (os.listdir(entry_site.paths.view), os.listdir(entry_site.paths.state)) == ([], [])
    before = files(entry_site)
    assert epilog.main(entry_site.installation.prefix) == 0
    assert files(entry_site) == before


def test_one_node_enforces(observed: EntrySite) -> None:
    """A later rule with a mode decides; a job of several nodes is observed on all of them if it is on one."""
    canary = NUMBA._replace(name="canary", match=(Condition("node", (Pattern("n1", ""),)),), mode="enforce")
    observed.write(observed.policy._replace(rules=(NUMBA, canary)))
    observed.environ(SLURM_JOB_NODELIST="n[1-2]")
    run(observed)
    observed.environ(SLURM_JOB_NODELIST="n1")
    assert prolog.main(observed.installation.prefix) == 0
    assert records.load(observed.paths.state, 7)
