"""Checks of wings are doctor's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warmstart import wing
from warmstart.doctor import wings
from warmstart.doctor.finding import OK, Finding
from warmstart.doctor.wings import Checks


def test_the_checks_of_all_wings_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file that declares them."""
    checks = Checks(node={"node.lamp": lambda _node: iter([Finding(OK, "it is lit")])}, critical=("node.lamp",))
    monkeypatch.setattr(wing, "with_part", lambda part: [f"one.{part}"])
    monkeypatch.setattr(wing, "load", lambda module: SimpleNamespace(CHECKS=checks, module=module))
    assert wings.of_wings() == [checks]
