"""Kill publishers, maintenance and the spool at every call: readers see whole bundles, and nothing published is lost.

What a bundle holds does not matter here.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import filelock  # noqa: F401 - so that not every child imports it
import pytest

from tests.lib.bundles import OWNER, add_offered, draft, namespace, publish
from tests.lib.policy_site import defaults
from tests.lib.vanish import VANISHED, WHENS, vanishes
from warmstart.harvest import spool
from warmstart.harvest.spool import Spooled
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.store import bundles, index, layout, maintenance
from warmstart.store.bundles import BundleGone
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace

ME = Identity("me", os.getuid(), os.getgid())
# No quota: measuring it would take more calls each time.
RULES = defaults().maintenance._replace(keep=1, per_user=0)


def seen(store: Path, gone: frozenset[str] = frozenset()) -> dict[str, str]:
    """Fetch everything offered and return each entry's bundle. Only bundles in `gone` may be gone."""
    found: dict[str, str] = {}
    for offer in bundles.offers(str(store), ["user-1"], "numba", "ns", OWNER).offers:
        fd = os.memfd_create("copy")
        try:
            files = bundles.fetch(namespace(store), offer, fd)
        except BundleGone:
            assert offer.bundle in gone
            continue
        finally:
            os.close(fd)
        add_offered(found, offer, files)
    return found


def sweep(act: Callable[[int], object], check: Callable[[], object], when: str, least: int) -> None:
    """Let `act` vanish at each of its calls and check after each. At least `least` calls must have been swept."""
    for call in count(1):
        died = vanishes(lambda call=call: act(call), call, when)  # type: ignore[misc]
        check()
        if not died:
            assert call > least
            return


def merge(store: Path, number: int = 0) -> str | None:
    """Compact everything without unpacking, because the content does not matter."""
    (merger,) = plan(store)
    names = sorted(entry for entries in merger.entries.values() for entry in entries)
    fd = os.memfd_create("merged")
    os.write(fd, b"merged %d " % number + "".join(merger.sources).encode())
    text = draft(*names)._replace(replaces=merger.sources)
    made = bundles.publish_compacted(namespace(store), fd, text, OWNER)
    os.close(fd)
    return made.bundle


def plan(store: Path) -> list[maintenance.Merger]:
    """Return what a compaction of two bundles or more would merge."""
    return maintenance.plan_compaction(namespace(store), OWNER, 2, 1 << 30)


@WHENS
def test_a_publisher_killed_at_any_step(tmp_path: Path, when: str) -> None:
    """Its bundle is there whole or not at all, and the next publisher's index lists all bundles."""
    for call in count(1):
        entry = f"e{call}"
        died = vanishes(lambda entry=entry: publish(tmp_path, entry, content=entry.encode()), call, when)  # type: ignore[misc]
        visible = seen(tmp_path)
        publish(tmp_path, f"after-{call}", content=b"%d" % call)
        complete = seen(tmp_path)
        assert complete.items() > visible.items()
        manifests = {path.stem for path in Path(namespace(tmp_path).path).glob("*Z-*.json")}
        assert manifests == set(complete.values())
        if not died:
            assert call > 15
            assert entry in complete
            return


@WHENS
def test_a_compaction_killed_at_any_step(tmp_path: Path, when: str) -> None:
    """After every kill each entry is there once, and the next compaction continues."""
    expected = set()
    for number in range(3):
        publish(tmp_path, f"e{number}", "shared", content=b"%d" % number)
        expected |= {f"e{number}", "shared"}

    def act(call: int) -> None:
        if plan(tmp_path):
            merge(tmp_path, call)
        else:  # a death before had done it: something to compact again
            publish(tmp_path, f"more-{call}", content=b"%d" % call)

    def check() -> None:
        assert seen(tmp_path).keys() >= expected
        expected.update(seen(tmp_path))

    sweep(act, check, when, 20)
    if plan(tmp_path):
        merge(tmp_path)
    assert seen(tmp_path).keys() == expected


@WHENS
def test_a_removal_of_replaced_bundles_killed_at_any_step(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries stay available, and a last run removes all that is superfluous."""
    monkeypatch.setattr(maintenance, "GRACE_SECONDS", -60.0)
    monkeypatch.setattr(maintenance, "ORPHAN_SECONDS", -60.0)

    def act(where: Namespace) -> None:
        maintenance.remove(where, OWNER, maintenance.superseded(where, OWNER, time.time()))
        maintenance.sweep(where, OWNER, time.time())

    for call in count(1):
        store = tmp_path / str(call)
        where = namespace(store)
        store.mkdir()
        for number in range(3):
            publish(store, f"e{number}", content=b"%d" % number)
        merge(store)
        before = seen(store)
        died = vanishes(lambda where=where: act(where), call, when)  # type: ignore[misc]
        assert seen(store) == before
        act(where)
        assert sorted(path.suffix for path in Path(where.path).glob("*Z-*")) == [".json", ".sqsh"]
        assert seen(store) == before
        if not died:
            assert call > 10
            return


@WHENS
def test_a_collection_and_a_quarantine_killed_at_any_step(tmp_path: Path, when: str) -> None:
    """The bundle to remove is whole or gone. Its neighbour is untouched."""
    where = namespace(tmp_path)
    kept = publish(tmp_path, "kept").bundle
    for act in (maintenance.remove, maintenance.quarantine):
        for call in count(1):
            going = publish(tmp_path, "going", content=b"%d %d" % (call, time.time_ns())).bundle or ""
            names = [going] if act is maintenance.remove else going
            died = vanishes(lambda names=names, act=act: act(where, OWNER, names), call, when)  # type: ignore[misc]
            assert seen(tmp_path, frozenset({going}))["kept"] == kept
            act(where, OWNER, names)  # type: ignore[arg-type]
            assert seen(tmp_path) == {"kept": kept}
            if not died:
                assert call > 8
                break


def pack_into(stage: Path, entry: str) -> Spooled:
    """Make a run's stage with a bundle, as a harvest does."""
    stage.mkdir(parents=True)
    (stage / "bundle.sqsh").write_bytes(f"bundle of {entry}".encode())
    return Spooled("user-1", "numba", "ns", draft(entry), f"7.0a1b2c3d.{entry}")


@WHENS
def test_spooling_killed_at_any_step(tmp_path: Path, when: str) -> None:
    """Whatever is in the spool is whole and is published, even if its epilog did not finish."""
    directory, store = str(tmp_path / "spool"), tmp_path / "store"
    store.mkdir()
    done = set()
    for call in count(1):
        entry = f"e{call}"
        stage = tmp_path / "stages" / entry
        item = pack_into(stage, entry)
        died = vanishes(lambda stage=stage, item=item: spool.add(directory, str(stage), item, 1 << 30), call, when)  # type: ignore[misc]
        there = os.listdir(directory) if os.path.isdir(directory) else []
        with StoreClient(ME, str(store), OWNER) as client:
            delivered = list(spool.deliver(directory, client, RULES, after(20)))
        assert len(delivered) == len(there)
        assert [one.reason for one in delivered] == [""] * len(there)
        done |= {entry} if there else set()
        assert seen(store).keys() == done
        if not died:
            assert call > 5
            assert entry in done
            return


def deliver(directory: str, store: Path) -> None:
    """Publish the spool. A worker that vanishes takes its parent along."""
    try:
        list(spool.deliver(directory, StoreClient(ME, str(store), OWNER), RULES, after(20)))
    except WorkerSilent:
        os._exit(VANISHED)


@WHENS
def test_a_delivery_killed_at_any_step(tmp_path: Path, when: str) -> None:
    """The bundle stays in the spool until the store has it; published twice, it is there once."""
    directory, store = str(tmp_path / "spool"), tmp_path / "store"
    store.mkdir()
    for call in count(1):
        entry = f"e{call}"
        stage = tmp_path / "stages" / entry
        spool.add(directory, str(stage), pack_into(stage, entry), 1 << 30)
        died = vanishes(lambda: deliver(directory, store), call, when)
        assert entry in seen(store) or os.listdir(directory)
        until = after(20)
        while os.listdir(directory):  # the worker of who vanished may hold its lock for a moment
            assert not until.expired()
            deliver(directory, store)
        assert entry in seen(store)
        if not died:
            assert call > 10
            break
    assert len(seen(store)) == call


def test_two_publishers_and_a_compaction_at_once(tmp_path: Path) -> None:
    """In twenty rounds every reader sees each entry once and whole, from then on always."""
    where = namespace(tmp_path)
    os.close(layout.make_namespace(where))  # a compaction may come before the first publisher

    def publishing(me: int) -> None:
        for turn in range(20):
            publish(tmp_path, f"shared-{turn}", f"own-{me}-{turn}", content=b"%d %d" % (me, turn))

    def compacting() -> None:
        for turn in range(20):
            if plan(tmp_path):
                merge(tmp_path, turn)

    pids = []
    acts: list[Callable[[], None]] = [partial(publishing, 0), partial(publishing, 1), compacting]
    for act in acts:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                act()
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    last: set[str] = set()
    for _ in range(20):
        now = set(seen(tmp_path))
        assert now >= last
        last = now
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    found = seen(tmp_path)
    assert found.keys() == {f"{kind}-{turn}" for turn in range(20) for kind in ("shared", "own-0", "own-1")}
    assert len({hashlib.sha256(p.read_bytes()).digest() for p in Path(where.path).glob("*.sqsh")}) > 20
    assert index.read(where.path, OWNER).refused == {}
