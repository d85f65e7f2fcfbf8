"""Each hint of `warmstart doctor` mends its fault and nothing else: the commands in it are run word for word."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib import command_line
from tests.lib.mistakes import Site
from tests.node.test_mistakes import site
from warmstart.doctor import units

pytestmark = pytest.mark.report
__all__ = ["site"]  # the fixture
COMMAND = re.compile(r"`((?:chown|chmod|install|find|rm) [^`]+)`")
Look = dict[str, tuple[int, int]]


def findings(site: Site) -> dict[str, dict[str, str]]:
    """Return what doctor finds but for what is ok, by check."""
    found = command_line.answer(site.installation, "doctor")["findings"]
    return {result["check"]: result for result in found if result["status"] in ("wrong", "critical", "unknown")}


def look(site: Site) -> Look:
    """Return owner and mode of all that a hint could change."""
    places = [site.base, *site.base.rglob("*"), Path("/dev/null")]
    return {str(path): (status.st_uid, status.st_mode) for path in places for status in [path.lstat()]}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, site: Site) -> Path:
    place = site.base / "units"
    place.mkdir()
    monkeypatch.setattr(units, "UNITS", (str(place),))
    return place


def _above_the_code(site: Site) -> None:
    """Let a user own the directory above the installation, who has private files there, and open ones."""
    (site.base / "prefix/theirs").mkdir(mode=0o777)
    (site.base / "prefix/theirs").chmod(0o777)
    os.chown(site.base / "prefix/theirs", 5, 5)
    os.chown(site.base / "prefix", 5, 5)


def _above_the_log(site: Site) -> None:
    """Let a user own a directory above the log's, which a daemon's group may write."""
    above = site.base / "logs"
    (above / "theirs").mkdir(parents=True)
    (above / "theirs").chmod(0o775)
    os.chown(above, 5, 5)
    site.edit(f"audit: {site.base}/log/", f"audit: {above}/theirs/")


def _named_in_a_sticky_directory(site: Site, key: str) -> None:
    """Name a directory that is not there, where anybody can make it first."""
    sticky = site.base / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    site.edit("paths: {", f"paths: {{{key}: {sticky}/mine, ")


def _workspace_in_a_sticky_directory(site: Site) -> None:
    site.edit(f"workspace: {site.base}/workspace, ", "")
    _named_in_a_sticky_directory(site, "workspace")


def _modules(site: Site) -> None:
    for number in range(9):
        path = Path(site.installation.lib, f"python-1/warmstart/m{number}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o664)


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        ("node.permissions", lambda site: os.chown(site.libexec / "prolog", 5, 5)),
        ("node.permissions", _modules),
        ("node.permissions", _above_the_code),
        ("slurm.hooks", lambda site: site.let_write("prolog")),
        ("node.permissions", lambda site: os.chown(site.base / "log", 5, 5)),
        ("node.permissions", _above_the_log),
        ("node.permissions", lambda site: os.chown(site.base / "workspace", 5, 5)),
        ("node.permissions", _workspace_in_a_sticky_directory),
        ("node.permissions", lambda site: os.chmod(site.installation.var, 0o777)),
        ("node.permissions", lambda site: os.chmod(site.base / "auth.json", 0o644)),
        ("job.access", lambda site: site.libexec.chmod(0o700)),
        ("job.access", lambda site: (site.base / "workspace").chmod(0o700)),
        ("job.access", lambda site: site.close_store()),
        ("store.permissions", lambda site: site.base.chmod(0o777)),
        ("store.permissions", lambda site: site.behind_a_link(5)),
        ("store.permissions", lambda site: site.behind_a_link(0, 0o777)),
        ("store.permissions", lambda site: site.store.chmod(0o775)),
    ],
)
def test_its_commands_mend_the_fault_and_nothing_else(site: Site, check: str, plant: Callable[[Site], object]) -> None:
    before = findings(site)
    assert check not in before, before
    whole = look(site)
    plant(site)
    planted, found = look(site), findings(site)[check]
    commands = COMMAND.findall(found["change"])
    assert commands, found
    for command in commands:
        subprocess.run(["sh", "-euc", command], check=True)
    mended = look(site)
    assert check not in findings(site), found
    changed = {path for path in planted if mended.get(path) != planted[path]}
    faults = {path for path in planted if planted[path] != whole.get(path) and not path.endswith("/theirs")}
    assert changed <= faults, (commands, changed)
    assert mended != planted, commands


def test_a_masked_unit_is_no_code(site: Site, place: Path) -> None:
    (place / "warmstart-harvest.timer").symlink_to("/dev/null")
    (place / "warmstart.target").symlink_to("/dev/null")
    assert "node.permissions" not in findings(site)
    (place / "warmstart-maintain.service").touch()
    (place / "warmstart-maintain.service").chmod(0o666)
    assert f"`chmod go-w {place}/warmstart-maintain.service`" in findings(site)["node.permissions"]["change"]


def test_a_store_of_another_uid_is_not_to_be_removed(site: Site) -> None:
    """The account has another uid here than where the store is used."""
    (site.store / "images").mkdir()
    site.give(site.store, 5)
    found = findings(site)
    assert "store.permissions" not in found
    assert found["store.owner"]["status"] == "critical"
    assert "give daemon the uid 5" in found["store.owner"]["change"]
    assert not [result for result in found.values() if "find " in result["change"] or "remove" in result["change"]]


def test_what_root_may_not_use_is_not_to_be_run_as_root(site: Site) -> None:
    """Root is at it: a shelf that others can change is told with what to do, once."""
    shelf = site.base / "shelf"
    shelf.mkdir()
    shelf.chmod(0o777)
    site.edit("paths: {", f"paths: {{shelf: {shelf}, ")
    found = findings(site)
    assert "others than root can change" in found["node.permissions"]["found"]
    assert not [result for result in found.values() if "run it as root" in result["change"]]
