"""Which Slurm doctor judges: that of `paths.scontrol`, however it is installed; for which one a plugin was built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.lib.mistakes import plugin
from warmstart.doctor import installed


def program(path: Path, script: str) -> str:
    """Make a stand-in for one of Slurm's programs; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def tells(release: str) -> str:
    """Return the script of a program that tells a release if it is asked for it."""
    return f'[ "$*" = -V ] && echo "slurm {release}"'


def test_the_link_among_several_trees_counts(tmp_path: Path) -> None:
    for release in ("24.11.5", "25.05.1"):
        program(tmp_path / release / "sbin/slurmd", tells(release))
        program(tmp_path / release / "bin/scontrol", "")
    (tmp_path / "current").symlink_to("25.05.1")
    scontrol = f"{tmp_path}/current/bin/scontrol"
    assert installed.prefix(scontrol) == f"{tmp_path}/25.05.1"
    assert installed.release(scontrol) == (25, 5, 1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").symlink_to("../24.11.5/bin/scontrol")
    assert installed.release(f"{tmp_path}/bin/scontrol") == (24, 11, 5)


@pytest.mark.parametrize("slurmd", ["", "exit 1", "echo slurm without a number"])
def test_without_a_slurmd_that_tells_slurmctld_is_asked(tmp_path: Path, slurmd: str) -> None:
    """On a login node, or where slurmd is a wrapper."""
    scontrol = program(tmp_path / "bin/scontrol", "exit 1")
    if slurmd:
        program(tmp_path / "sbin/slurmd", slurmd)
    assert installed.release(scontrol, "26.11.0-0rc1") == (26, 11, 0)
    assert installed.release(scontrol) == ()


def test_plugins_are_in_plugindir_or_under_that_slurm(tmp_path: Path) -> None:
    scontrol = program(tmp_path / "current/bin/scontrol", "")
    for place in ("lib64/slurm", "lib/slurm", "lib/x86_64-linux-gnu/slurm-wlm"):
        (tmp_path / "current" / place).mkdir(parents=True)
        assert f"{tmp_path}/current/{place}" in installed.plugin_places(scontrol, "/a:/b")
    assert installed.plugin_places(scontrol, "/a:/b")[:2] == ["/a", "/b"]


def test_what_is_no_plugin_was_built_for_nothing(tmp_path: Path) -> None:
    whole, path = Path(os.path.realpath(sys.executable)).read_bytes(), tmp_path / "x.so"
    path.write_bytes(plugin((24, 11)))
    assert installed.built_for(str(path)) == (24, 11, 5)
    other = plugin((24, 11), b"plugin_type")
    for content in (b"", b"\x7fELF", whole[: len(whole) // 2], whole, other, plugin((24, 11))[:-4]):
        path.write_bytes(content)
        assert installed.built_for(str(path)) is None
