"""What doctor says of the socket."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, installed
from warmstart.doctor import slurm_conf, units
from warmstart.doctor.finding import Result, run
from warmstart.doctor.slurm import Slurm
from warmstart.wings.step_images import place
from warmstart.wings.step_images.checks import CHECKS


def test_steps_can_ask_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = installed(tmp_path / "prefix", POLICY)
    conf, plugstack = tmp_path / "slurm.conf", tmp_path / "plugstack.conf"
    conf.write_text("ClusterName=c\n")
    monkeypatch.setattr(place, "SPARE", str(tmp_path))
    importer = Path(site.libexec, "pyxis-importer")
    importer.parent.mkdir(parents=True)
    importer.touch()
    path = Path(place.socket_of(site))
    path.parent.mkdir(parents=True)

    def looked(plugin: str) -> Result:
        plugstack.write_text(plugin)
        (found,) = run(CHECKS.slurm, Slurm(slurm_conf.read(str(conf)), site, None, None))
        return found

    def status(plugin: str) -> str:
        return looked(plugin).status

    pyxis = f"required spank_pyxis.so importer={importer}\n"
    assert [status(""), status("required spank_pyxis.so\n"), status(pyxis)] == ["ok", "ok", "advice"]
    for systemd, names_unit in ((tmp_path, True), (tmp_path / "none", False)):
        monkeypatch.setattr(units, "SYSTEMD", str(systemd))
        assert ("warmstart-step-images.socket" in looked(pyxis).change) is names_unit
    path.touch()
    assert status(pyxis) == "advice"
    path.unlink()
    os.mknod(path, stat.S_IFSOCK | 0o666)
    assert status(pyxis) == ("ok" if os.getuid() == 0 else "advice")
