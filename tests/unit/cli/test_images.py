"""`warmstart images`: what it shows, checks and changes, imports under way, and exit statuses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lib.image_site import release
from tests.lib.node import Node, OsAs
from tests.lib.superblocks import image
from warmstart import session as sessions
from warmstart.cli import image_store
from warmstart.images.choice import recipe
from warmstart.images.importers.base import ImageNotFound
from warmstart.images.imports import making, requests
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.query import Missing, Obtained, Site
from warmstart.images.reference import Reference
from warmstart.images.store import published
from warmstart.images.store.layout import NOBODY
from warmstart.images.store.published import ImageProducer

HEX, OTHER, PRIVATE = "ab" * 32, "cd" * 32, "ef" * 32
REFERENCE = "reg.example.com/a:1"
LOCK = "reg.example.com+a=1.x86_64.oci2"
PRODUCER = ImageProducer("n9", 99, 8, "2026-01-31T09:30:00Z", "fetching it", 1 << 30)


@pytest.fixture
def site(node: Node) -> Node:
    """Give a store with two images, and a private one with another, as root sees it."""
    for folder, name in (("images", HEX), ("images", OTHER), ("private/team/images", PRIVATE)):
        path = node.store / folder / f"{name}.{kind(node)}.sqsh"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image())
        os.utime(path, (1, 1))  # no live job can have it
    node.patch.setattr(image_store, "os", OsAs(0))
    os.makedirs(node.paths.state)
    return node


def kind(node: Node) -> str:
    return f"{os.uname().machine}.{recipe(node.policy.images.importer)}"


def names(site: Node) -> list[str]:
    return sorted(entry["name"].partition(".")[0] for entry in site.json("images", "list") if not entry["private"])


@pytest.mark.parametrize("is_root", [True, False])
def test_private_images_are_for_roots_eyes(site: Node, monkeypatch: pytest.MonkeyPatch, is_root: bool) -> None:
    """Nobody else knows even their names."""
    with image_store.opened(site.installation) as store:
        monkeypatch.setattr(image_store, "os", OsAs(0 if is_root else 1000))
        assert {entry.private for entry in store.inventory()} == ({"", "team"} if is_root else {""})


@pytest.mark.parametrize(
    ("text", "status"),
    [(HEX[:6], 0), (HEX, 0), (f"sha256:{HEX}", 0), (HEX[:4], 1), ("ee" * 32, 1), ("reg.example.com/none:1", 1)],
)
def test_one_image_is_shown(site: Node, text: str, status: int) -> None:
    """By its digest, its path, or so many letters of its name that it is no accident."""
    result = site.command("images", "show", text)
    assert (result.exit_code, HEX in result.stdout) == (status, status == 0)
    assert status == 0 or "no such image" in result.stderr
    path = site.json("images", "list")[0]["path"]
    assert site.json("images", "show", path)["path"] == path


def test_every_tag_finds_its_image(site: Node) -> None:
    """The first, and a second one; a tag that has moved is its new image's."""
    for name in (HEX, OTHER):  # both were imported as the same tag
        known = {"digest": f"sha256:{name}", "reference": REFERENCE}
        (site.store / "images" / f"{name}.{kind(site)}.json").write_text(json.dumps(known))
    for tag, digest in (("1", OTHER), ("2", HEX), ("3", HEX)):
        published.point(str(site.store), f"reg.example.com+a={tag}", f"sha256:{digest}", 1.0, "me")
    assert site.json("images", "show", REFERENCE)["name"].startswith(OTHER)
    second = site.json("images", "show", "docker://reg.example.com/a:2")
    assert second["tags"] == ["reg.example.com/a:2", "reg.example.com/a:3"]
    assert site.command("images", "show", "reg.example.com/a:4").exit_code == 1


def test_a_pinned_image_stays(site: Node) -> None:
    """Until it is unpinned, or someone insists."""
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


def test_a_private_image_is_named_by_its_path_where_a_shared_one_has_its_name(site: Node) -> None:
    shared = site.store / "images" / f"{HEX}.{kind(site)}.sqsh"
    private = site.store / "private" / "team" / "images" / shared.name
    private.write_bytes(image())
    assert site.command("images", "show", HEX).exit_code == 1  # which of both?
    assert site.json("images", "show", str(private))["private"] == "team"
    assert site.command("images", "pin", str(private)).exit_code == 0
    protected = [site.json("images", "show", str(path))["protected"] for path in (private, shared)]
    assert protected == ["pinned", ""]
    assert len(site.json("images", "rm", str(private), "--force")["removed"]) == 1
    assert (private.exists(), shared.exists()) == (False, True)


def test_a_damaged_image_is_put_away(site: Node) -> None:
    assert {row["how"] for row in site.json("images", "verify")} == {"intact"}
    path = site.store / "images" / f"{HEX}.{kind(site)}.sqsh"
    path.write_bytes(image()[:-1] + b"x")
    result = site.command("images", "verify", HEX)
    assert (result.exit_code, names(site)) == (1, [OTHER])
    (damaged,) = site.events("image.damaged")
    assert "SHA-256" in damaged["reason"]


def test_an_image_is_brought_into_the_store_by_hand(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no job, and in nobody's quota. Status 1 for one that does not exist, 2 for one that jobs may not have."""

    def obtain(reference: Reference, here: Site, _deadline: object) -> Obtained:
        assert (here.requester.job_id, here.charged.uid) == (0, NOBODY.uid)
        if reference.repository == "none":
            raise ImageNotFound(image=reference.canonical())
        return Obtained("x", "/store/x.sqsh", f"sha256:{HEX}", 5, "imported", 0.0, Missing(lockless="odd"))

    monkeypatch.setattr(making, "obtain", obtain)
    found = site.json("images", "import", REFERENCE)
    assert (found["path"], found["bytes"], found["how"]) == ("/store/x.sqsh", 5, "imported")
    assert ([image["how"] for image in site.images()], len(site.remarks())) == (["imported"], 1)
    gone = site.command("images", "import", "reg.example.com/none:1")
    assert (gone.exit_code, "does not exist" in gone.stderr) == (1, True)
    assert '"code": "image-not-found"' in site.command("images", "import", "reg.example.com/none:1", "--json").stdout
    for refused in ("evil.example.com/a:1", "NO SUCH THING"):
        assert site.command("images", "import", refused).exit_code == 2


@pytest.mark.parametrize(
    "command", [("pin", HEX), ("unpin", HEX), ("verify",), ("import", "a:1"), ("cancel", REFERENCE)]
)
def test_only_root_changes_anything(site: Node, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    assert site.command("images", *command).exit_code == 2
    assert names(site) == [HEX, OTHER]


def test_without_a_policy_there_is_no_store(site: Node) -> None:
    os.unlink(site.installation.compiled_policy)
    for command in (("list",), ("pin", HEX)):
        result = site.command("images", *command)
        assert (result.exit_code, "policy.yaml" in result.stderr) == (2, True)


# Imports under way.


@pytest.fixture
def importing(site: Node) -> Iterator[None]:
    """Have another node import the image."""
    assert published.begin(str(site.store), LOCK, PRODUCER, "test") == ""
    yield
    published.end(str(site.store), LOCK)
    release()


def ask(site: Node, reference: str, uid: int = 1000) -> ImportRequest:
    """Write a hook's request."""
    request = ImportRequest(
        reference=reference, kind="x86_64.oci2", private="", user="ws-alice", uid=uid,
        cluster="test", job_id=7, asked=time.time(),
    )  # fmt: skip
    assert requests.submit(site.paths, request) == ""
    return request


def coming(site: Node) -> Any:  # noqa: ANN401 - JSON
    return site.json("images", "list", "--imports")


@pytest.mark.usefixtures("importing")
def test_an_import_is_listed_with_its_progress(site: Node) -> None:
    """Who, since when, and how far: in the list, and for the image itself."""
    (known,) = coming(site)
    assert (known["reference"], known["node"], known["job_id"]) == (REFERENCE, "n9", 8)
    assert (known["since"], known["done"]) == ("2026-01-31T09:30:00Z", 1 << 30)
    listed = site.command("images", "list").stdout
    (line,) = (line for line in listed.splitlines() if "fetching it" in line)
    assert line.split()[3:5] == ["2026-01-31T09:30:00Z", "1GiB"]
    shown = site.command("images", "show", "docker://reg.example.com/a:1")
    assert (shown.exit_code, "1GiB" in shown.stdout) == (0, True)
    assert [known["phase"] for known in site.json("images", "show", REFERENCE)["imports"]] == ["fetching it"]


@pytest.mark.usefixtures("importing")
def test_what_waits_for_its_turn_is_listed_too(site: Node) -> None:
    ask(site, REFERENCE)
    for uid in (1000, 1001):
        ask(site, "reg.example.com/b:1", uid)
    assert [(known["reference"], known["phase"]) for known in coming(site)] == [
        (REFERENCE, "fetching it"),
        ("reg.example.com/b:1", image_store.WAITS),
    ]


@pytest.mark.usefixtures("importing")
def test_others_than_root_see_no_imports(site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_store, "os", OsAs(1000))
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    refused = site.command("images", "list", "--imports")
    assert (refused.exit_code, "needs root: warmstart images list --imports" in refused.stderr) == (2, True)


def test_a_request_is_cancelled(site: Node) -> None:
    request = ask(site, REFERENCE)
    ask(site, REFERENCE, uid=1001)
    done = site.command("images", "cancel", REFERENCE)
    assert (done.exit_code, "cancelled" in done.stdout) == (0, True)
    assert requests.waiting(site.paths) == []
    told = requests.last_failure(site.paths, request.image)
    assert told
    assert (told.code, "it was cancelled" in told.text) == ("image-import-failed", True)
    assert [event["image"] for event in site.events("image.import-cancelled")] == [REFERENCE]


@pytest.mark.usefixtures("importing")
def test_the_import_of_another_host_is_not_cancelled_here(site: Node) -> None:
    other = site.command("images", "cancel", REFERENCE)
    assert (other.exit_code, "n9: cancel it there" in other.stderr) == (1, True)
    assert site.command("images", "cancel", "reg.example.com/b:1").exit_code == 1
