"""What each depth of verification catches, found by damaging a real image (docs/reference/images.md has the table).

The store refuses root's uid: the damage is done in the directory behind it, and found by its owner.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.lib.accounts import STORE, VALIDATE
from tests.lib.image_place import KIND, Place, Store, squashfs
from warmstart.host.deadline import after
from warmstart.images import reference
from warmstart.images.imports import verify
from warmstart.images.squashfs import ImageInvalid, parse
from warmstart.images.store import layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import ImageQuery

PAGE = 4096
DIGEST = f"sha256:{'ab' * 32}"
NAME = layout.image_name(DIGEST, KIND)
HTML = b"<!DOCTYPE html><html><head><title>429 Too Many Requests</title></head><body>slow down</body></html>\n"
Catches = Callable[[bytes], bool]


@pytest.fixture(scope="module")
def whole(place: Place) -> bytes:
    """Return an image of forty pages: data, fragments, inodes, directories, ids."""
    return squashfs(place.base / "whole.sqsh", 150_000).read_bytes()


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store that refuses every uid but its owner's, with room for the image."""
    with place.squashed(request.node.name, coherent=True) as made:
        place.own(made.source / "images")
        yield made


@pytest.fixture
def depths(place: Place, store: Store, whole: bytes) -> Iterator[dict[str, Catches]]:
    """Return whether each depth catches the bytes of a file in place of the image."""
    path = store.source / "images" / f"{NAME}.sqsh"
    path.write_bytes(whole)
    want = ImageQuery(reference.parse(f"reg.io/a@{DIGEST}"), KIND, "", "", 0.0)
    with ImageStoreClient.of(place.identity(STORE), str(store.path)) as owner:

        def superblock(data: bytes) -> bool:
            path.write_bytes(data)
            found = owner.find(want, after(30))
            assert found is not None
            return bool(found.invalid)

        def listing(data: bytes) -> bool:
            # Of the node's own copy, before it is published.
            copy = place.base / "candidate"
            copy.write_bytes(data)
            copy.chmod(0o444)
            fd = os.open(copy, os.O_RDONLY)
            try:
                verify.check_listing(fd, place.identity(VALIDATE), after(30))
            except ImageInvalid:
                return True
            finally:
                os.close(fd)
            return False

        def full(data: bytes) -> bool:
            path.write_bytes(data)
            return bool(owner.run(after(30), published.check_bytes, NAME, "t").problem)

        assert not full(whole)  # and its SHA-256 is known from now on
        yield {"superblock": superblock, "list": listing, "full": full}


def killed_packer(place: Place) -> bytes:
    """Return what mksquashfs has written when it is killed midway."""
    tree, path = place.base / "big", place.base / "partial.sqsh"
    tree.mkdir()
    for number in range(40):
        (tree / str(number)).write_bytes(os.urandom(1 << 20))
    packer = subprocess.Popen(
        ["mksquashfs", str(tree), str(path), "-no-progress", "-quiet", "-comp", "xz", "-processors", "1"],
        stdout=subprocess.DEVNULL,
    )
    while not path.exists() or path.stat().st_size < 1 << 20:
        assert packer.poll() is None
    packer.kill()
    packer.wait()
    return path.read_bytes()


# Which of the damaged files the depths `superblock`, `list` and `full` catch, as the page has it.
CATCHES = {
    "cut at a 4 KiB boundary": ("all", "all", "all"),
    "one 4 KiB page zeroed": ("some", "some", "all"),
    "mksquashfs killed half way": ("all", "all", "all"),
    "an HTML error page": ("all", "all", "all"),
    "another image's bytes after a good superblock": ("none", "all", "all"),
    "an older whole image under its name": ("none", "none", "all"),
}


def share(caught: list[bool]) -> str:
    return "all" if all(caught) else "some" if any(caught) else "none"


def test_what_each_depth_catches(place: Place, whole: bytes, depths: dict[str, Catches]) -> None:
    assert not any(catches(whole) for catches in depths.values())
    used = parse(whole[:96], len(whole)).bytes_used
    pages = range(0, len(whole), PAGE)
    damages = {
        "cut at a 4 KiB boundary": [whole[:at] for at in range(0, used, PAGE)],
        "one 4 KiB page zeroed": [
            whole[:at] + bytes(PAGE) + whole[at + PAGE :] for at in pages if whole[at : at + PAGE].strip(b"\0")
        ],
        "mksquashfs killed half way": [killed_packer(place)],
        "an HTML error page": [HTML],
        "another image's bytes after a good superblock": [whole[:96] + os.urandom(len(whole) - 96)],
        "an older whole image under its name": [squashfs(place.base / "other.sqsh", 150_000).read_bytes()],
    }
    for damage, files in damages.items():
        found = tuple(share([catches(data) for data in files]) for catches in depths.values())
        assert found == CATCHES[damage], damage
