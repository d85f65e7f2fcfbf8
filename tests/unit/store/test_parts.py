"""What the nodes of a run hand in: when it is due, what counts against whom, and what is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.lib.bundles import OWNER, PRODUCER, draft, namespace, publish
from warmstart.host.files import opened_dir
from warmstart.store import atomic, parts
from warmstart.store.bundles import BundleDamaged, BundleGone, QuotaExceeded
from warmstart.store.layout import StoreFailed
from warmstart.store.manifest import Base, Draft, ManifestUnreadable
from warmstart.store.parts import PartsFull, RunParts, Standing

NODES = "n[1-3]"
LATER = 1e12  # long after


@pytest.fixture
def run(tmp_path: Path) -> RunParts:
    """Return where the nodes of one run hand in."""
    return RunParts(str(tmp_path), parts.name_of(1000, "c", 7, 0))


def hand_in(run: RunParts, *entries: str, content: bytes = b"bytes", quota: int = 0, made: Draft | None = None) -> str:
    """Hand in a part with these entries, of a user's scope."""
    fd = os.memfd_create("part")
    try:
        os.write(fd, content)
        return parts.hand_in(run, namespace(Path(run.store)), fd, made or draft(*entries), NODES, OWNER, quota)
    finally:
        os.close(fd)


def finish(run: RunParts, *nodes: str) -> Standing:
    """Let nodes say that they hand in nothing more."""
    return [parts.finish(run, OWNER, node, NODES) for node in nodes][-1]


def due(run: RunParts, now: float | None = None) -> list[str]:
    """Return which runs are due."""
    return parts.due(run.store, now or time.time())


def test_a_run_is_due_when_all_its_nodes_have_handed_in(run: RunParts) -> None:
    """In any order, and whatever they had."""
    hand_in(run, "a")
    assert finish(run, "n3", "n1").missing == ["n2"]
    assert due(run) == []
    assert finish(run, "n2")[1:3] == ([], 1)
    assert due(run) == [run.name]


def test_a_run_is_due_when_its_first_part_has_waited_long(run: RunParts) -> None:
    """Nodes are lost, and their names are known."""
    hand_in(run, "a")
    assert (due(run), due(run, LATER)) == ([], [run.name])
    listing = parts.listing(run)
    assert listing is not None
    assert (listing.standing.nodelist, listing.standing.missing) == (NODES, ["n1", "n2", "n3"])


def test_a_run_that_made_nothing_leaves_nothing(run: RunParts) -> None:
    """Its last node removes what the others wrote."""
    assert finish(run, "n1", "n2").missing == ["n3"]
    finish(run, "n3")
    assert os.listdir(f"{run.store}/parts") == due(run) == []
    assert parts.listing(run) is None


@pytest.mark.parametrize(("module", "name"), [(atomic, "publish"), (atomic, "unlink_if_there")])
def test_two_last_nodes_leave_nothing(
    run: RunParts, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    """One sees the other's word, and clears up before the other has looked."""

    def seen_by_another(*arguments: Any) -> Any:  # noqa: ANN401 - as the real one
        done = real(*arguments)
        parts.remove(run, [])
        return done

    real = getattr(module, name)
    finish(run, "n1", "n2")
    monkeypatch.setattr(module, name, seen_by_another)
    assert finish(run, "n3")[1:3] == ([], 0)
    assert os.listdir(f"{run.store}/parts") == []


def test_a_part_comes_back_as_it_was_handed_in(run: RunParts) -> None:
    """With what the job found stale, which a manifest does not tell."""
    made = draft("a")._replace(based_on={"a": Base("site", "ab" * 32), "gone": Base("user-1", "cd" * 32)}, fresh=True)
    bundle = hand_in(run, made=made)
    handed = parts.read(run, bundle)
    assert (handed.manifest.producer, handed.manifest.entries) == (PRODUCER, made.entries)
    assert (handed.based_on, handed.fresh) == (made.based_on, True)
    copy = os.memfd_create("copy")
    parts.fetch(run, bundle, handed.manifest.sha256, handed.manifest.size, copy)
    assert os.pread(copy, 100, 0) == b"bytes"
    os.close(copy)


def test_the_entries_that_others_have_handed_in(run: RunParts) -> None:
    """Those of the same namespace alone."""
    hand_in(run, "a", "b")
    hand_in(run, "b", "c", content=b"other")
    where = namespace(Path(run.store))
    assert parts.entries(run, where) == ["a", "b", "c"]
    assert parts.entries(run, where._replace(name="other")) == []
    assert parts.entries(run._replace(name="1000.c.8.0"), where) == []


def test_what_comes_while_others_are_merged_stays(run: RunParts) -> None:
    """It is merged by itself; only the last part takes the directory along."""
    merged, late = hand_in(run, "a"), hand_in(run, "b", content=b"late")
    finish(run, "n1", "n2", "n3")
    parts.remove(run, [merged])
    listing = parts.listing(run)
    assert listing is not None
    assert [part.bundle for part in listing.parts] == [late]
    assert due(run) == [run.name]
    parts.remove(run, [late])
    assert os.listdir(f"{run.store}/parts") == []
    with pytest.raises(BundleGone):
        parts.read(run, late)


def test_a_writer_at_work_keeps_the_directory(run: RunParts) -> None:
    """What it has not finished is nobody's to remove, until a day has passed."""
    bundle = hand_in(run, "a")
    temporary = Path(run.path, ".tmp-n2-1")
    temporary.touch()
    parts.remove(run, [bundle])
    assert os.listdir(run.path) == [temporary.name]


def test_one_process_merges_a_run(run: RunParts) -> None:
    """Whoever comes after it, and finds nothing, does nothing."""
    assert not parts.lock(run)
    bundle = hand_in(run, "a")
    assert parts.lock(run)
    assert not parts.lock(run)
    parts.remove(run, [bundle])
    parts._held.pop().release()
    assert not os.path.exists(run.path)


def test_the_directory_of_locks_goes_although_who_removes_holds_the_lock(
    run: RunParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps an unlinked file that somebody has open, under another name, until it is closed."""
    unlink, held = os.unlink, set[str]()

    def silly(name: str, *, dir_fd: int | None = None) -> None:
        if name != "merge":
            unlink(name, dir_fd=dir_fd)
            return
        os.rename(name, ".nfs7", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        held.add(f"{run.path}/locks/.nfs7")

    bundle = hand_in(run, "a")
    assert parts.lock(run)
    monkeypatch.setattr(os, "unlink", silly)
    parts.remove(run, [bundle])
    parts._held.pop().release()
    for path in held:
        unlink(path)
    parts.unlock(run)
    assert not os.path.exists(run.path)


def test_what_others_have_handed_in_stays_when_the_lock_goes(run: RunParts) -> None:
    """Their last words, too: a merge that found the run not due takes none of them."""
    finish(run, "n1")
    assert parts.lock(run)
    parts._held.pop().release()
    parts.unlock(run)
    assert sorted(os.listdir(run.path)) == ["locks", "n1.done"]
    assert finish(run, "n2").missing == ["n3"]


@pytest.mark.threat(47)
def test_the_parts_of_a_run_are_bounded(run: RunParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes it has; manifests count."""
    monkeypatch.setattr(parts, "MOST_BYTES", 2000)
    hand_in(run, "a", content=b"x" * 500)
    with pytest.raises(PartsFull, match="are above the bound of 2000"):
        hand_in(run, "b", content=b"x" * 1200)


def test_a_node_of_a_thousand_looks_at_a_few_files(run: RunParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all of them ask of the store grows with their number, not with its square."""
    monkeypatch.setattr(parts, "_MOST_PARTS", 2)
    monkeypatch.setattr(parts, "_MOST_LOOKED_AT", 4)
    for number in range(8):
        hand_in(run, f"e{number}", content=b"x" * 500)  # as large as its manifest
    looked: list[str] = []
    stat = os.stat

    def counted(name: str, **more: Any) -> os.stat_result:  # noqa: ANN401 - as os.stat
        looked.append(name)
        return stat(name, **more)

    monkeypatch.setattr(os, "stat", counted)
    assert parts.entries(run, namespace(Path(run.store))) == ["e0", "e1"]
    with opened_dir(run.path) as fd:
        assert 16 * 400 < parts._size(fd) < 16 * 600
    assert len(looked) == 2 + 4


@pytest.mark.threat(47)
def test_parts_count_against_the_quota(run: RunParts) -> None:
    """Those of all runs of the user, beside what is published; not those of others."""
    publish(Path(run.store), "published", content=b"x" * 1000)
    hand_in(run._replace(name="1001.c.6.0"), "a", content=b"x" * 4000)
    hand_in(run._replace(name="1000.c.6.0"), "a", content=b"x" * 1000, quota=4500)
    with pytest.raises(QuotaExceeded):
        hand_in(run, "b", content=b"x" * 1000, quota=4500)


def test_a_damaged_part_is_named(run: RunParts) -> None:
    """A manifest that cannot be read, and a squashfs of other bytes."""
    bad, torn = hand_in(run, "a"), hand_in(run, "b", content=b"other")
    handed = parts.read(run, torn)
    for name, content in ((f"{bad}.json", "{}"), (f"{torn}.sqsh", "torn")):
        Path(run.path, name).chmod(0o600)
        Path(run.path, name).write_text(content)
    listing = parts.listing(run)
    assert listing is not None
    assert ([*listing.damaged], [part.bundle for part in listing.parts]) == ([bad], [torn])
    with pytest.raises(ManifestUnreadable):
        parts.read(run, bad)
    copy = os.memfd_create("copy")
    with pytest.raises(BundleDamaged):
        parts.fetch(run, torn, handed.manifest.sha256, handed.manifest.size, copy)
    os.close(copy)


def test_a_last_word_that_cannot_be_read(run: RunParts) -> None:
    """The next file tells who the nodes are; without any the run waits its hour."""
    hand_in(run, "a")
    finish(run, "n1", "n2", "n3")
    for node in ("n1", "n2", "n3"):
        Path(run.path, f"{node}.done").chmod(0o600)
        Path(run.path, f"{node}.done").write_text("[]")
    assert due(run) == [run.name]
    (manifest,) = Path(run.path).glob("*.json")
    manifest.chmod(0o600)
    manifest.write_text("[]")
    assert (due(run), due(run, LATER)) == ([], [run.name])


def test_a_store_that_is_not_mounted(tmp_path: Path) -> None:
    """Nothing is made in its place."""
    run = RunParts(str(tmp_path / "away"), "1000.c.7.0")
    with pytest.raises(StoreFailed):
        hand_in(run, "a")
    with pytest.raises(StoreFailed):
        finish(run, "n1")
    assert parts.due(run.store, LATER) == []
    assert parts.listing(run) is None
    assert not (tmp_path / "away").exists()


def test_a_directory_names_the_job() -> None:
    """By which its events are found if nothing else of it can be read."""
    assert parts.labels(parts.name_of(2001, "my.cluster", 7, 1)) == {"uid": 2001, "job_id": 7}
    assert parts.labels("else") == {}
    with pytest.raises(ValueError, match="not a run's name"):
        _ = RunParts("/store", "../x").path
