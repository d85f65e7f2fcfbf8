"""What should be flat is flat, at small sizes; `python -m tools.growth` takes large ones and draws the curves."""

from __future__ import annotations

import pytest

from tools.growth.__main__ import MEASUREMENTS, main

pytestmark = pytest.mark.sweep


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_nothing_grows_that_should_not(capable_host: None, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By counts of system calls, by memory, and by the number of imports; never by time."""
    status = main(["--quick", "--only", name])
    assert (status, capsys.readouterr().err) == (0, "")
