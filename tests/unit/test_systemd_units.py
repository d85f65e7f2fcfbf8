"""The units that an installation offers say when maintenance runs, and hide no failure of it."""

import re
from pathlib import Path

import pytest

from warmstart.entry import timers
from warmstart.harvest.live import LIVE
from warmstart.images.imports import requests
from warmstart.paths import Installation
from warmstart.session import NODE_INTERVAL_S, STORE_INTERVAL_S

pytestmark = pytest.mark.threat(22)

UNITS = Path(__file__).resolve().parents[2] / "packaging" / "systemd"


@pytest.mark.parametrize("unit", ["warmstart-maintain.service", "warmstart-maintain-store.service"])
def test_a_failed_run_is_a_failed_unit(unit: str) -> None:
    assert "SuccessExitStatus" not in (UNITS / unit).read_text()


def test_doctor_knows_the_intervals() -> None:
    """It alarms three intervals after the last success."""
    node = (UNITS / "warmstart-maintain.timer").read_text()
    minutes = re.findall(r"^OnUnitActiveSec=(\d+)min$", node, re.MULTILINE)
    assert [int(number) * 60 for number in minutes] == [NODE_INTERVAL_S]
    store = (UNITS / "warmstart-maintain-store.timer").read_text()
    assert re.findall(r"^OnCalendar=(.*)$", store, re.MULTILINE) == ["*-*-* 03:00"]
    assert STORE_INTERVAL_S == 24 * 3600


def test_jobs_that_run_are_harvested_where_there_are_any() -> None:
    """As often as in pods. No process starts elsewhere."""
    unit, timer = ((UNITS / f"warmstart-harvest.{kind}").read_text() for kind in ("service", "timer"))
    paths = Installation("@PREFIX@").node("*")
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    assert settings["ConditionPathExistsGlob"] == f"@RUN@/*/queue/{LIVE.name}/*,*"
    assert settings["ExecStart"] == f"{paths.background_program} {LIVE.name}"
    assert f"OnCalendar=*:0/{timers.ROUND_S / 60:.0f}" in timer.split("\n")


def test_an_import_has_limits_and_may_clean_up() -> None:
    """Hooks start all of a node; what one takes too much of ends no other. A signal is for the first process alone."""
    unit = (UNITS / "warmstart-import@.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    assert settings["ExecStart"] == f"{Installation('@PREFIX@').node('n1').background_program} imports %i"
    assert requests.IMPORTS.unit.format("n1") == "warmstart-import@n1.service"
    assert (settings["KillMode"], settings["OOMPolicy"]) == ("mixed", "continue")
    assert {"CPUWeight", "IOWeight", "MemoryHigh", "MemoryMax", "TasksMax"} <= settings.keys()
    assert "[Install]" not in unit
