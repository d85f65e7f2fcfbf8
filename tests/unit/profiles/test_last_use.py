"""The files in which a tool keeps when it last used an entry: for JAX alone, made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.host.files import opened_dir
from warmstart.profiles import last_use

ENTRY = f"jit_f-{'a' * 64}-cache"


def test_each_entry_has_one(tmp_path: Path) -> None:
    """Zeros, which are a time; the same again changes nothing, and takes no space."""
    for _ in range(2):
        with opened_dir(str(tmp_path)) as fd:
            last_use.make("jax", fd, [ENTRY])
    (path,) = tmp_path.iterdir()
    status = path.stat()
    assert (path.name, path.read_bytes()) == (ENTRY.replace("-cache", "-atime"), bytes(8))
    assert (status.st_mode & 0o777, status.st_mtime, status.st_blocks) == (0o644, 0, 0)


@pytest.mark.parametrize("profile", ["numba", "a-sites-own"])
def test_other_tools_have_none(tmp_path: Path, profile: str) -> None:
    """Nor have profiles that a site defines."""
    with opened_dir(str(tmp_path)) as fd:
        last_use.make(profile, fd, [ENTRY])
    assert os.listdir(tmp_path) == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Another process of the job's user may have put one there."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / ENTRY.replace("-cache", "-atime")).symlink_to(tmp_path / "other")
    with opened_dir(str(tmp_path)) as cache, pytest.raises(OSError, match="symbolic links"):
        last_use.make_in_cache("jax", cache, [ENTRY])
    assert not (tmp_path / "other").exists()
