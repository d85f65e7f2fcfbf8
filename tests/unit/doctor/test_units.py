"""What to do for a unit: nothing is called missing that is there, and no other installation's is taken for ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.doctor import units
from warmstart.paths import Installation

TARGET = "warmstart-store.target"
ENABLE = f"`systemctl enable --now {TARGET}`"
SERVICE = "warmstart-maintain-store.service"


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Return where systemd, which runs, reads units: the administrator's directory, and the packages'."""
    found = [tmp_path / "etc", tmp_path / "usr"]
    for place in found:
        place.mkdir()
    monkeypatch.setattr(units, "UNITS", tuple(map(str, found)))
    monkeypatch.setattr(units, "SYSTEMD", str(tmp_path))
    return found


def told(prefix: str = "/usr") -> str:
    return units.scheduled(Installation(prefix), TARGET, "otherwise")


@pytest.mark.report
def test_what_to_do_depends_on_the_unit(places: list[Path]) -> None:
    etc, usr = places
    assert told().startswith(f"`cp /usr/share/warmstart/systemd/* {etc}/`")
    (usr / TARGET).touch()
    (usr / SERVICE).write_text("[Service]\nExecStart=/usr/bin/warmstart maintain --store\n")
    assert told() == ENABLE
    (etc / "multi-user.target.wants").mkdir()
    (etc / "multi-user.target.wants" / TARGET).symlink_to(usr / TARGET)
    assert "is enabled" in told()
    assert f"`systemctl start {TARGET}`" in told()
    assert "systemctl enable" not in told()
    (usr / "warmstart-harvest.service").symlink_to("/dev/null")  # which systemd does not start
    assert "is enabled" in told()
    (etc / TARGET).symlink_to("/dev/null")
    assert told() == f"it is masked: `systemctl unmask {TARGET}`, then {ENABLE}"


@pytest.mark.report
def test_units_of_another_installation_do_nothing_for_this_one(places: list[Path]) -> None:
    etc, usr = places
    (usr / TARGET).touch()
    (usr / SERVICE).write_text("[Service]\nExecStart=/usr/bin/warmstart maintain --store\n")
    assert told("/usr/local").startswith("the units here are those of /usr: ")
    (etc / SERVICE).write_text("[Service]\nExecStartPre=/bin/true\nExecStart=/usr/local/libexec/warmstart/timers\n")
    assert told("/usr/local") == ENABLE
    assert told().startswith("the units here are those of /usr/local: ")


def test_without_systemd_something_else_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(units, "SYSTEMD", str(tmp_path / "none"))
    assert told() == "otherwise"
