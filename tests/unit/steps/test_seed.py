"""What a job finds of the store: seeded by extraction here, since mounting needs root; the overlay is a stand-in."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lib import packed
from tests.lib.alone import run_alone
from tests.lib.packed import MTIME_NS
from tests.lib.runs import a_context, changed, ran, result
from warmstart.caches.store.layout import Namespace
from warmstart.caches.store.look import Found, Want
from warmstart.harvest.live import LIVE
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.profiles import facts, registry
from warmstart.queue import Queue
from warmstart.run.state import Run, Seeded
from warmstart.seed import node_cache, overlay, overlay_end
from warmstart.steps import seed
from warmstart.steps.contract import CacheFailed, Context, Outcome
from warmstart.steps.seed import Options
from warmstart.store.barrier import Barrier
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed

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

    def publish(
        self, entries: packed.Entries, profile: str = "numba", scope: str = SCOPES[1], *, fresh: bool = False
    ) -> str:
        """Publish a bundle for jobs of this node; return its hash."""
        known = facts.derive([registry.get(profile)], "label:bare") | {"path": ""}
        name = facts.namespace(registry.get(profile), known)
        made = packed.publish(self.root, Namespace(self.context.store.path, scope, profile, name), entries, fresh=fresh)
        assert made.sha256
        return made.sha256

    def run(self, options: Options = NUMBA) -> Outcome:
        return seed.run(self.context, options)

    def cached(self) -> dict[str, bytes]:
        files = [path for path in self.cache.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.cache)): path.read_bytes() for path in files}

    def overlays(self) -> list[tuple[str, int, list[str]]]:
        """Have overlays that can be mounted; return profile, layers and what is hidden, as it comes."""
        shown: list[tuple[str, int, list[str]]] = []

        def mounted(directory: str, paths: list[str], deadline: Deadline) -> list[int]:
            assert (directory, deadline.left() <= seed.MOUNTING_SECONDS) == (self.context.paths.layers, True)
            return [os.open(path, os.O_RDONLY) for path in paths]

        def show(run_fd: int, subdir: str, layers: list[int], hidden: list[str], job: overlay.JobIds) -> bool:
            assert (os.fstat(run_fd).st_ino, job.uid) == (self.cache.parent.stat().st_ino, os.getuid())
            shown.append((subdir, len(layers), hidden))
            return True

        self.patch.setattr(node_cache, "mounted", mounted)
        self.patch.setattr(overlay, "show", show)
        return shown


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Give a node that can't mount overlays; unsquashfs runs without namespaces of its own."""

    def refuse(*_: object) -> list[int]:
        raise OSError(errno.ENODEV, "no loop device")

    monkeypatch.setattr(node_cache, "mounted", refuse)
    monkeypatch.setattr(process, "run_alone", run_alone)
    return Node(tmp_path, monkeypatch)


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


def keep(node: Node, size: int) -> None:
    policy = node.context.policy
    node.context = node.context._replace(policy=policy._replace(seed=policy.seed._replace(keep=size)))


def watching(on: Node, **changes: object) -> Outcome:
    """Run the step where the policy has jobs harvested while they run."""
    policy, run = on.context.policy, changed(on.context.run, publish_scope=SCOPES[1], **changes)
    policy = policy._replace(harvest=policy.harvest._replace(while_running=900))
    on.context = on.context._replace(policy=policy, run=run)
    return on.run()


def test_what_is_asked_with_the_image_is_what_the_step_asks_for(node: Node) -> None:
    """It depends on the image's digest; an answer that came before is taken."""
    node.publish({"a": {"a.nbi": b"x"}})
    asked: list[tuple[list[str], list[Want]]] = []

    def before(scopes: list[str], wants: list[Want], _: Deadline) -> None:
        asked.append((scopes, wants))

    image = node.context.run.own.image or f"label:{node.context.policy.site_label}"
    assert node.run(NUMBA._replace(ahead=before)).run
    assert asked == [seed.wanted(node.context.policy, node.context.run.own.read_scopes, NUMBA, image)]
    assert asked != [seed.wanted(node.context.policy, node.context.run.own.read_scopes, NUMBA, "sha256:other")]
    nothing = Found([], [], False, 0, {}, {})
    node.run(NUMBA._replace(ahead=lambda *_: [nothing]))
    assert cold(node) == {"numba": seed.NOTHING_PUBLISHED}


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
    assert {name: found.bundles for name, found in seeded(outcome).items()} == {"numba": [], "jax": []}
    assert len({found.namespace for found in seeded(outcome).values()}) == 2
    assert ran(outcome).own.facts["image"] == "label:bare"
    assert cold(node) == dict.fromkeys(("numba", "jax"), "nothing-published")
    assert result(node.context)["facts"] == ran(outcome).own.facts


def test_where_overlays_are_not_to_be_had_entries_are_extracted(node: Node) -> None:
    node.publish(ENTRIES)
    outcome = node.run()
    assert outcome.degraded == []
    assert [found.entries for found in seeded(outcome)["numba"].bundles] == [["m/f"]]
    assert node.cached() == {"numba/m/f.nbi": b"index", "numba/m/f.1.nbc": b"data"}
    assert (node.cache / "numba/m/f.nbi").stat().st_mtime_ns == MTIME_NS
    assert [remark["about"] for remark in result(node.context)["remarks"]] == ["numba"]
    cache = caches(node)["numba"]
    assert (cache["way"], cache["entries"], cache["scopes"]) == ("extraction", 1, [SCOPES[1]])
    assert cache["fetched_bytes"] > 0


@pytest.mark.parametrize("overlays", [True, False])
def test_the_names_of_entries_are_recorded_only_where_they_were_needed(node: Node, overlays: bool) -> None:
    """All rows of one listing are shown, so what to hide is known to who wrote it."""
    node.publish({name: {f"{name}.nbi": name.encode(), f"{name}.old": b"x"} for name in ("m/a", "m/b")})
    node.publish({"m/b": {"m/b.nbi": b"new"}, "m/c": {"m/c.nbi": b"c"}}, fresh=True)
    shown = node.overlays() if overlays else []
    outcome = node.run()
    top, below = seeded(outcome)["numba"].bundles
    assert (caches(node)["numba"]["entries"], outcome.degraded) == (3, [])
    if overlays:
        assert shown == [("numba", 2, ["m/b.old"])]
        assert (top.entries, top.number, below.entries, below.number) == ([], 2, [], 1)
    else:
        assert (sorted(top.entries), below.entries) == (["m/b", "m/c"], ["m/a"])
        assert node.cached() == {
            "numba/m/a.nbi": b"m/a", "numba/m/a.old": b"x", "numba/m/b.nbi": b"new", "numba/m/c.nbi": b"c",
        }  # fmt: skip


def test_what_a_user_has_wins_over_what_others_share(node: Node) -> None:
    """Names and lists of files tell, as nobody has written down what to hide in two listings."""
    node.publish({name: {f"{name}.nbi": b"site", f"{name}.old": b"x"} for name in ("m/a", "m/b")}, scope=SCOPES[0])
    node.publish({"m/b": {"m/b.nbi": b"own"}})
    shown = node.overlays()
    assert [bundle.entries for bundle in seeded(node.run())["numba"].bundles] == [["m/b"], ["m/a"]]
    assert shown == [("numba", 2, ["m/b.old"])]
    assert caches(node)["numba"]["scopes"] == sorted(SCOPES)


def test_a_bundle_that_does_not_come_hides_what_it_would_cover(node: Node) -> None:
    """An old version must not be shown in place of the new one."""
    node.publish({"m/a": {"m/a.nbi": b"a"}, "m/b": {"m/b.nbi": b"old"}})
    node.publish({"m/b": {"m/b.nbi": os.urandom(50_000)}}, fresh=True)
    keep(node, 20_000)
    shown = node.overlays()
    assert [bundle.entries for bundle in seeded(node.run())["numba"].bundles] == [["m/a"]]
    assert shown == [("numba", 1, ["m/b.nbi"])]


def test_more_bundles_than_an_overlay_has_layers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed, "MOST_LAYERS", 2)
    for name in ("m/a", "m/b", "m/c"):
        node.publish({name: {f"{name}.nbi": b"x"}})
    shown = node.overlays()
    assert [bundle.entries for bundle in seeded(node.run())["numba"].bundles] == [["m/a"], ["m/b"]]
    (remark,) = result(node.context)["remarks"]
    assert (shown, remark["text"].startswith("1 bundles were left out: ")) == ([("numba", 2, [])], True)


def test_what_the_jobs_own_process_does_is_nobody_elses_fault(node: Node) -> None:
    node.publish(ENTRIES)
    node.run()
    (about,) = Path(node.context.paths.bundles).glob("*.json")
    place, files = map(json.loads, about.read_text().split("\n"))
    files["m/f"]["m/gone"] = [1, "ab" * 32, MTIME_NS]
    about.write_text(f"{json.dumps(place)}\n{json.dumps(files)}")
    outcome = node.run()
    assert [error.code for error in outcome.degraded] == ["disk-failed"]
    assert cold(node) == {"numba": "disk-failed"}


def test_the_budget_of_bytes_is_one_for_all(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would go over it stays cold, and is told; the rest is seeded."""
    node.publish(ENTRIES)
    node.publish({"m/z": {"m/z.nbi": os.urandom(50_000)}})
    monkeypatch.setattr(seed, "MOST_BYTES", 20_000)
    outcome = node.run()
    assert ([found.entries for found in seeded(outcome)["numba"].bundles], outcome.degraded) == ([["m/f"]], [])
    texts = [remark["text"] for remark in result(node.context)["remarks"]]
    assert any(text.startswith("1 bundles were left out: ") for text in texts)
    assert (caches(node)["numba"]["warm"], cold(node)) == (True, {})


@pytest.mark.parametrize(("change", "reason"), [("budget", "bundles-left-out"), ("format", "bundles-refused")])
def test_why_all_of_a_profile_is_cold(node: Node, change: str, reason: str) -> None:
    node.publish(ENTRIES, scope=SCOPES[0])
    if change == "budget":
        keep(node, 20)
    else:
        (listing,) = Path(node.context.store.path).rglob("listing/0*")
        listing.rename(listing.with_name("00000009"))
    node.run()
    assert cold(node) == {"numba": reason}


def test_a_store_that_fails_leaves_the_job_cold(node: Node) -> None:
    Path(node.context.store.path).rename(node.root / "away")
    outcome = node.run()
    assert [type(error) for error in outcome.degraded] == [StoreFailed]
    assert seeded(outcome)["numba"].bundles == []


def test_a_damaged_bundle_leaves_its_profile_cold(node: Node) -> None:
    bundle = node.publish(ENTRIES)
    node.publish({"runtime_cache.bin": {"runtime_cache.bin": b"k"}}, "trt-rtx")
    (path,) = Path(node.context.store.path).rglob(f"{bundle}.sqsh")
    path.chmod(0o600)
    path.write_bytes(b"x" * path.stat().st_size)
    outcome = node.run(Options(("numba", "trt-rtx")))
    assert [error.code for error in outcome.degraded] == ["bundle-damaged"]
    assert (caches(node)["trt-rtx"]["warm"], cold(node)) == (True, {"numba": "bundle-damaged"})
    assert node.cached().keys() == {"trt-rtx/runtime_cache.bin"}


def test_what_each_entry_is_from_is_recorded(node: Node) -> None:
    bundle = node.publish({"runtime_cache.bin": {"runtime_cache.bin": b"k"}}, "trt-rtx")
    node.publish(ENTRIES)
    found = seeded(node.run(Options(("trt-rtx", "numba"))))
    (given,) = found["trt-rtx"].bundles
    assert (given.scope, given.sha256, given.entries) == (SCOPES[1], bundle, ["runtime_cache.bin"])
    assert os.path.exists(f"{node.context.paths.bundles}/{given.sha256}.sqsh")
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


SHARED = Options(("deepgemm",), barrier=Barrier.of(("test", 64201), 7, 0, "caches", "n[1-2]"))


@pytest.fixture
def nodes(node: Node, tmp_path: Path) -> list[Node]:
    """Give the two nodes of a job, which show overlays; the first one is the head."""
    (tmp_path / "other").mkdir()
    other = Node(tmp_path / "other", node.patch)
    store = StoreClient(node.context.policy.store_user, node.context.store.path, "n2-0a1b2c3d")
    paths = other.context.policy.paths._replace(store=node.context.store.path)
    other.context = other.context._replace(store=store, policy=other.context.policy._replace(paths=paths))
    for number, one in enumerate((node, other), 1):
        one.context = one.context._replace(run=one.context.run._replace(node=f"n{number}", nodelist="n[1-2]"))
        (one.cache / "deepgemm").mkdir()
    node.patch.setattr(node_cache, "mounted", lambda _, paths, __: [os.open(path, os.O_RDONLY) for path in paths])
    node.patch.setattr(overlay, "show", lambda *_: True)
    node.patch.setattr(overlay_end, "discard", lambda *_: None)
    return [node, other]


def together(nodes: list[Node]) -> list[dict[str, Any]]:
    """Seed on both nodes side by side; return what each one's log says of the profile."""
    outcomes: dict[int, Outcome] = {}
    threads = [
        threading.Thread(target=lambda n=n: outcomes.update({n: nodes[n].run(SHARED)}), name=str(n)) for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    return [caches(node)["deepgemm"] for node in nodes]


def test_all_nodes_show_the_generation_that_the_head_proposes(nodes: list[Node]) -> None:
    """Also where another is there when they look."""
    made = nodes[0].publish({"a": {"a.x": b"a"}}, "deepgemm")
    real = seed._Seeding._agree

    def published(*given: Any, **named: Any) -> None:  # noqa: ANN401 - of `_agree`
        if given[0]._context.run.node == "n1":
            nodes[0].publish({"b": {"b.x": b"b"}}, "deepgemm")
        real(*given, **named)

    nodes[0].patch.setattr(seed._Seeding, "_agree", published)
    told = together(nodes)
    assert [(cache["warm"], cache["bundle_ids"]) for cache in told] == [(True, [made])] * 2


@pytest.mark.parametrize("short", [0, 1, None])
def test_what_one_node_cannot_show_is_cold_on_both(nodes: list[Node], short: int | None) -> None:
    nodes[0].publish({"a": {"a.x": b"a"}}, "deepgemm")
    nodes[0].publish({"b": {"b.x": os.urandom(50_000)}}, "deepgemm")
    reason = "nodes-differ: gpu" if short is None else "fetch-over-budget"
    if short is not None:
        keep(nodes[short], 20_000)
    else:
        real = facts.derive

        def derive(*given: Any) -> dict[str, str]:  # noqa: ANN401 - of `derive`
            return real(*given) | ({"gpu": "another"} if threading.current_thread().name == "1" else {})

        nodes[0].patch.setattr(facts, "derive", derive)
    told = together(nodes)
    assert [(cache["warm"], cache["cold"]) for cache in told] == [(False, reason)] * 2
