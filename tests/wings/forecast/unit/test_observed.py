"""What an observed job would find is looked up, and nothing is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import packed, superblocks
from tests.support.entry_site import NUMBA, SCOPE, EntrySite
from tests.support.observing import run
from warmstart.entry import observe
from warmstart.host import deadline
from warmstart.images.choice import recipe
from warmstart.images.store import layout
from warmstart.profiles import facts, registry
from warmstart.store.layout import Namespace

IMAGE = "reg.example.com/a:1"
DIGEST = f"sha256:{'ab' * 32}"
BARE = facts.namespace(registry.get("numba"), facts.derive([registry.get("numba")], "label:bare"))


@pytest.fixture
def observed(entry_site: EntrySite) -> EntrySite:
    """Return a site whose policy observes, with a job that asks for nothing."""
    entry_site.write(entry_site.policy._replace(mode="observe"))
    return entry_site


def test_caches_are_looked_up(observed: EntrySite) -> None:
    """For each profile what the store has."""
    where = Namespace(str(observed.store), SCOPE, "numba", BARE)
    packed.publish(observed.root, where, {"m/f": {"m/f.nbi": b"index"}})
    run(observed)
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
