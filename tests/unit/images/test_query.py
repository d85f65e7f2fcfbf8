"""The names that stand for a reference: what machines share, and what they may not."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.lib.image_site import RULES
from warmstart.images.query import query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store.layout import ImageQuery


def on(machine: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> ImageQuery:
    """Return the names of one tag on a node with that CPU."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    return query_by_rules(parse("reg.io/team/tool:1"), RULES, recipe)


def test_a_tag_means_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = on("x86_64", "oci1", monkeypatch), on("aarch64", "enroot1", monkeypatch)
    assert here.key == there.key == "reg.io+team+tool=1"
    assert here.lock != there.lock
