"""What a job finds of the store: seeded by extraction here, since mounting needs root; the overlay is a stand-in."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lib import packed
from tests.lib.alone import run_alone
from tests.lib.packed import MTIME_NS
from tests.lib.runs import a_context, changed, ran, result
from warmstart.harvest.live import LIVE
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.profiles import facts, registry
from warmstart.queue import Queue
from warmstart.run.state import Run, Seeded
from warmstart.seed import overlay
from warmstart.seed.node_cache import Copy
from warmstart.seed.overlay import OverlayUnavailable, Shown
from warmstart.steps import seed
from warmstart.steps.contract import CacheFailed, Context, Outcome
from warmstart.steps.seed import Options
from warmstart.store import bundles, index
from warmstart.store.layout import Namespace, StoreFailed

SCOPES = ["site", "user-64201-ws-alice"]
NUMBA = Options(("numba",))
ENTRIES = {"m/f": {"m/f.nbi": b"index", "m/f.1.nbc": b"data"}}


class Node:
    """A node beside a store, with a run whose cache is still root's."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.patch = monkeypatch
        (root / "store").mkdir()
        context = a_context(root)
        record = changed(context.run, read_scopes=SCOPES, path=f"{context.run.directory}/cache")
        self.context: Context = context._replace(run=record)
        self.cache = Path(record.own.path)
        for profile in ("numba", "jax", "trt-rtx", "torch-extensions"):
            (self.cache / profile).mkdir(parents=True)

    def publish(self, entries: packed.Entries, profile: str = "numba", scope: str = SCOPES[1]) -> str:
        """Publish a bundle for jobs of this node; return its id."""
        known = facts.derive([registry.get(profile)], "label:bare") | {"path": ""}
        name = facts.namespace(registry.get(profile), known)
        made = packed.publish(self.root, Namespace(self.context.store.path, scope, profile, name), entries)
        assert made.bundle
        return made.bundle

    def run(self, options: Options = NUMBA) -> Outcome:
        return seed.run(self.context, options)

    def cached(self) -> dict[str, bytes]:
        files = [path for path in self.cache.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.cache)): path.read_bytes() for path in files}

    def overlays(self, *, mapped: bool = True) -> list[tuple[str, list[str]]]:
        """Have overlays that can be mounted; return what is shown, as it comes."""
        shown: list[tuple[str, list[str]]] = []

        def show(  # noqa: PLR0917 - overlay.show's
            run_fd: int, subdir: str, directory: str, copies: list[Copy], job: overlay.JobIds, deadline: Deadline
        ) -> Shown:
            assert os.fstat(run_fd).st_ino == self.cache.parent.stat().st_ino
            assert (directory, job.uid) == (self.context.paths.layers, os.getuid())
            assert deadline.left() <= seed.MOUNTING_SECONDS
            entries = [copy.offer.entries for copy in copies]
            shown.append((subdir, [entry for names in entries for entry in names]))
            return Shown(entries, mapped)

        self.patch.setattr(overlay, "show", show)
        return shown


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Give a node that can't mount overlays; unsquashfs runs without namespaces of its own."""

    def refuse(*_: object) -> Shown:
        raise OverlayUnavailable(profile="numba", problem="no loop device")

    monkeypatch.setattr(overlay, "show", refuse)
    monkeypatch.setattr(process, "run_alone", run_alone)
    made = Node(tmp_path, monkeypatch)
    yield made
    made.context.store.close()


def seeded(outcome: Outcome) -> dict[str, Seeded]:
    """Return what the step says that the job was seeded with."""
    return ran(outcome).own.seeded


def caches(node: Node) -> dict[str, dict[str, Any]]:
    """Return what the log says of the caches."""
    found: dict[str, dict[str, Any]] = result(node.context)["caches"]
    return found


def cold(node: Node) -> dict[str, str]:
    """Return why which profiles are cold, by the log."""
    return {name: cache["cold"] for name, cache in caches(node).items() if not cache["warm"]}


def watching(on: Node, **changes: object) -> Outcome:
    """Run the step where the policy has jobs harvested while they run."""
    policy, run = on.context.policy, changed(on.context.run, publish_scope=SCOPES[1], **changes)
    policy = policy._replace(harvest=policy.harvest._replace(while_running=900))
    on.context = on.context._replace(policy=policy, run=run)
    return on.run()


def test_a_job_is_harvested_while_it_runs(node: Node) -> None:
    assert (ran(node.run()).live, os.path.lexists(node.context.paths.queue)) == (False, False)
    outcome, now = watching(node), int(time.time())
    (item,) = Queue(node.context.paths, LIVE).all()
    assert (item.key, item.attempts, 0 <= item.due - now - 900 < 20) == (node.context.run.name, 1, True)
    assert (ran(outcome).live, result(node.context)["look"]) == (True, item.due)


def test_a_job_on_several_nodes_is_harvested_at_its_end(node: Node) -> None:
    outcome = watching(node, nodelist="n[1-2]")
    assert (ran(outcome).live, result(node.context)["at_end"]) == (False, "it has several nodes")


def test_an_empty_store_leaves_the_job_cold(node: Node) -> None:
    outcome = node.run(Options(("numba", "jax")))
    assert (outcome.degraded, node.cached()) == ([], {})
    assert {name: found.entries for name, found in seeded(outcome).items()} == {"numba": [], "jax": []}
    assert len({found.namespace for found in seeded(outcome).values()}) == 2
    assert ran(outcome).own.facts["image"] == "label:bare"
    assert cold(node) == dict.fromkeys(("numba", "jax"), "nothing-published")
    assert result(node.context)["facts"] == ran(outcome).own.facts


def test_nodes_that_boot_together_do_not_fetch_at_once(node: Node) -> None:
    naps: list[float] = []
    uptime = [60.0]
    node.patch.setattr(seed, "time", SimpleNamespace(sleep=naps.append, monotonic=time.monotonic, time=time.time))
    node.patch.setattr(seed, "uptime_s", lambda: uptime[0])
    node.run()
    assert naps == []  # there is nothing to fetch
    for name in ("m/f", "m/g"):
        node.publish({name: {f"{name}.nbi": b"index"}})
    node.run()
    assert [nap < seed.SPREAD_S for nap in naps] == [True]
    node.run()
    node.publish({"m/h": {"m/h.nbi": b"index"}})
    uptime[0] = seed.JUST_BOOTED_S + 1
    node.run()
    assert len(naps) == 1


def test_where_overlays_are_not_to_be_had_entries_are_extracted(node: Node) -> None:
    node.publish(ENTRIES)
    outcome = node.run()
    assert outcome.degraded == []
    assert seeded(outcome)["numba"].entries == ["m/f"]
    assert node.cached() == {"numba/m/f.nbi": b"index", "numba/m/f.1.nbc": b"data"}
    assert (node.cache / "numba/m/f.nbi").stat().st_mtime_ns == MTIME_NS
    assert [remark["about"] for remark in result(node.context)["remarks"]] == ["numba"]
    cache = caches(node)["numba"]
    assert (cache["way"], cache["entries"], cache["scopes"]) == ("extraction", 1, [SCOPES[1]])
    assert cache["fetched_bytes"] > 0


@pytest.mark.parametrize("overlays", [True, False])
def test_the_names_of_a_large_bundle_are_recorded_only_where_they_were_needed(
    node: Node, monkeypatch: pytest.MonkeyPatch, overlays: bool
) -> None:
    monkeypatch.setattr(index, "FIRST", 512)
    large = {f"m/{number}{'n' * 200}": {f"m/{number}{'n' * 200}.nbi": b"x"} for number in range(20)}
    node.publish(large)
    if overlays:
        node.overlays()
    outcome = node.run()
    (given,) = seeded(outcome)["numba"].bundles
    assert (sorted(given.entries), given.number) == (([], 20) if overlays else (sorted(large), 0))
    assert (caches(node)["numba"]["entries"], outcome.degraded) == (20, [])


def test_what_the_jobs_own_process_does_is_nobody_elses_fault(node: Node) -> None:
    node.publish(ENTRIES)
    node.run()
    (listing,) = Path(node.context.paths.bundles).glob("*.files.json")
    files = json.loads(listing.read_text())
    files["m/f"]["m/gone"] = [1, "ab" * 32, MTIME_NS]
    listing.write_text(json.dumps(files))
    outcome = node.run()
    assert [error.code for error in outcome.degraded] == ["disk-failed"]
    assert cold(node) == {"numba": "disk-failed"}


@pytest.mark.parametrize("bound", ["MOST_BYTES", "keep"])
def test_the_budget_of_bytes_is_one_for_all(node: Node, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """What would go over it, or would not stay on the node, stays cold, and is told; the rest is seeded."""
    node.publish(ENTRIES)
    node.publish({"m/z": {"m/z.nbi": os.urandom(50_000)}})
    if bound == "keep":
        policy = node.context.policy
        node.context = node.context._replace(policy=policy._replace(seed=policy.seed._replace(keep=20_000)))
    else:
        monkeypatch.setattr(bundles, bound, 20_000)
    outcome = node.run()
    assert (seeded(outcome)["numba"].entries, outcome.degraded) == (["m/f"], [])
    texts = [remark["text"] for remark in result(node.context)["remarks"]]
    assert any(text.startswith("1 bundles were left out: ") for text in texts)
    assert (caches(node)["numba"]["warm"], cold(node)) == (True, {})


@pytest.mark.parametrize(("change", "reason"), [("budget", "bundles-left-out"), ("format", "bundles-refused")])
def test_why_all_of_a_profile_is_cold(node: Node, change: str, reason: str) -> None:
    node.publish(ENTRIES)
    if change == "budget":
        policy = node.context.policy
        node.context = node.context._replace(policy=policy._replace(seed=policy.seed._replace(keep=20)))
    else:
        (manifest,) = Path(node.context.store.path).rglob("*Z-*.json")
        manifest.chmod(0o644)
        manifest.write_text('{"format": 2}')
        (manifest.parent / "index.json").unlink()
    node.run()
    assert cold(node) == {"numba": reason}


def test_a_store_that_fails_leaves_the_job_cold(node: Node) -> None:
    Path(node.context.store.path).rename(node.root / "away")
    outcome = node.run()
    assert [type(error) for error in outcome.degraded] == [StoreFailed]
    assert seeded(outcome)["numba"].entries == []


def test_a_damaged_bundle_leaves_its_profile_cold(node: Node) -> None:
    bundle = node.publish(ENTRIES)
    node.publish({"runtime_cache.bin": {"runtime_cache.bin": b"k"}}, "trt-rtx")
    (path,) = Path(node.context.store.path).rglob(f"{bundle}.sqsh")
    path.chmod(0o600)
    path.write_bytes(b"x" * path.stat().st_size)
    outcome = node.run(Options(("numba", "trt-rtx")))
    assert [type(error) for error in outcome.degraded] == [bundles.BundleDamaged]
    assert (caches(node)["trt-rtx"]["warm"], cold(node)) == (True, {"numba": "bundle-damaged"})
    assert node.cached().keys() == {"trt-rtx/runtime_cache.bin"}


def test_what_each_entry_is_from_is_recorded(node: Node) -> None:
    bundle = node.publish({"runtime_cache.bin": {"runtime_cache.bin": b"k"}}, "trt-rtx")
    node.publish(ENTRIES)
    found = seeded(node.run(Options(("trt-rtx", "numba"))))
    (given,) = found["trt-rtx"].bundles
    assert (given.scope, given.bundle, given.entries) == (SCOPES[1], bundle, ["runtime_cache.bin"])
    assert os.path.exists(f"{node.context.paths.bundles}/{given.sha256}.files.json")
    fresh = node.run(Options(("trt-rtx", "numba"), fresh=True))
    assert ran(fresh).fresh
    assert [found.bundles for found in seeded(fresh).values()] == [[], []]


def test_a_failed_extraction_leaves_an_empty_directory(node: Node) -> None:
    """The profile's variable names it, and not every tool makes it. Its mode lets nobody else in."""
    node.publish(ENTRIES)

    def fail(command: list[str], **options: Any) -> process.CompletedProgram:  # noqa: ANN401 - run_alone's
        done = run_alone(command, **options)
        return done._replace(status=1, stderr=b"Write on output file failed because No space left on device\n")

    node.patch.setattr(process, "run_alone", fail)
    outcome = node.run()
    assert [type(error) for error in outcome.degraded] == [DiskFailed]
    assert (cold(node), node.cached()) == ({"numba": "disk-failed"}, {})
    assert stat.S_IMODE((node.cache / "numba").stat().st_mode) == 0o700


def test_a_cache_that_can_not_be_given_away_is_withheld(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    node.publish(ENTRIES)
    monkeypatch.setattr(os, "fchown", refuse)
    outcome = node.run()
    assert [type(error) for error in outcome.degraded] == [DiskFailed]
    assert (ran(outcome).own.path, outcome.environment) == ("", {"WARMSTART_CACHE": ""})
    assert cold(node) == {"numba": "disk-failed"}
    assert node.cached() == {}


def test_what_is_put_in_the_caches_place_is_not_entered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.publish(ENTRIES)
    real = seed._give_away

    def swapped(run: Run, directory: str) -> DiskFailed | None:
        result = real(run, directory)
        node.cache.rename(node.root / "moved")
        node.cache.symlink_to(node.root / "moved")
        return result

    monkeypatch.setattr(seed, "_give_away", swapped)
    outcome = node.run()
    assert [type(error) for error in outcome.degraded] == [CacheFailed]
    assert not list((node.root / "moved" / "numba").iterdir())
