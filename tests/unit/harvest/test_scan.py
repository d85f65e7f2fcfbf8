"""Names become entries: whole ones, of plain names, within bounds; what a harvest makes of them is in test_collect."""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstart.harvest import scan
from warmstart.harvest.scan import Found, Rules, Tally
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir
from warmstart.host.untrusted import SPECIAL
from warmstart.store.layout import is_plain_path

NAMES = st.sampled_from(["a", "b.1", "b.2", "c.1", "x.lock", "odd\n.1", "#.1", " .1"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def entry_of(path: str) -> str | None:
    return path.rpartition(".")[0] if path.endswith((".1", ".2")) else None


def scanned(top: Path, *, skip: frozenset[str] = frozenset(), most_names: int = 1000) -> tuple[Found, Tally]:
    tally = Tally()
    with opened_dir(str(top)) as fd:
        return scan.scan(fd, mount_id(fd), Rules(entry_of, skip, (), most_names, after(30)), tally), tally


def planted(top: Path, paths: set[str]) -> set[str]:
    """Make a file at each path that has no file above it; return those."""
    made = set()
    for path in sorted(paths):
        if any(above in paths for above in above_of(path)):
            continue
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).touch()
        made.add(path)
    return made


def above_of(path: str) -> list[str]:
    return [] if "/" not in path else [posixpath.dirname(path), *above_of(posixpath.dirname(path))]


@given(st.sets(PATHS, max_size=12), st.sets(st.sampled_from(["b", "c", "a/b", "a/c"])))
@settings(max_examples=60)
def test_a_tree_becomes_its_whole_entries(paths: set[str], skip: set[str]) -> None:
    top = Path(tempfile.mkdtemp())
    try:
        made = planted(top, paths)
        found, tally = scanned(top, skip=frozenset(skip))
    finally:
        shutil.rmtree(top)
    mine = {path for path in made if entry_of(path)}
    skipped = {path for path in mine if entry_of(path) in skip}
    odd = {path for path in mine - skipped if not (is_plain_path(path) and is_plain_path(entry_of(path) or ""))}
    spoilt = {entry_of(path) for path in odd}
    expected = {path for path in mine - skipped - odd if entry_of(path) not in spoilt}
    assert sorted(path for files in found.entries.values() for path in files) == sorted(expected)
    assert all(entry_of(path) == entry for entry, files in found.entries.items() for path in files)
    assert (found.skipped, sum(found.ignored.values()), found.truncated) == (len(skipped), len(made - mine), "")
    assert tally.counts == ({scan.ODD_NAME: len(odd)} if odd else {})


@given(st.sets(PATHS, min_size=1, max_size=12), st.integers(0, 12))
@settings(max_examples=40)
def test_a_scan_that_ends_early_has_whole_entries_alone(paths: set[str], most: int) -> None:
    top = Path(tempfile.mkdtemp())
    try:
        planted(top, paths)
        whole, _ = scanned(top)
        found, _ = scanned(top, most_names=most)
    finally:
        shutil.rmtree(top)
    assert found.entries.items() <= whole.entries.items()
    assert found.truncated == scan.TOO_MANY_NAMES or found == whole


@pytest.mark.parametrize(("in_upper", "is_whiteout"), [(True, True), (True, False), (False, True)])
def test_what_a_job_removed_is_no_rejection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_upper: bool, is_whiteout: bool
) -> None:
    """Only in an overlay's upper layer, and only a real whiteout: root alone can make one, so a FIFO stands for it."""
    os.mkfifo(tmp_path / "f.1")
    monkeypatch.setattr(scan, "_is_whiteout", lambda _item: is_whiteout)
    tally = Tally()
    with opened_dir(str(tmp_path)) as fd:
        rules = Rules(entry_of, (), (), 10, after(30), upper=in_upper)
        found = scan.scan(fd, mount_id(fd), rules, tally)
    assert found.entries == {}
    assert tally.counts == ({} if in_upper and is_whiteout else {SPECIAL: 1})
    assert found.hides == (in_upper and is_whiteout)


def test_a_directory_that_a_job_makes_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay marks it as one that would: whether there was anything below it, the seeded entries tell."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(scan, "_is_opaque", lambda _fd: True)
    with opened_dir(str(tmp_path)) as fd:
        found = scan.scan(fd, mount_id(fd), Rules(entry_of, (), (), 10, after(30), upper=True), Tally())
    assert (found.hides, found.touched) == (False, {"locks"})
