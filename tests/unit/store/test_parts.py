"""What the nodes of a run hand in: when it is due, and what counts against whom. tests/node/test_parts.py merges it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, PRODUCER, draft, memory_file, namespace, publish
from warmstart.store import parts
from warmstart.store.bundles import BundleDamaged, BundleGone, QuotaExceeded
from warmstart.store.index import HarvestTooLarge
from warmstart.store.manifest import Base, Draft, ManifestUnreadable
from warmstart.store.parts import RunParts, Standing

NODES = "n[1-3]"
LATER = 1e12


@pytest.fixture
def run(tmp_path: Path) -> RunParts:
    return RunParts(str(tmp_path), parts.name_of(1000, "c", 7, 0))


def hand_in(run: RunParts, *entries: str, content: bytes = b"bytes", quota: int = 0, made: Draft | None = None) -> str:
    with memory_file(content) as fd:
        return parts.hand_in(run, namespace(Path(run.store)), fd, made or draft(*entries), NODES, OWNER, quota)


def finish(run: RunParts, *nodes: str) -> Standing:
    return [parts.finish(run, OWNER, node, NODES) for node in nodes][-1]


def due(run: RunParts, now: float | None = None) -> list[str]:
    return parts.due(run.store, now or time.time())


def test_a_run_is_due_when_all_its_nodes_have_handed_in_or_the_first_part_has_waited_long(run: RunParts) -> None:
    hand_in(run, "a")
    assert (due(run), due(run, LATER)) == ([], [run.name])
    assert finish(run, "n3", "n1").missing == ["n2"]
    assert due(run) == []
    assert finish(run, "n2").missing == []
    assert due(run) == [run.name]


def test_a_run_that_made_nothing_leaves_nothing(run: RunParts) -> None:
    assert finish(run, "n1", "n2").missing == ["n3"]
    assert finish(run, "n3")[1:3] == ([], 0)
    assert os.listdir(f"{run.store}/parts") == due(run) == []
    assert parts.listing(run) is None


def test_one_process_merges_a_run(run: RunParts) -> None:
    with pytest.raises(ValueError, match="not a run's name"):
        parts.lock(RunParts(run.store, "../x"))
    assert not parts.lock(run)  # of what is not there
    bundle = hand_in(run, "a")
    assert parts.lock(run)
    assert not parts.lock(run)
    parts.remove(run, [bundle])
    parts._held.pop().release()
    parts.unlock(run)
    assert not os.path.exists(run.path)


def test_what_others_have_handed_in_for_the_same_namespace_is_known(run: RunParts) -> None:
    where = namespace(Path(run.store))
    hand_in(run, "a", "b")
    hand_in(run, "b", "c", content=b"other")
    assert parts.entries(run, where) == ["a", "b", "c"]
    assert parts.entries(run, where._replace(name="other")) == []


def test_a_part_comes_back_as_it_was_handed_in_with_what_the_job_found_stale(run: RunParts) -> None:
    made = draft("a")._replace(based_on={"a": Base("site", "ab" * 32), "gone": Base("user-1", "cd" * 32)}, fresh=True)
    bundle = hand_in(run, made=made)
    handed = parts.read(run, bundle)
    assert (handed.manifest.producer, handed.manifest.entries) == (PRODUCER, made.entries)
    assert (handed.based_on, handed.fresh) == (made.based_on, True)
    copy, again = os.memfd_create("copy"), os.memfd_create("again")
    parts.fetch(run, bundle, handed.manifest.sha256, handed.manifest.size, copy)
    assert os.pread(copy, 100, 0) == b"bytes"
    Path(run.path, f"{bundle}.sqsh").chmod(0o600)
    Path(run.path, f"{bundle}.sqsh").write_text("torn")
    with pytest.raises(BundleDamaged):
        parts.fetch(run, bundle, handed.manifest.sha256, handed.manifest.size, again)
    for fd in (copy, again):
        os.close(fd)


def test_a_description_that_cannot_be_read_hides_no_other(run: RunParts) -> None:
    bad, good = hand_in(run, "a"), hand_in(run, "b", content=b"other")
    finish(run, "n1", "n2", "n3")
    for name in (f"{bad}.json", "n1.done", "n2.done", "n3.done"):
        Path(run.path, name).chmod(0o600)
        Path(run.path, name).write_text("[]")
    listing = parts.listing(run)
    assert listing is not None
    assert ([*listing.damaged], [part.bundle for part in listing.parts]) == ([bad], [good])
    with pytest.raises(ManifestUnreadable):
        parts.read(run, bad)
    assert due(run) == [run.name]  # the other one tells who the nodes are
    Path(run.path, f"{good}.json").chmod(0o600)
    Path(run.path, f"{good}.json").write_text("[]")
    assert (due(run), due(run, LATER)) == ([], [run.name])


def test_what_comes_or_is_written_while_others_are_merged_stays(run: RunParts) -> None:
    merged, late = hand_in(run, "a"), hand_in(run, "b", content=b"late")
    finish(run, "n1", "n2", "n3")
    parts.remove(run, [merged])
    listing = parts.listing(run)
    assert listing is not None
    assert [part.bundle for part in listing.parts] == [late]
    temporary = Path(run.path, ".tmp-n2-1")
    temporary.touch()
    parts.remove(run, [late])
    assert os.listdir(run.path) == [temporary.name]
    temporary.unlink()
    parts.remove(run, [])
    assert os.listdir(f"{run.store}/parts") == []
    with pytest.raises(BundleGone):
        parts.read(run, late)


@pytest.mark.threat(47)
def test_the_parts_of_a_run_are_bounded(run: RunParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 2000)
    hand_in(run, "a", content=b"x" * 500)
    with pytest.raises(HarvestTooLarge, match="are above the bound of 2000"):
        hand_in(run, "b", content=b"x" * 1200)


@pytest.mark.threat(47)
def test_parts_count_against_the_quota(run: RunParts) -> None:
    publish(Path(run.store), "published", content=b"x" * 1000)
    hand_in(run._replace(name="1001.c.6.0"), "a", content=b"x" * 4000)
    hand_in(run._replace(name="1000.c.6.0"), "a", content=b"x" * 1000, quota=4500)
    with pytest.raises(QuotaExceeded):
        hand_in(run, "b", content=b"x" * 1000, quota=4500)
