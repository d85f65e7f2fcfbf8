"""An entry's files as a validator opens them: only those that were named, through no links, bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.judging import SAME_STAGE
from warmstart.profiles.entry_files import REASONS, EntryFiles, EntryInvalid

NAMES = st.text("a./", max_size=8)


@pytest.fixture
def files(stage: Path, stage_fd: int) -> EntryFiles:
    """Give an entry `d/e` of two files."""
    (stage / "d").mkdir()
    (stage / "d" / "e.1").write_bytes(b"one")
    (stage / "d" / "e.2").write_bytes(b"two!")
    os.utime(stage / "d" / "e.1", ns=(1, 1_700_000_000_123_456_789))
    return EntryFiles(stage_fd, "d/e", ["d/e.2", "d/e.1"])


def refused(files: EntryFiles, name: str, limit: int = 10) -> str:
    """Return why a file is not read."""
    with pytest.raises(EntryInvalid) as caught:
        files.read(name, limit)
    return caught.value.reason


def test_what_was_named_is_read(files: EntryFiles) -> None:
    """Sorted names, sizes, contents and times to the nanosecond."""
    assert files.names == ("d/e.1", "d/e.2")
    with files.open("d/e.2") as (file, size):
        assert (file.read(), size) == (b"two!", 4)
    assert files.read("d/e.1", 3) == b"one"
    assert files.mtime_ns("d/e.1") == 1_700_000_000_123_456_789
    assert ("d/e.1" in files, "d/e.3" in files) == (True, False)


def test_names_below_a_directory(files: EntryFiles) -> None:
    """For the profile of a tool that is nested in another's cache."""
    below = files.below("d/")
    assert (below.entry, below.names) == ("e", ("e.1", "e.2"))
    assert below.read("e.2", 4) == b"two!"
    assert refused(below, "d/e.1") == "unexpected-file"


def test_what_is_larger_than_its_format_is_not_read(files: EntryFiles, stage: Path) -> None:
    """Neither is a sparse file brought into memory."""
    assert refused(files, "d/e.2", 3) == "too-large"
    os.truncate(stage / "d" / "e.1", 1 << 40)
    assert refused(files, "d/e.1", 1 << 20) == "too-large"


@pytest.mark.parametrize("kind", ["missing", "link", "fifo", "directory", "linked directory", "file above"])
def test_what_is_no_file_is_no_file_of_an_entry(files: EntryFiles, stage: Path, kind: str) -> None:
    """Nothing is followed, and nothing hangs."""
    path = stage / "d" / "e.1"
    path.unlink()
    if kind == "link":
        path.symlink_to("e.2")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind != "missing":
        (stage / "d").rename(stage / "moved")
        (stage / "d").symlink_to("moved") if kind == "linked directory" else (stage / "d").touch()
    assert refused(files, "d/e.1") == "not-a-file"


@SAME_STAGE
@given(NAMES)
def test_no_name_leads_out_of_the_stage(stage_fd: int, name: str) -> None:
    """Not even one that the entry is said to have."""
    files = EntryFiles(stage_fd, "e", [name])
    with pytest.raises(EntryInvalid) as caught, files.open(name):
        pass
    parts = name.split("/")
    odd = not all(parts) or {".", ".."} & {*parts}
    assert caught.value.reason == ("unexpected-file" if odd else "not-a-file")


def test_reasons_are_fixed_words() -> None:
    """So that no line of the audit carries what a job wrote."""
    assert all(f"{reason}{text}".isascii() for reason, text in REASONS.items())
    with pytest.raises(AssertionError):
        EntryInvalid("whatever")
