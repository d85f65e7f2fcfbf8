"""The step `seed` with real mounts: which bundles a job sees, who owns its cache, and extraction without overlays."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.lib import packed
from tests.lib.overlay_place import without_overlays
from tests.lib.runs import a_context, a_policy, a_run, changed, ran, result
from warmstart.ending import waiting
from warmstart.ending.removal import Removed, close, remove
from warmstart.ending.waiting import ENDINGS
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.queue import Queue
from warmstart.run.state import Caches
from warmstart.steps import seed, workspace
from warmstart.steps.contract import Context, Outcome
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace

pytestmark = pytest.mark.usefixtures("capable_host")

UID = 64201


@pytest.fixture
def root(base: Path) -> Path:
    """Yield a directory that every uid can enter, with a place for a store."""
    (base / "store").mkdir()
    return base


def published(root: Path, entries: packed.Entries) -> Published:
    """Publish a bundle for the jobs of this node."""
    known = seed._facts(a_new_context(root, "ffffffff"), Caches(), seed.Options(("numba",)))
    name = host_facts.namespace(registry.get("numba"), known)
    return packed.publish(root, Namespace(f"{root}/store", "user-1", "numba", name), entries)


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
    published(root, {"m/k": {"m/k.nbi": b"old", "m/k.1": b"old"}})
    published(root, {"m/k": {"m/k.nbi": b"new", "m/k.2": b"new"}, "m/n": {"m/n.nbi": b"n"}})
    if not overlays:
        without_overlays(monkeypatch)
    context = prepared(root, "aaaaaaaa")
    found, outcome = seeded(context)
    assert found == {"m/k.nbi": b"old", "m/k.1": b"old", "m/n.nbi": b"n"}
    assert outcome.degraded == []
    assert sorted(ran(outcome).own.seeded["numba"].entries) == ["m/k", "m/n"]
    told = result(context)
    cache = told["caches"]["numba"]
    assert (cache["way"], cache["bundles"]) == ("overlay" if overlays else "extraction", 2)
    assert ("remarks" in told) is not overlays


@pytest.mark.parametrize("overlays", [True, False])
def test_an_index_that_names_what_a_bundle_lacks(root: Path, monkeypatch: pytest.MonkeyPatch, overlays: bool) -> None:
    published(root, {"k": {"k.nbi": b"k"}, "l": {"l.nbi": b"l"}})
    published(root, {"k": {"k.nbi": b"other"}, "n": {"n.nbi": b"n"}})
    (path,) = (root / "store").rglob("index.json")
    text = path.read_text().replace('"n":', '"o":')
    path.unlink()
    path.write_text(text)
    if not overlays:
        without_overlays(monkeypatch)
    context = prepared(root, "aaaaaaaa")
    found, outcome = seeded(context)
    assert (found, {error.code for error in outcome.degraded}) == ({}, {"bundle-damaged"})
    left = Path(context.run.directory, "cache", "numba").stat()  # the job's variable names it
    assert (left.st_uid, stat.S_IMODE(left.st_mode)) == (UID, 0o700)
    assert ran(outcome).own.seeded["numba"].entries == []


def test_the_sixteenth_bundle_stays_cold(root: Path) -> None:
    made = [published(root, {f"e{n}": {f"e{n}.nbi": b"%d" % n}}).bundle for n in range(17)]
    context = prepared(root, "aaaaaaaa")
    found, _ = seeded(context)
    assert found == {f"e{n}.nbi": b"%d" % n for n in range(15)}
    (remark,) = result(context)["remarks"]
    assert (remark["bundle"], remark["text"].partition(" ")[0]) == (made[15], f"{len(made[15:])}")


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
