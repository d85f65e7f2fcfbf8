"""Parts of wings are maintenance's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warmstart import wing
from warmstart.maintenance import wings
from warmstart.maintenance.wings import Parts


def test_the_parts_of_all_wings_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file that declares them."""
    parts = Parts(node={"sweep": lambda _session: 3})
    monkeypatch.setattr(wing, "with_part", lambda part: [f"one.{part}"])
    monkeypatch.setattr(wing, "load", lambda module: SimpleNamespace(PARTS=parts, module=module))
    assert wings.of_wings() == [parts]
