"""Which Slurm doctor judges: that of `paths.scontrol`, however it is installed; for which one a plugin was built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.lib.mistakes import plugin
from warmstart.doctor import installed

CONFIG = "Configuration data as of 2026-01-31\nSLURM_CONF              = {path}\nSLURM_VERSION           = 26.05.5\n"


def program(path: Path, script: str) -> str:
    """Make a stand-in for one of Slurm's programs; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def tells(release: str) -> str:
    """Return the script of a program that tells a release if it is asked for it."""
    return f'[ "$*" = -V ] && echo "slurm {release}"'


def test_the_link_among_several_trees_counts_and_slurmd_before_scontrol(tmp_path: Path) -> None:
    for release in ("24.11.5", "25.05.1"):
        program(tmp_path / release / "sbin/slurmd", tells(release))
        program(tmp_path / release / "bin/scontrol", tells("23.02.0"))
    (tmp_path / "current").symlink_to("25.05.1")
    scontrol = f"{tmp_path}/current/bin/scontrol"
    assert installed.prefix(scontrol) == f"{tmp_path}/25.05.1"
    assert installed.release(scontrol, "/etc/s.conf") == (25, 5, 1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").symlink_to("../24.11.5/bin/scontrol")
    assert installed.release(f"{tmp_path}/bin/scontrol", "/etc/s.conf") == (24, 11, 5)


@pytest.mark.parametrize("slurmd", ["", "exit 1", "echo slurm without a number"])
def test_without_a_slurmd_that_tells_scontrol_is_asked(tmp_path: Path, slurmd: str) -> None:
    """On a login node, or where slurmd is a wrapper; scontrol wants slurm.conf."""
    scontrol = program(tmp_path / "bin/scontrol", f'[ "$SLURM_CONF" = /etc/s.conf ] && {tells("26.11.0-0rc1")}')
    if slurmd:
        program(tmp_path / "sbin/slurmd", slurmd)
    assert installed.release(scontrol, "/etc/s.conf") == (26, 11, 0)
    assert installed.release(scontrol, "/etc/other.conf") is None
    assert installed.release(f"{tmp_path}/none/scontrol", "") is None


def test_plugins_are_in_plugindir_or_under_that_slurm_not_another_one(tmp_path: Path) -> None:
    scontrol = program(tmp_path / "current/bin/scontrol", "")
    assert installed.plugin_places(scontrol, "/a:/b") == installed.plugin_places("", "/a:/b") == ["/a", "/b"]
    assert installed.plugin_places(scontrol, "") == installed.plugin_places("", "") == []
    for place in ("lib64/slurm", "lib/slurm", "lib/x86_64-linux-gnu/slurm-wlm"):
        (tmp_path / "current" / place).mkdir(parents=True)
        assert f"{tmp_path}/current/{place}" in installed.plugin_places(scontrol, "")


@pytest.mark.parametrize("path", ["/srv/slurm/etc/slurm.conf", ""])
def test_slurmctld_says_where_its_slurm_conf_is(tmp_path: Path, path: str) -> None:
    (tmp_path / "answer").write_text(CONFIG.format(path=path or "(null)"))
    scontrol = program(tmp_path / "scontrol", f'[ "$*" = "show config" ] && cat {tmp_path}/answer')
    assert installed.slurm_conf(scontrol) == path
    assert installed.slurm_conf(f"{tmp_path}/none") == ""


def test_what_is_no_plugin_was_built_for_nothing(tmp_path: Path) -> None:
    whole, path = Path(os.path.realpath(sys.executable)).read_bytes(), tmp_path / "x.so"
    path.write_bytes(plugin((24, 11)))
    assert installed.built_for(str(path)) == (24, 11, 5)
    other = plugin((24, 11), b"plugin_type")
    for content in (b"", b"\x7fELF", whole[: len(whole) // 2], whole, other, plugin((24, 11))[:-4]):
        path.write_bytes(content)
        assert installed.built_for(str(path)) is None
