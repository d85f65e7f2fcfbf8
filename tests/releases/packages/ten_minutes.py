"""docs/start/ten-minutes.md word for word, where its package is installed. Run by `test_deb` in a bare root."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.releases.packages.trial import Trial, alike, normal_findings, page


@pytest.fixture
def trial(capable_host: None) -> Iterator[Trial]:
    with Trial() as started:
        yield started


def test_the_page(trial: Trial) -> None:
    """Each command succeeds and prints what the page shows, doctor finds no more, and the second job is warm."""
    said: dict[str, str] = {}
    for command in page():
        if command.path:
            trial.write(command)
        elif not command.line.startswith(("make deb", "apt install")):  # done by test_deb
            said[command.line] = trial.run(command.line)
        if command.line == "warmstart doctor":
            found = bad(trial) - {"store.space"}  # this machine's disk may be rather full
            assert {*found, "node.disks"} == normal_findings()
    others = [
        said[shown.line]
        for shown in page()
        if shown.line and shown.text and alike(shown.text) != alike(said[shown.line])
    ]
    assert not others, "\n".join(others)
    first, second = said["cat first.txt second.txt"].splitlines()
    assert (first[-16:], second[-16:]) == ("0 from the cache", "1 from the cache")
    assert "warm: " in said["warmstart explain JOBID"]
    assert "store.maintenance" not in bad(trial)


def bad(trial: Trial) -> set[str]:
    return {
        row["check"] for row in json.loads(trial.run("warmstart doctor --json"))["findings"] if row["status"] != "ok"
    }
