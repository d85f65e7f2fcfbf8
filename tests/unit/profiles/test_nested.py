"""Caches of other tools below a tool's own: named and judged by those tools' profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.built_entries import below
from tests.lib.cache_files import triton_kernel
from tests.lib.judging import MTIME
from warmstart.profiles.contract import named_by
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.nested import NestedCaches

KEY = "A2" * 26
NESTED = NestedCaches(named_by("(own)"), ((r"rank_[0-9]+/triton/", "triton"), ("numba/", "numba")))


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        (f"rank_7/triton/{KEY}/k.cubin", f"rank_7/triton/{KEY}"),
        (f"rank_7/triton/{KEY}/k.spv", None),
        (f"rank_x/triton/{KEY}/k.cubin", None),
        (f"triton/{KEY}/k.cubin", None),
        (f"x/numba/{KEY}/k.cubin", None),
        ("", None),
    ],
)
def test_an_entry_is_named_as_its_own_profile_does(path: str, entry: str | None) -> None:
    """Behind the directory that the outer tool gives it."""
    assert NESTED.entry_of(path) == entry
    assert NESTED.holds(path) is path.startswith("rank_7")


@given(st.text("rank_7/triton" + KEY, max_size=40))
def test_any_name_is_answered(path: str) -> None:
    """An entry lies in one of the directories, or there is none."""
    entry = NESTED.entry_of(path)
    assert entry is None or (NESTED.holds(entry) and path.startswith(entry.rpartition("/")[0]))


def test_an_entry_is_judged_as_its_own_profile_does(stage: Path, stage_fd: int) -> None:
    """Its validator sees names as if the outer tool were not there."""
    files = below("rank_7/triton/", triton_kernel("3.9"))
    for name, content in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(content)
        os.utime(stage / name, ns=(MTIME, MTIME))
    entry = next(iter(files)).rpartition("/")[0]
    NESTED.validate(EntryFiles(stage_fd, entry, files))
    (cubin,) = (name for name in files if name.endswith(".cubin"))
    (stage / cubin).write_bytes(b"")
    with pytest.raises(EntryInvalid):
        NESTED.validate(EntryFiles(stage_fd, entry, files))
