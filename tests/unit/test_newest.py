"""Which tools have moved since their profiles were read: with a stand-in for the registry."""

from __future__ import annotations

import pytest

from tools import newest
from warmstart.profiles import registry


def test_every_profile_has_its_releases() -> None:
    """A profile that is added is asked for, too."""
    assert sorted(newest.READ) == registry.names()


def test_what_has_moved_and_what_is_unknown_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only these, with both releases; the status tells scripts."""
    found = {"warp-lang": "1.20.0", "cupy-cuda13x": "14.2.0"}
    monkeypatch.setattr(newest, "READ", {"warp": {"warp-lang": "1.19.0"}, "cupy": {"cupy-cuda13x": "14.2.0"}})
    monkeypatch.setattr(newest, "newest", lambda name: found.get(name, ""))
    assert newest.main() == 1
    assert capsys.readouterr().out == "warp: warp-lang was read at 1.19.0; the newest is 1.20.0\n"
    found["warp-lang"] = "1.19.0"
    assert newest.main() == 0
    monkeypatch.setattr(newest, "newest", lambda _: "")
    assert newest.main() == 1
    assert "cupy: cupy-cuda13x was read at 14.2.0; the newest is unknown" in capsys.readouterr().out
