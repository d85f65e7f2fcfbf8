"""Harvest of a tree: what is copied, what is left out, and the tool's lock. Hostile owners are in tests/node."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib.collecting import collected
from warmstart.caches.store.layout import Entries
from warmstart.harvest import collect, scan, stage
from warmstart.harvest.collect import HELD, Collected, tool_lock
from warmstart.harvest.known import NOTHING_KNOWN, Known
from warmstart.host import copying, untrusted
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir, write_all
from warmstart.host.untrusted import Tree, TurnedAway
from warmstart.run.state import Seeded, SeededBundle


def entry_of(path: str) -> str | None:
    """Map `<dir>/<entry>.<n>` to the entry `<dir>/<entry>`, and all of `<name>.d/` to one entry."""
    if ".d/" in path or path.endswith(".d"):
        return path.partition(".d")[0] + ".d"
    if path.endswith(".lock") or "." not in path:
        return None
    return path.rpartition(".")[0]


class Harvest:
    """A job's tree and a stage, with a method that harvests."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self.stage = base / "stage"
        self.tree.mkdir()
        self.stage.mkdir()

    def write(self, **content_of: bytes) -> None:
        """Write files; `__` stands for `/` and the last `_` for the dot."""
        for name, content in content_of.items():
            path = self.tree / ".".join(name.replace("__", "/").rsplit("_", 1))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def collect(
        self,
        known: Known = NOTHING_KNOWN,
        *,
        size: int = 1 << 30,
        entries: int = 1000,
        settled_ns: int = 0,
    ) -> Collected:
        return collected(self.tree, self.stage, entry_of, known, size=size, entries=entries, settled_ns=settled_ns)

    def given(self) -> Entries:
        """Return the entries of the tree as it is; the stage is empty again."""
        entries = self.collect().entries
        self.empty_stage()
        return entries

    def empty_stage(self) -> None:
        shutil.rmtree(self.stage)
        self.stage.mkdir()

    def staged(self) -> dict[str, bytes]:
        """Return the paths in the stage; directories end in `/`."""
        return {
            str(path.relative_to(self.stage)) + "/" * path.is_dir(): b"" if path.is_dir() else path.read_bytes()
            for path in self.stage.rglob("*")
        }


@pytest.fixture
def harvest(tmp_path: Path) -> Harvest:
    return Harvest(tmp_path)


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def test_entries_arrive_whole_with_their_facts(harvest: Harvest, umask: None) -> None:
    harvest.write(m__a_1=b"one", m__a_2=b"two!", n_x=b"")
    os.utime(harvest.tree / "m/a.1", ns=(5, 1_700_000_000_123_456_789))
    os.chmod(harvest.tree / "m/a.1", 0o4777)
    got = harvest.collect()
    assert sorted(got.entries) == ["m/a", "n"]
    file = got.entries["m/a"]["m/a.1"]
    assert file == (3, hashlib.sha256(b"one").hexdigest(), 1_700_000_000_123_456_789)
    assert got.size == 7
    assert (got.found.rejected.counts, got.found.ignored.counts, got.truncated) == ({}, {}, "")
    assert harvest.staged() == {"m/": b"", "m/a.1": b"one", "m/a.2": b"two!", "n.x": b""}
    status = (harvest.stage / "m/a.1").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o644, 1_700_000_000_123_456_789)
    assert (harvest.stage / "m").stat().st_mode & 0o7777 == 0o755


def test_what_the_store_has_and_what_is_no_entry_stays(harvest: Harvest) -> None:
    harvest.write(a_1=b"1", a_2=b"2", b_1=b"3", c_lock=b"", locks__x=b"", größe=b"", readme=b"")
    got = harvest.collect(Known(Seeded("ns"), lambda _: {}, lambda: ["a"]))
    assert (list(got.entries), got.found.rejected.counts) == (["b"], {})
    assert got.found.ignored.counts == {scan.IN_PROGRESS: 2, scan.NO_ENTRY: 2}
    assert sorted(got.found.ignored.examples) == [("gr\\xf6\\xdfe", scan.NO_ENTRY), ("readme", scan.NO_ENTRY)]


@pytest.mark.report
def test_when_jax_used_an_entry_is_no_entry_that_is_lost(harvest: Harvest) -> None:
    """A warm job writes nothing else."""
    harvest.write(**{f"jit-{'ab' * 32}-atime": b"12345678"})
    assert harvest.collect().found.ignored.counts == {scan.IN_PROGRESS: 1}


def test_an_entry_with_one_bad_file_is_left_out(harvest: Harvest) -> None:
    harvest.write(good_1=b"1", link_1=b"1", fifo_1=b"1", hard_1=b"1", odd_1=b"1", odd_2=b"1")
    (harvest.tree / "link.2").symlink_to("/etc/passwd")
    os.mkfifo(harvest.tree / "fifo.2")
    os.link(harvest.tree / "hard.1", harvest.tree / "name-of-no-entry")
    (harvest.tree / "odd.2").rename(harvest.tree / "odd.\n")
    got = harvest.collect()
    assert list(got.entries) == ["good"]
    assert got.found.rejected.counts == {
        untrusted.LINK: 1, untrusted.SPECIAL: 1, untrusted.HARD_LINK: 1, scan.ODD_NAME: 1
    }  # fmt: skip
    assert ("odd.\\n", scan.ODD_NAME) in got.found.rejected.examples
    assert harvest.staged() == {"good.1": b"1"}


def test_a_link_in_the_place_of_the_cache_is_not_followed(harvest: Harvest, tmp_path: Path) -> None:
    harvest.write(a_1=b"x")
    harvest.tree.rename(tmp_path / "elsewhere")
    harvest.tree.symlink_to("elsewhere")
    assert harvest.collect().found.rejected.counts == {untrusted.SWAPPED: 1}
    assert harvest.staged() == {}


def test_what_the_job_changed_comes_first(harvest: Harvest) -> None:
    """So that a harvest that is cut short brings that."""
    harvest.write(a_1=b"1", b_1=b"1", c_1=b"1", d_1=b"1")
    entries = harvest.given()
    known = seeded({name: entries[name] for name in ("c", "d")})
    harvest.write(c_1=b"2", d_1=b"2")
    assert [*harvest.collect(known, entries=3).entries] == ["c", "d", "a"]


def test_no_more_entries_than_the_limit(harvest: Harvest) -> None:
    harvest.write(**{f"e{number}_1": b"x" for number in range(9)})
    got = harvest.collect(entries=3)
    assert sorted(got.entries) == ["e0", "e1", "e2"]
    assert got.truncated == collect.MOST_ENTRIES
    assert len(harvest.staged()) == 3


@pytest.mark.threat(15)
def test_no_more_bytes_than_the_limit(harvest: Harvest) -> None:
    """The entry that would exceed the limit leaves nothing in the stage."""
    harvest.write(a_1=b"x" * 60, b_1=b"x" * 30, b_2=b"x" * 30, c_1=b"x")
    got = harvest.collect(size=100)
    assert (sorted(got.entries), got.size, got.truncated) == (["a"], 60, collect.MOST_BYTES)
    assert harvest.staged().keys() == {"a.1"}


@pytest.mark.threat(15)
def test_names_are_bounded_by_their_length_too(harvest: Harvest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The total length of names is bounded, because root keeps them in memory and a manifest has a limit."""
    monkeypatch.setattr(scan, "MOST_NAME_BYTES", 100)
    harvest.write(**{f"{'n' * 20}{number}_1": b"x" for number in range(9)})
    got = harvest.collect()
    assert (got.entries, got.truncated) == ({}, scan.TOO_MANY_NAMES)


@pytest.mark.threat(15, 24)
def test_no_more_than_a_manifest_can_say(harvest: Harvest, monkeypatch: pytest.MonkeyPatch) -> None:
    harvest.write(**{f"{'n' * 100}{number}_1": b"x" for number in range(9)})
    whole = harvest.collect().entries
    harvest.empty_stage()
    monkeypatch.setattr(collect, "LONGEST_DRAFT", len(json.dumps(whole)) // 2)
    got = harvest.collect()
    assert (0 < len(got.entries) < 9, got.truncated) == (True, collect.MOST_NAMES)
    assert len(json.dumps(got.entries)) <= collect.LONGEST_DRAFT
    assert len(harvest.staged()) == len(got.entries)


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "link"])
def test_a_file_that_changes_while_it_is_read_is_left_out(
    harvest: Harvest, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    harvest.write(a_1=b"x" * 10, b_1=b"y")
    path = harvest.tree / "a.1"
    real = write_all

    def changes(fd: int, data: bytes) -> None:
        real(fd, data)
        if data[:1] == b"x":
            if change == "link":
                os.link(path, harvest.tree / "second")
            elif change == "touch":
                os.utime(path, ns=(1, 1))
            else:
                os.truncate(path, 11 if change == "grow" else 3)

    monkeypatch.setattr(copying, "write_all", changes)
    got = harvest.collect()
    assert (list(got.entries), got.found.rejected.counts) == (["b"], {stage.CHANGED: 1})
    assert harvest.staged() == {"b.1": b"y"}


def test_impossible_times_are_cut(harvest: Harvest) -> None:
    harvest.write(a_1=b"x", b_1=b"y")
    os.utime(harvest.tree / "a.1", ns=(0, -(10**18)))
    os.utime(harvest.tree / "b.1", ns=(0, 10**19 // 2))
    got = harvest.collect()
    assert got.entries["a"]["a.1"].mtime_ns == 0
    assert got.entries["b"]["b.1"].mtime_ns == (2**32 - 1) * 10**9


def test_of_a_job_that_runs_what_has_settled_is_taken(harvest: Harvest) -> None:
    """A file, or a directory that is the entry's alone, must not have changed of late."""
    harvest.write(old_1=b"1", old_2=b"2", half_1=b"1")
    for name in ("k.d", "m.d"):
        (harvest.tree / name).mkdir()
        (harvest.tree / name / "a").write_bytes(b"1")
    time.sleep(0.02)
    settled_ns = time.time_ns()
    time.sleep(0.02)
    harvest.write(half_2=b"2", new_1=b"3")
    (harvest.tree / "m.d/b").touch()
    (harvest.tree / "m.d/b").unlink()
    got = harvest.collect(settled_ns=settled_ns)
    assert sorted(got.entries) == ["k.d", "old"]
    assert harvest.staged().keys() == {"old.1", "old.2", "k.d/", "k.d/a"}
    harvest.empty_stage()
    assert sorted(harvest.collect().entries) == ["half", "k.d", "m.d", "new", "old"]


# A tool's lock file: the wait is bounded, and the file is opened with the checks for a job's files.


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with opened_dir(str(tmp_path)) as fd:
        opened = Tree(fd, mount_id(fd), os.getuid())
        yield opened
        opened.close()


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield


def test_a_reader_does_not_mind_readers(tree: Tree, tmp_path: Path) -> None:
    with held(tmp_path / "f.lock", fcntl.LOCK_SH), tool_lock(tree, "f.lock", after(1)):
        pass
    with (tmp_path / "f.lock").open() as file:
        with tool_lock(tree, "f.lock", after(1)), pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_writer_is_waited_for_until_the_deadline(tree: Tree, tmp_path: Path) -> None:
    writing = held(tmp_path / "f.lock", fcntl.LOCK_EX)
    with writing, pytest.raises(TurnedAway) as caught, tool_lock(tree, "f.lock", after(0.1)):
        pass
    assert caught.value.reason == HELD
    assert (tmp_path / "f.lock").exists()


@pytest.mark.threat(16)
@pytest.mark.parametrize("kind", ["link", "fifo", "hard link", "directory"])
def test_what_is_no_plain_file_is_not_locked(tree: Tree, tmp_path: Path, kind: str) -> None:
    """Root follows no link, does not wait for a FIFO's writer, and locks no file of another user."""
    lock, other = tmp_path / "f.lock", tmp_path / "other"
    other.touch()
    if kind == "link":
        lock.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(lock)
    elif kind == "hard link":
        lock.hardlink_to(other)
    else:
        lock.mkdir()
    with pytest.raises(TurnedAway) as caught, tool_lock(tree, "f.lock", after(1)):
        pass
    assert caught.value.reason in (untrusted.LINK, untrusted.SPECIAL, untrusted.HARD_LINK)


# What a job changed of its seeded entries.


def seeded(entries: Entries) -> Known:
    return Known(Seeded("ns", [SeededBundle("user-1", "ab" * 32, [*entries])]), lambda _: entries, lambda: ())


def test_changed_entries_of_an_extracted_cache(harvest: Harvest) -> None:
    harvest.write(same_1=b"1", touched_1=b"1", new_1=b"1")
    harvest.write(m__changed_1=b"1", m__grown_1=b"1", m__less_1=b"1", m__less_2=b"2", m__removed_1=b"1")
    given = harvest.given()
    del given["new"]
    for path in harvest.tree.rglob("*.*"):
        if path.name != "same.1":
            os.utime(path, ns=(1, 1))
    harvest.write(m__changed_1=b"2", m__grown_2=b"2")
    for name in ("m/less.2", "m/removed.1"):
        (harvest.tree / name).unlink()
    got = harvest.collect(seeded(given))
    assert got.changed == ["m/changed", "m/grown", "m/removed"]
    assert got.found.rejected.counts == {collect.EMPTIED: 1}
    assert sorted(got.entries) == ["m/changed", "m/grown", "new"]
    assert harvest.staged() == {
        "new.1": b"1", "m/": b"", "m/changed.1": b"2", "m/grown.1": b"1", "m/grown.2": b"2",
    }  # fmt: skip


def test_a_change_that_cannot_be_compared_is_left_out(harvest: Harvest) -> None:
    harvest.write(a_1=b"1", b_1=b"1")
    given = harvest.given()
    harvest.write(a_1=b"22")
    (harvest.tree / "b.1").unlink()
    (harvest.tree / "b.1").symlink_to("/etc/passwd")
    assert harvest.collect(seeded({**given, "a": {}})).changed == []
    assert harvest.collect(seeded(given)).found.rejected.counts == {untrusted.LINK: 1}
