"""The step `seed` with real mounts: which bundles a job sees, who owns its cache, and extraction without overlays."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lib.bundles import draft
from tests.lib.overlay_place import without_overlays
from tests.lib.runs import a_context, a_policy, a_record
from warmstart import run_end
from warmstart.harvest.pack import pack
from warmstart.host import files, linux
from warmstart.host.deadline import after
from warmstart.profiles import facts as host_facts
from warmstart.profiles import registry
from warmstart.steps import release, seed, workspace
from warmstart.steps.contract import Context, Outcome
from warmstart.store import bundles
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.store.manifest import File

pytestmark = pytest.mark.usefixtures("capable_host")

UID = 64201
MTIME_NS = 1_700_000_000_123_456_789
WHOLE = {"sqsh", "files.json", "origin.json"}  # what a node has of a bundle
Content = Mapping[str, bytes]


@pytest.fixture
def root(base: Path) -> Path:
    """Yield a directory that every uid can enter, with a place for a store."""
    (base / "store").mkdir()
    return base


def published(root: Path, entries: Mapping[str, Content], profile: str = "numba") -> Published:
    """Publish a bundle for the jobs of this node, as the store's owner."""
    context = a_new_context(root, "ffffffff")
    place = Namespace(f"{root}/store", "user-1", profile, namespace_of(context, profile))
    stage = Path(tempfile.mkdtemp(dir=root))
    text = draft()
    for entry, content in entries.items():
        text.entries[entry] = {path: File(len(data), "ab" * 32, MTIME_NS) for path, data in content.items()}
        for path, data in content.items():
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).write_bytes(data)
    fd = pack(str(stage), f"{stage}.sqsh", after(20))
    made = bundles.publish_bundle(place, fd, text, "n1-test")
    os.close(fd)
    shutil.rmtree(stage)
    return made


def namespace_of(context: Context, profile: str) -> str:
    """Return the namespace that the step computes."""
    return host_facts.namespace(registry.get(profile), seed._facts(context, seed.Options((profile,))))


def a_new_context(root: Path, run_id: str, **policy: object) -> Context:
    """Return the context of a run before any step."""
    record = a_record(run_id=run_id, uid=UID, gid=UID, workspace=f"{root}/workspace", read_scopes=["user-1"])
    return a_context(root, record=record, policy=a_policy(root, constant_path="spank", **policy))


def a_run(root: Path, run_id: str, profile: str = "numba", **policy: object) -> Context:
    """Return the context of a run whose workspace is made."""
    context = a_new_context(root, run_id, **policy)
    outcome = workspace.run(context, workspace.Options((registry.get(profile).name,)))
    return context._replace(record=context.record._replace(**outcome.record))


def seeded(context: Context, profile: str = "numba") -> tuple[dict[str, bytes], Outcome]:
    """Seed. Return what the job finds, and the step's messages."""
    outcome = seed.run(context, seed.Options((profile,)))
    top = Path(context.record.run_directory) / "cache" / registry.get(profile).name
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}, outcome


def emitted(context: Context, event: str) -> list[dict[str, Any]]:
    """Return the journal's events with this name."""
    lines = [line for file in Path(context.paths.journal).iterdir() for line in file.read_text().splitlines()]
    return [found for found in map(json.loads, lines) if found.get("event") == event]


@pytest.mark.threat(8)
@pytest.mark.parametrize("overlays", [True, False])
def test_of_each_entry_one_bundle(root: Path, monkeypatch: pytest.MonkeyPatch, overlays: bool) -> None:
    """A shared entry comes from the older bundle alone, however they are seeded."""
    published(root, {"m/k": {"m/k.nbi": b"old", "m/k.1": b"old"}})
    published(root, {"m/k": {"m/k.nbi": b"new", "m/k.2": b"new"}, "m/n": {"m/n.nbi": b"n"}})
    if not overlays:
        without_overlays(monkeypatch)
    context = a_run(root, "aaaaaaaa")
    found, outcome = seeded(context)
    assert found == {"m/k.nbi": b"old", "m/k.1": b"old", "m/n.nbi": b"n"}
    assert outcome.degraded == []
    assert sorted(outcome.record["seeded"]["numba"].entries) == ["m/k", "m/n"]
    (event,) = emitted(context, "cache.seeded")
    assert (event["way"], event["bundles"]) == ("overlay" if overlays else "extraction", 2)
    failed = emitted(context, "overlay.failed")
    assert [event["error"]["code"] for event in failed] == ([] if overlays else ["overlay-unavailable"])


@pytest.mark.parametrize(("profile", "overlays"), [("numba", False), ("torch-extensions", True)])
def test_what_is_extracted_has_its_times_and_private_modes(
    root: Path, monkeypatch: pytest.MonkeyPatch, profile: str, overlays: bool
) -> None:
    """Times to the nanosecond, for ninja. Private modes; all files belong to the job."""
    published(root, {"e": {"e/f.so": b"x", "e/d/g.o": b"y"}}, profile)
    if not overlays:
        without_overlays(monkeypatch)
    context = a_run(root, "aaaaaaaa", profile)
    found, outcome = seeded(context, profile)
    assert (found, outcome.degraded) == ({"e/f.so": b"x", "e/d/g.o": b"y"}, [])
    top = Path(context.record.run_directory) / "cache" / profile
    files = [path for path in top.rglob("*") if path.is_file()]
    assert {path.stat().st_mtime_ns for path in files} == {MTIME_NS}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (top, *top.rglob("*"))}
    assert modes == {profile: 0o700, "e": 0o755, "d": 0o755, "f.so": 0o644, "g.o": 0o644}
    assert {path.stat().st_uid for path in (top, *top.rglob("*"))} == {UID}


@pytest.mark.parametrize("overlays", [True, False])
def test_an_index_that_names_what_a_bundle_lacks(root: Path, monkeypatch: pytest.MonkeyPatch, overlays: bool) -> None:
    """Damaged by a disk, or by a writer of the store: the profile stays cold, and the hook continues."""
    published(root, {"k": {"k.nbi": b"k"}, "l": {"l.nbi": b"l"}})
    published(root, {"k": {"k.nbi": b"other"}, "n": {"n.nbi": b"n"}})
    (path,) = (root / "store").rglob("index.json")
    text = path.read_text().replace('"n":', '"o":')
    path.unlink()
    path.write_text(text)
    if not overlays:
        without_overlays(monkeypatch)
    context = a_run(root, "aaaaaaaa")
    found, outcome = seeded(context)
    assert (found, {error.code for error in outcome.degraded}) == ({}, {"bundle-damaged"})
    left = Path(context.record.run_directory, "cache", "numba").stat()  # the job's variable names it
    assert (left.st_uid, stat.S_IMODE(left.st_mode)) == (UID, 0o700)
    assert outcome.record["seeded"]["numba"].entries == []


def test_a_bundle_over_the_budget_leaves_its_entries_cold(root: Path) -> None:
    """The older bundle is not fetched, and the younger one does not replace its entries."""
    published(root, {"k": {"k.nbi": os.urandom(100_000)}})
    published(root, {"k": {"k.nbi": b"other"}, "n": {"n.nbi": b"n"}})
    rules = a_policy(root).seed._replace(keep=50_000)
    context = a_run(root, "aaaaaaaa", seed=rules)
    found, outcome = seeded(context)
    assert found == {"n.nbi": b"n"}
    assert outcome.record["seeded"]["numba"].entries == ["n"]
    assert [event["error"]["code"] for event in emitted(context, "bundle.left-out")] == ["fetch-over-budget"]


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have whoever reads a file in pieces wait before each: the store's owner does, who is forked with this."""
    real = files._chunks

    def slow(*args: Any) -> Iterator[bytes]:  # noqa: ANN401 - as those of the real one
        for chunk in real(*args):
            time.sleep(0.2)
            yield chunk

    with monkeypatch.context() as patch:
        patch.setattr(files, "_chunks", slow)
        yield


@pytest.mark.timed
def test_a_bundle_that_does_not_come_in_time_is_there_for_a_later_job(root: Path, slow_store: None) -> None:
    """Each job spends its time on it, and what came stays."""
    published(root, {"k": {"k.nbi": os.urandom(12 << 20)}})
    rules = a_policy(root).seed._replace(fetch_budget=1)
    came = [0]
    for number in range(1, 20):
        context = a_run(root, f"{number:08x}", seed=rules)
        found, outcome = seeded(context)
        assert outcome.degraded == []
        if found:
            break
        assert outcome.detail["cold"] == {"numba": "bundles-left-out"}
        assert emitted(context, "bundle.left-out")[-1]["error"]["code"] == "fetch-over-budget"
        (partial,) = Path(context.paths.bundles).glob("*.fetching")
        came.append(partial.stat().st_size)
        assert came[-2] < came[-1] <= 12 << 20
    assert (list(found), outcome.detail["warm"], len(came) > 2) == (["k.nbi"], ["numba"], True)
    assert {path.name.partition(".")[2] for path in Path(context.paths.bundles).iterdir()} == WHOLE


def test_the_sixteenth_bundle_stays_cold(root: Path) -> None:
    """An overlay has at most fifteen bundles and whiteouts; the audit names the others."""
    made = [published(root, {f"e{n}": {f"e{n}.nbi": b"%d" % n}}).bundle for n in range(17)]
    context = a_run(root, "aaaaaaaa")
    found, _ = seeded(context)
    assert found == {f"e{n}.nbi": b"%d" % n for n in range(15)}
    left = emitted(context, "bundle.left-out")
    assert [(event["bundle"], event["bundles"], event["error"]["code"]) for event in left] == [
        (made[15], len(made[15:]), "too-many-layers")
    ]


@pytest.mark.threat(4)
def test_the_cache_is_roots_until_it_is_seeded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No user process can reach a mount point before its mount; then the job owns all of it."""
    published(root, {"k": {"k.nbi": b"k"}})
    context = a_run(root, "aaaaaaaa")
    cache = Path(context.record.run_directory) / "cache"
    owners = []
    real = linux.bind

    def bind(source: str, target: str) -> None:
        owners.append((cache.stat().st_uid, stat.S_IMODE(cache.stat().st_mode), (cache / "numba").stat().st_uid))
        real(source, target)

    monkeypatch.setattr(linux, "bind", bind)
    seeded(context)
    assert owners == [(0, 0o700, 0)]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (cache, cache / "numba")} == {(UID, UID)}


def test_a_crash_of_seeding_still_gives_the_cache_away(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug must not leave a cache that the job cannot enter."""
    context = a_run(root, "aaaaaaaa")
    monkeypatch.setattr(seed, "_offered", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        seeded(context)
    assert (Path(context.record.run_directory) / "cache").stat().st_uid == UID


def test_a_cache_that_cannot_be_given_away_is_not_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's quota is used up: the job runs without a cache, with a notice."""
    context = a_run(root, "aaaaaaaa")

    def over_quota(fd: int, uid: int, gid: int) -> None:
        raise OSError(errno.EDQUOT, f"Disk quota exceeded: {fd}, {uid}, {gid}")

    monkeypatch.setattr(os, "fchown", over_quota)
    _, outcome = seeded(context)
    assert (outcome.record, outcome.environment) == ({"cache": ""}, {"WARMSTART_CACHE": ""})
    assert [error.code for error in outcome.degraded] == ["cache-withheld"]


def test_a_release_that_is_repeated_or_comes_alone(root: Path) -> None:
    """The first removes all mounts; a second finds nothing, and one after a reboot only directories."""
    published(root, {"k": {"k.nbi": b"k"}})
    context = a_run(root, "aaaaaaaa")
    seeded(context)
    table = Path("/proc/self/mountinfo")
    assert table.read_text().count(context.record.run_directory) == 2
    for _ in range(2):
        assert release.run(context, release.Options()).degraded == []
        assert context.record.run_directory not in table.read_text()
        assert not Path(context.record.run_directory).exists()


def test_a_deferred_harvest_keeps_its_overlay(root: Path) -> None:
    """Without time in the epilog the overlay stays mounted until maintenance has harvested it."""
    published(root, {"k": {"k.nbi": b"k"}})
    context = a_run(root, "aaaaaaaa")
    seeded(context)
    cache = Path(context.record.run_directory) / "cache" / "numba"
    (cache / "new.nbi").write_bytes(b"new")
    record = context.record._replace(deferred=["numba"])
    release.run(context._replace(record=record), release.Options())
    assert sorted(path.name for path in cache.iterdir()) == ["k.nbi", "new.nbi"]
    assert run_end.finish_deferred(context.paths, record, after(20)) == []
    assert context.record.run_directory not in Path("/proc/self/mountinfo").read_text()
    assert not cache.exists()
