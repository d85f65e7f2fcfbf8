"""The names that stand for a reference: what machines share, and what they may not."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.support.image_site import RULES
from warmstart.images.query import query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store.layout import ImageQuery


def on(machine: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> ImageQuery:
    """Return the names of one tag on a node with that CPU."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    return query_by_rules(parse("reg.io/team/tool:1"), RULES, recipe)


def test_enroots_answer_is_one_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`enroot digest` says the manifest for its CPU: on another one that digest is another image."""
    here, there = on("x86_64", "enroot1", monkeypatch), on("aarch64", "enroot1", monkeypatch)
    assert here.key != there.key
    assert here.lock != there.lock


def test_skopeos_answer_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says the digest of the list, which an import picks from: one question for all machines."""
    here, there = on("x86_64", "oci1", monkeypatch), on("aarch64", "oci1", monkeypatch)
    assert here.key == there.key == "reg.io+team+tool=1"
    assert here.lock != there.lock


def test_no_tag_stands_for_anothers_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What parts the machine from the tag is in no tag."""
    here = on("x86_64", "enroot1", monkeypatch)
    assert here.key == "reg.io+team+tool=1~x86_64"
    assert "~" not in query_by_rules(parse("reg.io/team/tool:1.x86_64"), RULES, "oci1").key
