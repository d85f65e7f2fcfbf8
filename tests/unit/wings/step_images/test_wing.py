"""What the rest of warmstart knows of the wing: doctor's check, its units, `plan`, and whose job a process is in."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tests.lib import command_line
from tests.lib.command_line import POLICY, installed
from warmstart.doctor import slurm_files, units
from warmstart.doctor.finding import Result, run
from warmstart.doctor.slurm import Slurm
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.slurm.facts import Settings
from warmstart.wings import step_images
from warmstart.wings.step_images import job, place
from warmstart.wings.step_images.checks import CHECKS
from warmstart.wings.step_images.place import program_of, socket_of


def test_steps_can_ask_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = installed(tmp_path / "prefix", POLICY)
    plugstack = tmp_path / "plugstack.conf"
    importer = Path(site.libexec, "pyxis-importer")
    importer.parent.mkdir(parents=True)
    importer.touch()
    path = Path(place.socket_of(site))
    path.parent.mkdir(parents=True)

    def looked(plugin: str) -> list[Result]:
        plugstack.write_text(plugin)
        plugins = tuple(slurm_files.plugins(str(plugstack)))
        policy = current_policy(site).policy
        return run(CHECKS.slurm, Slurm(Settings({}), site, policy, (22, 5), str(tmp_path), plugins))

    def status(plugin: str) -> str:
        return looked(plugin)[0].status

    pyxis = f"required spank_pyxis.so importer={importer}\n"
    assert (looked(""), looked("required spank_pyxis.so\n"), status(pyxis)) == ([], [], "advice")
    for systemd, names_unit in ((tmp_path, True), (tmp_path / "none", False)):
        monkeypatch.setattr(units, "SYSTEMD", str(systemd))
        assert ("warmstart-step-images.socket" in looked(pyxis)[0].change) is names_unit
    path.touch()
    assert status(pyxis) == "advice"
    path.unlink()
    os.mknod(path, stat.S_IFSOCK | 0o666)
    assert status(pyxis) == ("ok" if os.getuid() == 0 else "advice")


@pytest.mark.parametrize(("partition", "told"), [("gpu", True), ("cpu", False)])
def test_a_job_with_caches_has_some_for_each_image(tmp_path: Path, partition: str, told: bool) -> None:
    before = POLICY.partition("rules:")[0]
    site = installed(tmp_path, f"{before}rules: [{{name: one, match: {{partition: gpu}}, profiles: [numba]}}]\n")
    said = " ".join(command_line.run(site, "plan", "--user", "nobody", "--partition", partition).stdout.split())
    assert ("Each other image that a step names (srun --container-image) has caches of its own" in said) is told


def test_whose_a_process_is_the_nearest_step_daemon_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (21, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
    proc = str(tmp_path)
    monkeypatch.setattr(job, "job_of_daemon", {f"{proc}/10": 7}.get)
    assert [job.job_of(pid, proc) for pid in (10, 11, 12)] == [7, 7, 7]
    assert [job.job_of(pid, proc) for pid in (1, 21, 99)] == [None] * 3


def test_the_socket_for_steps_is_where_they_ask() -> None:
    folder = Path(step_images.__file__).with_name("systemd")
    listens = dict(re.findall(r"^(\w+)=(.*)$", (folder / "warmstart-step-images.socket").read_text(), re.MULTILINE))
    usr = Installation("/usr")
    assert listens["ListenStream"].replace("@RUN@", usr.runtime) == socket_of(usr)
    assert (listens["SocketMode"], listens["DirectoryMode"]) == ("0666", "0755")
    assert "Accept" not in listens
    service = dict(re.findall(r"^(\w+)=(.*)$", (folder / "warmstart-step-images.service").read_text(), re.MULTILINE))
    assert service["ExecStart"].replace("@PREFIX@", "/usr") == program_of(usr)
    assert (service["KillMode"], service["PartOf"]) == ("process", "warmstart-step-images.socket")
    assert {"CPUWeight", "MemoryHigh", "MemoryMax", "TasksMax"} <= service.keys()
