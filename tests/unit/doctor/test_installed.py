"""Which Slurm doctor judges: that of `paths.scontrol`, however it is installed, whatever else is on the node."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_link_among_several_trees(tmp_path: Path) -> None:
    """`current` is what counts, and slurmd before scontrol: a client of another release may do for commands."""
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
def test_without_a_slurmd_that_tells(tmp_path: Path, slurmd: str) -> None:
    """A login node, or a wrapper elsewhere: scontrol is asked, which wants slurm.conf."""
    scontrol = program(tmp_path / "bin/scontrol", f'[ "$SLURM_CONF" = /etc/s.conf ] && {tells("26.11.0-0rc1")}')
    if slurmd:
        program(tmp_path / "sbin/slurmd", slurmd)
    assert installed.release(scontrol, "/etc/s.conf") == (26, 11, 0)
    assert installed.release(scontrol, "/etc/other.conf") is None


def test_programs_that_tell_nothing(tmp_path: Path) -> None:
    """Missing ones, and a file that is no program."""
    assert installed.release(f"{tmp_path}/bin/scontrol", "") is None
    (tmp_path / "scontrol").write_text("")
    (tmp_path / "scontrol").chmod(0o755)
    assert installed.release(f"{tmp_path}/scontrol", "") is None


def test_where_plugins_are(tmp_path: Path) -> None:
    """PluginDir, which may be several; else the directory of that Slurm, not of another one."""
    scontrol = program(tmp_path / "current/bin/scontrol", "")
    assert installed.plugin_places(scontrol, "/a:/b") == installed.plugin_places("", "/a:/b") == ["/a", "/b"]
    assert installed.plugin_places(scontrol, "") == installed.plugin_places("", "") == []
    for place in ("lib64/slurm", "lib/slurm", "lib/x86_64-linux-gnu/slurm-wlm"):
        (tmp_path / "current" / place).mkdir(parents=True)
        assert f"{tmp_path}/current/{place}" in installed.plugin_places(scontrol, "")


def test_what_slurmctld_says_of_slurm_conf(tmp_path: Path) -> None:
    """Nothing if it does not answer, or not so."""
    answer = tmp_path / "answer"
    scontrol = program(tmp_path / "scontrol", f'[ "$*" = "show config" ] && cat {answer}')
    assert installed.slurm_conf(scontrol) == ""
    answer.write_text(CONFIG.format(path="/srv/slurm/etc/slurm.conf"))
    assert installed.slurm_conf(scontrol) == "/srv/slurm/etc/slurm.conf"
    answer.write_text(CONFIG.format(path="(null)"))
    assert installed.slurm_conf(scontrol) == installed.slurm_conf(f"{tmp_path}/none") == ""
