"""Every mistake of `tests.lib.mistakes` is found by its command, with its words."""

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
from tests.lib.mistakes import CHECK, DOCTOR, MISTAKES, Mistake, Site
from warmstart.cli import doctor
from warmstart.doctor import kernel


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a good site. What only a kernel decides is left out: it is no mistake, and takes seconds."""
    slow = ("node.seeding", "node.image-limits")
    monkeypatch.setattr(doctor, "NODE", {name: check for name, check in doctor.NODE.items() if name not in slow})
    assert "node.job-ends" in kernel.CHECKS
    base = Path(tempfile.mkdtemp(prefix="ws-mis-", dir="/var/tmp"))
    base.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(base / "slurm.conf"))
    found = Site.make(base)
    yield found
    for path in (Path(found.installation.var), base / "log", base / "workspace", found.store):
        if path.is_mount():
            subprocess.run(["umount", str(path)], check=True)
    shutil.rmtree(base)


def output(site: Site, command: str) -> str:
    """Return all that a command prints."""
    result = command_line.run(site.installation, *command.split())
    return result.stdout + result.stderr


def test_a_good_site_has_none_of_them(site: Site) -> None:
    """So each message is because of its mistake."""
    shown = {command: output(site, command) for command in (CHECK, DOCTOR)}
    assert shown[CHECK] == "ok: 2 rules\n"
    assert "wrong" not in shown[DOCTOR], shown[DOCTOR]
    assert "critical" not in shown[DOCTOR], shown[DOCTOR]
    assert [mistake.what for mistake in MISTAKES if mistake.says in shown[mistake.command]] == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.where}: {mistake.what}")
def test_each_is_found(site: Site, mistake: Mistake) -> None:
    """By the command, with the words, of the table."""
    mistake.plant(site)
    shown = output(site, mistake.command)
    assert mistake.says in shown, shown


def _open_all(site: Site) -> None:
    subprocess.run(["chmod", "-R", "777", str(site.store)], check=True)


def _open_groups_directory(site: Site) -> None:
    (site.store / "artifacts/u1/numba").mkdir(parents=True)
    site.give(site.store, 1)
    (site.store / "artifacts/u1/numba").chmod(0o2775)


def _add_a_users(site: Site) -> None:
    (site.store / "artifacts/u1").mkdir()
    site.give(site.store, 1)
    (site.store / "artifacts/u1/index.json").touch()
    site.give(site.store / "artifacts/u1/index.json", 5)


@pytest.mark.parametrize("plant", [_open_all, _open_groups_directory, _add_a_users])
def test_the_advice_for_a_store_that_others_write_mends_it(site: Site, plant: Callable[[Site], None]) -> None:
    """Followed word for word it leaves nothing, and doctor says so."""
    plant(site)
    advice = output(site, DOCTOR)
    assert "critical" in advice
    find, chmod = re.search(r"\((find [^)]+)\)", advice), re.search(r"chmod -R go-w [^ ,`]+", advice)
    assert find is not None
    assert chmod is not None
    subprocess.run(["sh", "-c", f"{find[1]} -delete; {chmod[0]}"], check=True)
    mended = output(site, f"{DOCTOR} --all")
    assert f"only its owner can write {site.store}" in mended
    assert "critical" not in mended


def test_a_workspace_of_a_users_is_told_once(site: Site) -> None:
    """And not by advice to be root, which the caller is."""
    os.makedirs(site.installation.node("n2").state)
    os.chown(site.base / "workspace", 5, 5)
    shown = output(site, DOCTOR)
    assert shown.count("others than root can change") == 1
    assert "run it as root" not in shown
