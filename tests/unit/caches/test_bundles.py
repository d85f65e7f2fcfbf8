"""Bundles: what is published, fetched, refused and swept, and what a scope, a user and a namespace may have."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, memory_file, namespace, publish
from warmstart.caches.store import bundles, gc, generations, layout, listing, quota
from warmstart.caches.store.bundles import ORPHAN_S, BundleDamaged, BundleGone, Draft
from warmstart.caches.store.generations import StoreBusy
from warmstart.caches.store.layout import BUNDLE, FILES, LATEST_NS, Entries, File, content_digest
from warmstart.caches.store.listing import HarvestTooLarge
from warmstart.caches.store.merge import Removal
from warmstart.caches.store.quota import QuotaExceeded
from warmstart.store.layout import StoreFailed

LATER = time.time() + 2 * ORPHAN_S


def names(store: Path) -> list[list[str]]:
    return generations.read(namespace(store)).names


def files(store: Path) -> set[str]:
    return {name for name in os.listdir(namespace(store).path) if name.endswith((BUNDLE, FILES))}


def test_what_is_published_comes_back(tmp_path: Path) -> None:
    made = publish(tmp_path, "a", "b", content=b"the bytes")
    (row,) = generations.read(namespace(tmp_path), named=False).rows
    assert (row.sha256, row.size, row.number, row.user) == (made.sha256, 9, 2, "a")
    assert bundles.facts(namespace(tmp_path)) == {"cpu": "x"}
    with memory_file(b"the ") as fd:  # the beginning that came before
        assert bundles.fetch(namespace(tmp_path), row.sha256, row.size, fd) == draft("a", "b").entries
        assert os.pread(fd, 20, 0) == b"the bytes"


def test_what_readers_have_is_known_but_to_a_fresh_job(tmp_path: Path) -> None:
    publish(tmp_path, "a", "b")
    assert publish(tmp_path, "a").number == 0
    for fresh, names in (False, ["a", "b"]), (True, []):
        assert bundles.known(namespace(tmp_path), "a", 1000, 0, fresh=fresh) == names


@pytest.mark.report
def test_jobs_publish_where_the_only_listing_is_torn(tmp_path: Path) -> None:
    publish(tmp_path, "a", "b")
    path = Path(namespace(tmp_path).path, "listing/00000001")
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 9)
    with pytest.raises(StoreFailed):
        names(tmp_path)
    assert bundles.known(namespace(tmp_path), "a", 1000, 0, fresh=False) == []
    assert publish(tmp_path, "a").number == 2
    assert names(tmp_path) == [["a"]]


@pytest.mark.threat(8)
def test_what_a_job_changed_or_made_afresh_takes_the_place_of_what_is_there(tmp_path: Path) -> None:
    publish(tmp_path, "a", "b")
    for more in ({"changed": ["a"]}, {"fresh": True}):
        with memory_file(repr(more).encode()) as fd:
            made = bundles.publish(namespace(tmp_path), OWNER, fd, draft("a")._replace(**more), 0)
        assert generations.read(namespace(tmp_path), named=False).rows[0].sha256 == made.sha256
        assert names(tmp_path) == [["a"], ["b"]]


def test_what_a_job_removed_goes_without_a_bundle(tmp_path: Path) -> None:
    publish(tmp_path, "a", "b")
    gone = draft()._replace(removal=Removal({"a": content_digest(draft("a").entries["a"])}))
    assert bundles.publish(namespace(tmp_path), OWNER, None, gone, 0).number == 2
    assert names(tmp_path) == [["b"]]
    hidden = draft()._replace(removal=Removal(hide=["s"]))
    assert bundles.publish(namespace(tmp_path, "user-2"), OWNER, None, hidden, 0).number == 1


@pytest.mark.threat(6)
@pytest.mark.parametrize(
    ("suffix", "content", "error"),
    [
        (BUNDLE, None, BundleGone),
        (FILES, None, BundleGone),
        (BUNDLE, b"other", BundleDamaged),
        (BUNDLE, b"longer than it was", BundleDamaged),
        (FILES, b"{}", BundleDamaged),
        (FILES, b"", BundleDamaged),
    ],
)
def test_what_is_not_whole_is_not_handed_out(
    tmp_path: Path, suffix: str, content: bytes | None, error: type[Exception]
) -> None:
    sha256 = publish(tmp_path, "a", content=b"bytes").sha256
    path = Path(namespace(tmp_path).path, sha256 + suffix)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with memory_file(b"") as fd, pytest.raises(error):
        bundles.fetch(namespace(tmp_path), sha256, 5, fd)


@pytest.mark.threat(6)
def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    sha256 = publish(tmp_path, "a", content=b"bytes").sha256
    path = Path(namespace(tmp_path).path, sha256 + BUNDLE)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with memory_file(b"") as fd, pytest.raises(StoreFailed):
        bundles.fetch(namespace(tmp_path), sha256, 5, fd)


@pytest.mark.threat(24)
@pytest.mark.parametrize(
    "entries",
    [
        {"a": {}},
        {"../a": {"a": File(1, "a" * 64, 0)}},
        {"a": {"/etc/passwd": File(1, "a" * 64, 0)}},
        {"a": {"a": File(1, "a" * 64, 0)}, "b": {"a": File(1, "a" * 64, 0)}},
        {"a": {"a": File(-1, "a" * 64, 0)}},
        {"a": {"a": File(1, "a" * 63, 0)}},
        {"a": {"a": File(1, "a" * 64, LATEST_NS + 1)}},
    ],
)
def test_files_that_root_could_not_use_are_refused(entries: Entries) -> None:
    with pytest.raises(ValueError, match=r"."):
        bundles.checked_entries(entries)


def test_a_damaged_bundle_can_be_put_again(tmp_path: Path) -> None:
    sha256 = publish(tmp_path, "a", content=b"bytes").sha256
    for suffix, damage in ((BUNDLE, b"byte"), (FILES, b"nonsense")):
        path = Path(namespace(tmp_path).path, sha256 + suffix)
        path.unlink()
        path.write_bytes(damage)
        publish(tmp_path, "a", content=b"bytes")
        with memory_file(b"") as fd:
            bundles.fetch(namespace(tmp_path), sha256, 5, fd)


@pytest.mark.threat(15)
def test_a_quota_lets_the_last_byte_in_and_not_the_next(tmp_path: Path) -> None:
    publish(tmp_path, "a", content=b"x" * 100)
    used = sum(os.stat(f"{namespace(tmp_path).path}/{name}").st_size for name in files(tmp_path))
    assert quota.correct(str(tmp_path), "user-1") == used
    for most, fits in ((2 * used - 1, False), (2 * used, True)):
        with memory_file(b"y" * 100) as fd:
            if fits:
                assert bundles.publish(namespace(tmp_path), OWNER, fd, draft("b"), most).sha256
            else:
                with pytest.raises(QuotaExceeded):
                    bundles.publish(namespace(tmp_path), OWNER, fd, draft("b"), most)
    with pytest.raises(QuotaExceeded):  # a harvest is not begun
        bundles.known(namespace(tmp_path), "a", 1000, 2 * used, fresh=True)
    assert quota.correct(str(tmp_path), "user-1") == 2 * used


@pytest.mark.threat(15)
@pytest.mark.parametrize("count", [b"", b"nonsense", b"99"])
def test_a_count_that_cannot_be_read_refuses_nobody(tmp_path: Path, count: bytes) -> None:
    publish(tmp_path, "a")
    Path(tmp_path, "caches", "user-1", "used").write_bytes(count)
    with memory_file(b"b") as fd:
        bundles.publish(namespace(tmp_path), OWNER, fd, draft("b"), 10_000)
    assert names(tmp_path) == [["a"], ["b"]]


@pytest.mark.threat(24)
def test_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, "a" * 30)
    monkeypatch.setattr(listing, "MOST_OF_USER", 40)
    with pytest.raises(HarvestTooLarge):
        publish(tmp_path, "b" * 30)
    assert publish(tmp_path, "b" * 30, user="b", uid=2).sha256  # there is room for others
    monkeypatch.setattr(listing, "MOST_OF_USER", 20)
    with pytest.raises(HarvestTooLarge):
        bundles.known(namespace(tmp_path), "a", 1000, 0, fresh=False)
    monkeypatch.setattr(bundles, "MOST_OF_FILES", 100)
    with pytest.raises(HarvestTooLarge):
        publish(tmp_path, "c")


@pytest.mark.threat(24)
def test_a_thousand_names_of_caches_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MOST_NAMESPACES", 2)
    for name in ("ns", "other"):
        with memory_file(name.encode()) as fd:
            bundles.publish(
                namespace(tmp_path)._replace(name=name), OWNER, fd, draft("a")._replace(facts={"cache": "mine"}), 0
            )
    with memory_file(b"x") as fd, pytest.raises(HarvestTooLarge, match="cache=mine"):
        bundles.publish(
            namespace(tmp_path)._replace(name="third"), OWNER, fd, draft("a")._replace(facts={"cache": "mine"}), 0
        )
    with memory_file(b"x") as fd:
        assert bundles.publish(namespace(tmp_path), OWNER, fd, draft("b")._replace(facts={"cache": "mine"}), 0).sha256


def test_the_store_itself_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        publish(tmp_path / "unmounted", "a")
    assert not os.path.exists(tmp_path / "unmounted")


def test_what_no_listing_names_is_swept_after_three_days(tmp_path: Path) -> None:
    publish(tmp_path, "a")
    with memory_file(b"orphan") as fd:
        row = bundles.put(namespace(tmp_path), OWNER, fd, draft("b"), 0)
    there = files(tmp_path)
    assert bundles.sweep(namespace(tmp_path), time.time()) == []
    assert {*bundles.sweep(namespace(tmp_path), LATER)} == {row.sha256 + BUNDLE, row.sha256 + FILES}
    assert files(tmp_path) == {name for name in there if row.sha256 not in name}


def test_what_is_put_again_while_it_is_swept_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, rename = namespace(tmp_path), os.rename
    with memory_file(b"orphan") as fd:
        row = bundles.put(where, OWNER, fd, draft("b"), 0)

        def put_again(name: str, new: str, **folders: int) -> None:
            assert bundles.put(where, OWNER, fd, draft("b"), 0) == row
            os.utime(f"{where.path}/{name}", (LATER, LATER))  # which is when it was put
            rename(name, new, **folders)

        monkeypatch.setattr(os, "rename", put_again)
        assert bundles.sweep(where, LATER) == []
    assert files(tmp_path) == {row.sha256 + BUNDLE, row.sha256 + FILES}


def test_an_emptied_namespace_goes_later(tmp_path: Path) -> None:
    sha256 = publish(tmp_path, "a").sha256
    gc.take_out(namespace(tmp_path), OWNER, gc.What([sha256]))
    assert not bundles.remove_empty(namespace(tmp_path), time.time() - 60, 0.0)
    assert bundles.remove_empty(namespace(tmp_path), time.time() + 60, 0.0)
    assert not os.path.exists(namespace(tmp_path).path)
    assert not bundles.remove_empty(namespace(tmp_path), time.time() + 60, 0.0)
    assert publish(tmp_path, "b").number == 1


def test_a_weight_is_never_less_than_what_is_written() -> None:
    made = Draft("a", 1, 7, {f"ä{n}": {f"ä{n}/x\udcff": File(10**12, "a" * 64, LATEST_NS)} for n in range(50)})
    weight = sum(layout.entry_weight(entry, paths) for entry, paths in made.entries.items())
    assert len(bundles._encoded(made.entries)) <= weight + 200


def test_a_publisher_that_never_has_its_turn_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, "a")
    monkeypatch.setattr(generations, "_linked", lambda *_: False)
    monkeypatch.setattr(generations, "SHORTEST_PAUSE_S", 0.0)
    with pytest.raises(StoreBusy, match="others were first"):
        publish(tmp_path, "b")
