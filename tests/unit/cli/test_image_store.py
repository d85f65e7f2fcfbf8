"""The image store for the command line: private stores are the owner's to see, names are what they say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.node import Node, OsAs
from tests.lib.superblocks import image
from warmstart.cli import image_store
from warmstart.cli.image_store import ImageStore, changed, opened
from warmstart.images.choice import recipe
from warmstart.images.store import published
from warmstart.images.store.eviction import ImageEntry

HEX = "ab" * 32


@pytest.fixture
def store(node: Node) -> Iterator[ImageStore]:
    """Give a store with an image, and a private one with another."""
    kind = f"{os.uname().machine}.{recipe(node.policy.images.importer)}"
    for path, name in (("images", HEX), ("private/team/images", "cd" * 32)):
        directory = node.store / path
        directory.mkdir(parents=True)
        (directory / f"{name}.{kind}.sqsh").write_bytes(image())
    with opened(node.installation) as found:
        yield found


@pytest.mark.parametrize("is_root", [True, False])
def test_private_stores_are_for_roots_eyes(store: ImageStore, monkeypatch: pytest.MonkeyPatch, is_root: bool) -> None:
    monkeypatch.setattr(image_store, "os", OsAs(0 if is_root else 1000))
    assert sorted(entry.private for entry in store.inventory()) == (["", "team"] if is_root else [""])


def test_every_tag_finds_its_image(store: ImageStore, capsys: pytest.CaptureFixture[str]) -> None:
    kind = store.find(HEX).name.partition(".")[2]
    images = Path(store.policy.paths.store, "images")
    other = "ef" * 32
    (images / f"{other}.{kind}.sqsh").write_bytes(image())
    for name in (HEX, other):  # both were imported as the same tag
        known = {"digest": f"sha256:{name}", "reference": "reg.example.com/a:1"}
        (images / f"{name}.{kind}.json").write_text(json.dumps(known))
    for tag, digest in (("1", other), ("2", HEX), ("3", HEX)):
        published.point(store.policy.paths.store, f"reg.example.com+a={tag}", f"sha256:{digest}", 1.0, "me")
    assert store.find("reg.example.com/a:1").name.startswith(other)
    assert store.find("docker://reg.example.com/a:2").tags == ["reg.example.com/a:2", "reg.example.com/a:3"]
    assert store.find("reg.example.com/a:3").name.startswith(HEX)
    with pytest.raises(click.exceptions.Exit):
        store.find("reg.example.com/a:4")
    assert "no such image" in capsys.readouterr().err


def test_without_a_policy_there_is_no_store(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    os.unlink(node.installation.compiled_policy)
    for give in (opened, changed):
        with pytest.raises(click.exceptions.Exit) as caught, give(node.installation):
            pytest.fail("no policy")
        assert caught.value.exit_code == 2
        assert "policy.yaml" in capsys.readouterr().err


@given(st.text("ab", max_size=10) | st.text(max_size=10))
def test_a_few_letters_name_nothing(text: str) -> None:
    entry = ImageEntry._make([""] * len(ImageEntry._fields))
    entry = entry._replace(name=HEX, path="/store/x.sqsh", digest=f"sha256:{HEX}", tags=["reg.io/a:1", "reg.io/a:2"])
    assert image_store._matches(entry, text) is (len(text) >= image_store.SHORTEST and HEX.startswith(text))
    for exact in (entry.path, entry.digest, "reg.io/a:1", "docker://reg.io/a:2"):
        assert image_store._matches(entry, exact)
