"""The step `seed` with real mounts: which bundles a job sees, who owns its cache, and extraction without overlays."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.lib import packed
from tests.lib.overlay_place import without_overlays
from tests.lib.runs import CACHE, a_context, a_policy, a_run, changed, ran, result
from warmstart.caches.store.bundles import Published
from warmstart.caches.store.layout import Namespace
from warmstart.ending import waiting
from warmstart.ending.removal import Removed, close, remove
from warmstart.ending.waiting import ENDINGS
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.queue import Queue
from warmstart.steps import seed, workspace
from warmstart.steps.contract import Context, Outcome

pytestmark = pytest.mark.usefixtures("capable_host")

UID = 64201


@pytest.fixture
def root(base: Path) -> Path:
    """Yield a directory that every uid can enter, with a place for a store."""
    (base / "store").mkdir()
    return base


def published(root: Path, entries: packed.Entries, scope: str = "user-1", *, fresh: bool = False) -> Published:
    """Publish a bundle for the jobs of this node."""
    profile = registry.get("numba")
    name = host_facts.namespace(profile, host_facts.derive([profile], "label:bare") | {"path": CACHE})
    return packed.publish(root, Namespace(f"{root}/store", scope, "numba", name), entries, fresh=fresh)


def a_new_context(root: Path, run_id: str) -> Context:
    run = a_run(run_id=run_id, uid=UID, gid=UID, workspace=f"{root}/workspace", read_scopes=["user-1"])
    return a_context(root, run=run, policy=a_policy(root, constant_path="spank"))


def prepared(root: Path, run_id: str) -> Context:
    """Return the context of a run whose workspace is made."""
    context = a_new_context(root, run_id)
    outcome = workspace.run(context, workspace.Options(("numba",)))
    return context._replace(run=ran(outcome))


def seeded(context: Context) -> tuple[dict[str, bytes], Outcome]:
    """Seed. Return what the job finds, all of which is its own, and the step's outcome."""
    outcome = seed.run(context, seed.Options(("numba",)))
    top = Path(context.run.directory) / "cache/numba"
    assert {path.stat().st_uid for path in (top, *top.rglob("*"))} == {UID}
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}, outcome


@pytest.mark.threat(8)
@pytest.mark.parametrize("overlays", [True, False])
def test_of_each_entry_one_bundle(root: Path, monkeypatch: pytest.MonkeyPatch, overlays: bool) -> None:
    published(root, {"m/k": {"m/k.nbi": b"old", "m/k.1": b"old"}, "m/o": {"m/o.nbi": b"o"}})
    published(root, {"m/k": {"m/k.nbi": b"new", "m/k.2": b"new"}, "m/n": {"m/n.nbi": b"n"}}, fresh=True)
    if not overlays:
        without_overlays(monkeypatch)
    context = prepared(root, "aaaaaaaa")
    found, outcome = seeded(context)
    assert found == {"m/k.nbi": b"new", "m/k.2": b"new", "m/n.nbi": b"n", "m/o.nbi": b"o"}
    assert (outcome.degraded, ran(outcome).own.seeded["numba"].number) == ([], 3)
    told = result(context)
    cache = told["caches"]["numba"]
    assert (cache["way"], cache["bundles"]) == ("overlay" if overlays else "extraction", 2)
    assert ("remarks" in told) is not overlays
    shown = f" {context.run.directory}/cache/numba "
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if shown in line]
    assert len(mounts) == overlays  # of the bundles nothing is left there


def test_a_listing_that_names_what_a_bundle_lacks(root: Path) -> None:
    """Of two scopes names count. They and the list of files on the node must not differ."""
    published(root, {"l": {"l.nbi": b"l"}}, scope="site")
    made = published(root, {"k": {"k.nbi": b"k"}})
    context = prepared(root, "aaaaaaaa")
    context = context._replace(run=changed(context.run, read_scopes=["site", "user-1"]))
    assert seeded(context)[0] == {"k.nbi": b"k", "l.nbi": b"l"}
    about = Path(context.paths.bundles, f"{made.sha256}.json")
    about.write_text(about.read_text().replace('"k":', '"o":'))
    remove(close(context.run, after(20)), after(20))
    context = prepared(root, "bbbbbbbb")
    context = context._replace(run=changed(context.run, read_scopes=["site", "user-1"]))
    found, outcome = seeded(context)
    assert (found, {error.code for error in outcome.degraded}) == ({}, {"bundle-damaged"})
    left = Path(context.run.directory, "cache", "numba").stat()  # the job's variable names it
    assert (left.st_uid, stat.S_IMODE(left.st_mode)) == (UID, 0o700)


def test_the_sixteenth_bundle_stays_cold(root: Path) -> None:
    made = [published(root, {f"e{n}": {f"e{n}.nbi": b"%d" % n}}).sha256 for n in range(17)]
    context = prepared(root, "aaaaaaaa")
    found, outcome = seeded(context)
    assert found == {f"e{n}.nbi": b"%d" % n for n in range(15)}
    assert [bundle.sha256 for bundle in ran(outcome).own.seeded["numba"].bundles] == made[:15]
    (remark,) = result(context)["remarks"]
    assert remark["text"].partition(" ")[0] == "2"


@pytest.mark.threat(4)
def test_the_cache_is_roots_until_it_is_seeded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(root, {"k": {"k.nbi": b"k"}})
    context = prepared(root, "aaaaaaaa")
    cache = Path(context.run.directory) / "cache"
    owners = []
    real = linux.bind

    def bind(source: str, target: str) -> None:
        owners.append((cache.stat().st_uid, stat.S_IMODE(cache.stat().st_mode), (cache / "numba").stat().st_uid))
        real(source, target)

    monkeypatch.setattr(linux, "bind", bind)
    seeded(context)
    assert owners == [(0, 0o700, 0)]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (cache, cache / "numba")} == {(UID, UID)}


def test_a_run_that_waits_keeps_its_overlay(root: Path) -> None:
    published(root, {"k": {"k.nbi": b"k"}})
    context = prepared(root, "aaaaaaaa")
    seeded(context)
    cache = Path(context.run.directory) / "cache" / "numba"
    (cache / "new.nbi").write_bytes(b"new")
    run = changed(context.run, left=["numba"])
    waiting.leave(Queue(context.paths, ENDINGS), run, is_done=False)
    moved = close(run, after(20))
    cache = Path(moved.directory) / "cache" / "numba"
    assert sorted(path.name for path in cache.iterdir()) == ["k.nbi", "new.nbi"]
    assert remove(moved, after(20)) == Removed()
    assert context.run.directory not in Path("/proc/self/mountinfo").read_text()
    assert not cache.exists()
