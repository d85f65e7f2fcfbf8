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
from warmstart.harvest.scan import Found, Rules
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir
from warmstart.host.untrusted import SPECIAL
from warmstart.store.layout import is_plain_path

NAMES = st.sampled_from(["a", "b.1", "b.2", "c.1", "x.lock", "odd\n.1", "#.1", " .1"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def entry_of(path: str) -> str | None:
    return path.rpartition(".")[0] if path.endswith((".1", ".2")) else None


def scanned(top: Path, most_names: int = 1000, *, upper: bool = False) -> Found:
    with opened_dir(str(top)) as fd:
        return scan.scan(fd, mount_id(fd), Rules(entry_of, most_names, after(30), upper=upper))


def whole(found: Found) -> dict[str, list[str]]:
    return {entry: sorted(paths) for entry, paths in found.entries.items() if found.is_whole(entry)}


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


@given(st.sets(PATHS, max_size=12))
@settings(max_examples=60)
def test_a_tree_becomes_its_whole_entries(paths: set[str]) -> None:
    top = Path(tempfile.mkdtemp())
    try:
        made = planted(top, paths)
        found = scanned(top)
    finally:
        shutil.rmtree(top)
    mine = {path for path in made if entry_of(path)}
    odd = {path for path in mine if not (is_plain_path(path) and is_plain_path(entry_of(path) or ""))}
    spoilt = {entry_of(path) for path in odd}
    expected = {path for path in mine - odd if entry_of(path) not in spoilt}
    assert sorted(path for files in whole(found).values() for path in files) == sorted(expected)
    assert all(entry_of(path) == entry for entry, files in found.entries.items() for path in files)
    assert (sum(found.ignored.counts.values()), found.truncated) == (len(made - mine), "")
    assert found.rejected.counts == ({scan.ODD_NAME: len(odd)} if odd else {})


@given(st.sets(PATHS, min_size=1, max_size=12), st.integers(0, 12))
@settings(max_examples=40)
def test_a_scan_that_ends_early_has_whole_entries_alone(paths: set[str], most: int) -> None:
    top = Path(tempfile.mkdtemp())
    try:
        planted(top, paths)
        everything = scanned(top)
        found = scanned(top, most)
    finally:
        shutil.rmtree(top)
    assert whole(found).items() <= whole(everything).items()
    assert found.truncated == scan.TOO_MANY_NAMES or whole(found) == whole(everything)


@pytest.mark.parametrize(("in_upper", "is_whiteout"), [(True, True), (True, False), (False, True)])
def test_what_a_job_removed_is_no_rejection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_upper: bool, is_whiteout: bool
) -> None:
    """Only in an overlay's upper layer, and only a real whiteout: root alone can make one, so a FIFO stands for it."""
    os.mkfifo(tmp_path / "f.1")
    monkeypatch.setattr(scan, "_is_whiteout", lambda _item: is_whiteout)
    found = scanned(tmp_path, upper=in_upper)
    assert found.entries == {}
    assert found.rejected.counts == ({} if in_upper and is_whiteout else {SPECIAL: 1})
    assert found.has_whiteouts == (in_upper and is_whiteout)


def test_a_directory_that_a_job_makes_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay marks it as one that would: whether there was anything below it, the seeded entries tell."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(scan, "_is_opaque", lambda _fd: True)
    found = scanned(tmp_path, upper=True)
    assert (found.has_whiteouts, found.touched) == (False, {"locks"})
