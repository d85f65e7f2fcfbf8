"""Relocation in a job's cache: of the profiles that need it, in their own directory, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cache_files import triton_kernel
from warmstart.host.files import opened_dir
from warmstart.profiles import registry
from warmstart.profiles.relocation import relocate


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """Give the path of a group of Triton's in a job's cache."""
    for name, content in triton_kernel("3.9").items():
        path = tmp_path / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (found,) = (tmp_path / "triton").rglob("__grp__*.json")
    return found


def test_entries_name_the_path_where_the_job_sees_them(group: Path, tmp_path: Path) -> None:
    """Only those that are named; again changes nothing."""
    key = group.parent.name
    before = group.read_bytes()
    with opened_dir(str(tmp_path)) as cache:
        relocate("triton", cache, "/job/cache", [])
        assert group.read_bytes() == before
        for _ in range(2):
            relocate("triton", cache, "/job/cache", [key])
            paths = json.loads(group.read_bytes())["child_paths"]
            assert paths == {name: f"/job/cache/triton/{key}/{name}" for name in paths}


@pytest.mark.parametrize("name", [name for name in registry.names() if registry.get(name).relocate is None])
def test_other_profiles_need_none(tmp_path: Path, name: str) -> None:
    """Not even their directory has to be there."""
    with opened_dir(str(tmp_path)) as cache:
        relocate(name, cache, "/job/cache", ["x"])
    assert os.listdir(tmp_path) == []


def test_a_link_in_the_place_of_the_directory_is_not_followed(group: Path, tmp_path: Path) -> None:
    """The process has the job's uid, and other jobs of that user are its neighbours."""
    (tmp_path / "triton").rename(tmp_path / "moved")
    (tmp_path / "triton").symlink_to("moved")
    with opened_dir(str(tmp_path)) as cache, pytest.raises(NotADirectoryError):
        relocate("triton", cache, "/job/cache", [group.parent.name])
