"""`warmstart images` on a store of ours: what it shows, checks and changes, and its exit statuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.node import Node, OsAs
from tests.lib.superblocks import image
from warmstart import session as sessions
from warmstart.images.choice import recipe

HEX = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def site(node: Node) -> Node:
    kind = f"{os.uname().machine}.{recipe(node.policy.images.importer)}"
    (node.store / "images").mkdir()
    for name in (HEX, OTHER):
        path = node.store / "images" / f"{name}.{kind}.sqsh"
        path.write_bytes(image())
        os.utime(path, (1, 1))  # no live job can have it
    return node


def names(site: Node) -> list[str]:
    return sorted(entry["name"].partition(".")[0] for entry in site.json("images", "list"))


@pytest.mark.parametrize(
    ("image", "status"), [(HEX[:6], 0), (HEX, 0), ("ab" * 2, 1), ("ef" * 32, 1), ("reg.io/none:1", 1)]
)
def test_one_image_is_shown(site: Node, image: str, status: int) -> None:
    result = site.command("images", "show", image)
    assert result.exit_code == status
    assert (HEX in result.stdout) is (status == 0)
    path = site.json("images", "list")[0]["path"]
    assert site.json("images", "show", path)["path"] == path


def test_a_pinned_image_stays(site: Node) -> None:
    assert site.command("images", "unpin", HEX).exit_code == 1
    assert site.command("images", "pin", HEX).exit_code == 0
    result = site.command("images", "rm", HEX, OTHER)
    assert (result.exit_code, "protected" in result.stdout, names(site)) == (1, True, [HEX])
    assert site.command("images", "unpin", HEX).exit_code == 0
    site.command("images", "pin", HEX)
    evicted = site.json("images", "rm", HEX, "--force")
    assert ([name.partition(".")[0] for name in evicted["removed"]], evicted["kept"], names(site)) == ([HEX], [], [])
    assert len(site.events("image.pinned")) == 2
    assert len(site.events("image.unpinned")) == 1
    assert len(site.events("image.evicted")) == 2


def test_a_damaged_image_is_put_away(site: Node) -> None:
    assert {row["how"] for row in site.json("images", "verify")} == {"intact"}
    path = Path(next(entry["path"] for entry in site.json("images", "list") if HEX in entry["name"]))
    path.write_bytes(image()[:-1] + b"x")
    result = site.command("images", "verify", HEX)
    assert (result.exit_code, names(site)) == (1, [OTHER])
    (damaged,) = site.events("image.damaged")
    assert "SHA-256" in damaged["reason"]


@pytest.mark.parametrize("command", [("pin", HEX), ("unpin", HEX), ("verify",), ("import", "a:1")])
def test_only_root_changes_anything(site: Node, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    assert site.command("images", *command).exit_code == 2
    assert names(site) == [HEX, OTHER]
