"""Every mistake of `tests.lib.mistakes` is found by its command: with its check, its status, and a word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib import command_line
from tests.lib.mistakes import IN_POLICY, MISTAKES, THREATS, Mistake, Plant, Site
from warmstart.cli import doctor
from warmstart.doctor import constant_path, slurm, store


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a good site. What only a kernel decides is left out: it is no mistake, and takes seconds."""
    monkeypatch.setattr(doctor, "NODE", [check for check in doctor.NODE if check.name != "node.seeding"])
    base = Path(tempfile.mkdtemp(prefix="ws-mis-", dir="/var/tmp"))
    base.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(base / "slurm.conf"))
    monkeypatch.setattr(slurm, "ENROOT", str(base / "enroot"))
    monkeypatch.setattr(constant_path, "APPTAINER", str(base / "apptainer.conf"))
    found = Site.make(base)
    yield found
    for path in (
        Path(found.installation.var),
        Path(found.installation.runtime),
        base / "log",
        base / "workspace",
        found.store,
        base / "shelf",
    ):
        if path.is_mount():
            subprocess.run(["umount", str(path)], check=True)
    shutil.rmtree(base)


def findings(site: Site) -> list[tuple[str, str, str]]:
    found = command_line.answer(site.installation, "doctor")["findings"]
    return [(result["check"], result["status"], result["found"]) for result in found]


def test_a_good_site_has_nothing_to_change(site: Site) -> None:
    assert command_line.run(site.installation, "policy", "check").stdout == "ok: 2 rules\n"
    assert not [found for found in findings(site) if found[1] in ("wrong", "critical")]


@pytest.mark.parametrize(("word", "plant"), IN_POLICY, ids=[word for word, _ in IN_POLICY])
def test_a_mistake_in_the_policy_is_told_by_policy_check(site: Site, word: str, plant: Plant) -> None:
    plant(site)
    shown = command_line.run(site.installation, "policy", "check")
    assert word in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    "mistake",
    [*MISTAKES, *(pytest.param(mistake, marks=pytest.mark.threat(row)) for row, mistake in THREATS)],
    ids=lambda mistake: f"{mistake.check} {mistake.word}",
)
def test_a_mistake_is_told_by_doctor(site: Site, mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, group in ((doctor, "POLICY"), (doctor, "NODE"), (store, "CHECKS"), (doctor, "SLURM")):
        only = [check for check in getattr(module, group) if check.name == mistake.check]
        monkeypatch.setattr(module, group, only)  # the others take time
    mistake.plant(site)
    of_it = [found for found in findings(site) if found[0] == mistake.check]
    assert [found for found in of_it if found[1] == mistake.status and mistake.word in found[2]], of_it


def _open_all(site: Site) -> None:
    subprocess.run(["chmod", "-R", "777", str(site.store)], check=True)


def _open_groups_directory(site: Site) -> None:
    (site.store / "caches/u1/numba").mkdir(parents=True)
    site.give(site.store, 1)
    (site.store / "caches/u1/numba").chmod(0o2775)


def _add_a_users(site: Site) -> None:
    (site.store / "caches/u1").mkdir()
    site.give(site.store, 1)
    (site.store / "caches/u1/used").touch()
    site.give(site.store / "caches/u1/used", 5)


@pytest.mark.parametrize("plant", [_open_all, _open_groups_directory, _add_a_users])
def test_the_advice_for_a_store_that_others_write_mends_it(site: Site, plant: Callable[[Site], None]) -> None:
    plant(site)
    advice = command_line.run(site.installation, "doctor").stdout
    assert "critical" in advice
    find, chmod = re.search(r"\((find [^)]+)\)", advice), re.search(r"chmod -R go-w [^ ,`]+", advice)
    assert find is not None
    assert chmod is not None
    subprocess.run(["sh", "-c", f"{find[1]} -delete; {chmod[0]}"], check=True)
    mended = command_line.run(site.installation, "doctor", "--all").stdout
    assert re.search(r"^ok +store.permissions", mended, re.MULTILINE)
    assert "critical" not in mended


def test_a_workspace_of_a_users_is_told_once(site: Site) -> None:
    os.makedirs(site.installation.node("n2").state)
    os.chown(site.base / "workspace", 5, 5)
    shown = command_line.run(site.installation, "doctor").stdout
    assert shown.count("others than root can change") == 1
    assert "run it as root" not in shown
