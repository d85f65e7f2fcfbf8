"""What the nodes of a job hand in is merged into one bundle: real squashfs files, as root; no Slurm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib.node import Node, one
from tests.lib.whole_jobs import WholeJob
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.store import bundles as store_bundles
from warmstart.store import parts
from warmstart.store.manifest import Base

if TYPE_CHECKING:
    from warmstart.store.manifest import Manifest

pytestmark = pytest.mark.usefixtures("capable_host", "busy", "patient")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "be_idle", lambda: None)


@pytest.fixture
def job(base: Path) -> WholeJob:
    return WholeJob(base)


def bundles(site: Node) -> list[Manifest]:
    """Return the manifests of what is published."""
    where = site.namespace()
    with site.client() as client:
        return [client.manifest(where, bundle.bundle, after(20)) for bundle in client.survey(where, after(20))]


@pytest.mark.parametrize("entries", [2, pytest.param(100, marks=pytest.mark.sweep)])
def test_a_hundred_nodes_publish_one_bundle(base: Path, entries: int) -> None:
    """Whether they compiled the same, or each something else."""
    job = WholeJob(base, "n[1-100]")
    for number in range(1, 101):
        assert bundles(job.site) == []
        job.hand_in(f"n{number}", one(f"e{number % entries}"))
    assert job.merge() == 0
    (bundle,) = bundles(job.site)
    assert (len(bundle.entries), bundle.producer.node) == (entries, "n1")
    assert job.site.seen() == dict.fromkeys(bundle.entries, bundle.bundle)
    assert job.left() == []
    (event,) = job.site.events("harvest.merged")
    assert (event["nodes"], event["missing"], event["bundles"], event["left_out"]) == (100, [], 1, 0)
    assert (event["job_id"], event["uid"], event["user"], event["cluster"]) == (7, 1, "a", "c")


def test_the_head_nodes_version_is_taken(job: WholeJob) -> None:
    """Else that of the first node by name. The manifest tells of each entry who made it."""
    job.nodelist = "n[2,1,3]"  # n2 is its first
    job.hand_in("n3", {**one("shared", b"333"), **one("others", b"333")})
    job.hand_in("n1", {**one("shared", b"1"), **one("others", b"1")})
    job.hand_in("n2", one("shared", b"22"))
    job.merge()
    (bundle,) = bundles(job.site)
    sizes = {entry: file.size for entry, (file,) in ((e, f.values()) for e, f in bundle.entries.items())}
    assert sizes == {"shared": 2, "others": 1}
    assert bundle.producer.node == "n2"
    assert {entry: origin.node for entry, origin in bundle.origins.items()} == {"others": "n1"}
    assert set(job.site.seen()) == {"shared", "others"}


def age(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


def test_a_run_with_lost_nodes_is_merged_after_an_hour(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = WholeJob(base, "n[1-3]")
    job.hand_in("n1", one("a"))
    job.hand_in("n3", one("b"), last=False)
    assert (job.merge(), bundles(job.site)) == (0, [])
    with monkeypatch.context() as patch:
        age(patch, parts.PATIENCE_S + 60)
        assert job.site.command("maintain", "--node", "n1").exit_code == 0
    (event,) = job.site.events("harvest.merged")
    assert (event["nodes"], event["missing"], event["lacking"]) == (2, ["n2", "n3"], 2)
    assert (set(job.site.seen()), job.left()) == ({"a", "b"}, [])
    job.hand_in("n2", one("c"))
    with monkeypatch.context() as patch:
        age(patch, parts.PATIENCE_S + 60)
        job.merge()
    assert (set(job.site.seen()), job.left()) == ({"a", "b", "c"}, [])


def test_what_took_another_jobs_place_meanwhile_is_told(job: WholeJob) -> None:
    job.site.publish(one("old", b"xx"))
    job.hand_in("n1", one("old", b"mine"), based_on={"old": Base("user-1-a", "ab" * 32)})
    job.finish("n2")
    job.merge()
    (event,) = [cache for cache in job.site.caches() if "rejected" in cache]
    assert (event["rejected"], event["job_id"]) == ({"superseded": 1}, 7)


def test_a_damaged_part_keeps_no_other(job: WholeJob) -> None:
    torn, bad = job.hand_in("n1", one("a")), job.hand_in("n2", one("b"))
    job.hand_in("n2", one("c"))
    Path(job.run.path, f"{torn}.sqsh").write_bytes(b"torn")
    Path(job.run.path, f"{bad}.json").write_text(json.dumps({"format": 1}))
    job.merge()
    assert set(job.site.seen()) == {"c"}
    dropped = job.site.events("bundle.dropped")
    assert {event["part"] for event in dropped} == {torn, bad}
    assert {event["job_id"] for event in dropped} == {7}
    assert job.left() == []


@pytest.mark.threat(47)
def test_names_that_fit_no_directory_with_the_others_are_left_out(job: WholeJob) -> None:
    job.hand_in("n1", {"a": {"a": b"x"}})
    job.hand_in("n2", {"a/b": {"a/b": b"x"}, "c": {"c": b"x"}})
    job.merge()
    assert set(job.site.seen()) == {"a", "c"}
    assert [event["left_out"] for event in job.site.events("harvest.merged")] == [1]


@pytest.mark.threat(47)
def test_no_bundle_is_larger_than_jobs_may_fetch(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bundles, "MOST_BYTES", 100 << 10)
    site = Node(base)
    job = WholeJob(base, "n[1-3]", site)
    for number in (3, 2, 1):
        job.hand_in(f"n{number}", one(f"e{number}", os.urandom(40 << 10)))
    job.merge()
    assert set(site.seen()) == {"e1", "e2"}
    assert [event["left_out"] for event in site.events("harvest.merged")] == [1]
