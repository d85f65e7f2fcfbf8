"""What each depth of validity catches, found by damaging a real image in every way; docs/images.md has the table."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.accounts import VALIDATE
from tests.integration.image_place import Place, opened_place, squashfs
from warmstart.host.deadline import after
from warmstart.images import validity
from warmstart.images.lookup import what_is_wrong
from warmstart.images.superblock import ImageInvalid, parse

PAGE = 4096
DOCUMENTED = Path(__file__).parents[2] / "docs" / "images.md"
HTML = b"<!DOCTYPE html><html><head><title>429 Too Many Requests</title></head><body>slow down</body></html>\n"
Catches = Callable[[bytes], bool]


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module."""
    with opened_place() as made:
        yield made


@pytest.fixture(scope="module")
def whole(place: Place) -> bytes:
    """Return an image of forty pages: data, fragments, inodes, directories, ids."""
    return squashfs(place.base / "whole.sqsh", 150_000).read_bytes()


@pytest.fixture
def depths(place: Place, whole: bytes) -> dict[str, Catches]:
    """Return for each depth whether it catches the bytes of a file that should be the image."""
    path = place.base / "store" / "images" / "i.sqsh"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole)
    path.with_suffix(".json").unlink(missing_ok=True)
    assert validity.check_bytes(str(place.base / "store"), "i", "t")["problem"] == ""

    def opened(data: bytes) -> int:
        path.write_bytes(data)
        path.chmod(0o444)
        return os.open(path, os.O_RDONLY)

    def superblock(data: bytes) -> bool:
        fd = opened(data)
        try:
            return bool(what_is_wrong(fd, os.fstat(fd)))
        finally:
            os.close(fd)

    def listing(data: bytes) -> bool:
        fd = opened(data)
        try:
            validity.check_listing(fd, place.identity(VALIDATE), after(30))
        except ImageInvalid:
            return True
        finally:
            os.close(fd)
        return False

    def full(data: bytes) -> bool:
        path.write_bytes(data)
        return bool(validity.check_bytes(str(place.base / "store"), "i", "t", True)["problem"])

    return {"superblock": superblock, "list": listing, "full": full}


def killed_packer(place: Place) -> bytes:
    """Return what mksquashfs has written when it is killed half way."""
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


def share(caught: list[bool]) -> str:
    """Return how much of a kind of damage was caught, in the words of the page."""
    return "all" if all(caught) else "some" if any(caught) else "none"


def test_the_page_says_what_each_depth_catches(place: Place, whole: bytes, depths: dict[str, Catches]) -> None:
    """The table in docs/images.md is what comes out here; the whole image passes every depth."""
    assert not any(catches(whole) for catches in depths.values())
    used = parse(whole[:96], len(whole)).bytes_used
    zeroed = [
        whole[:at] + bytes(len(page)) + whole[at + PAGE :]
        for at in range(0, len(whole), PAGE)
        if (page := whole[at : at + PAGE]).strip(b"\0")
    ]
    damages = {
        "cut at a 4 KiB boundary": [whole[:at] for at in range(0, used, PAGE)],
        "one 4 KiB page zeroed": zeroed,
        "mksquashfs killed half way": [killed_packer(place)],
        "an HTML error page": [HTML],
        "another image's bytes after a good superblock": [whole[:96] + os.urandom(len(whole) - 96)],
        "an older whole image under its name": [squashfs(place.base / "other.sqsh", 150_000).read_bytes()],
    }
    rows = []
    for damage, files in damages.items():
        found = [share([catches(data) for data in files]) for catches in depths.values()]
        rows.append(f"| {damage} | {len(files)} | {' | '.join(found)} |")
    print("\n".join(rows))  # noqa: T201
    documented = _without_numbers(DOCUMENTED.read_text())
    assert [row for row in rows if _without_number(row) not in documented] == []


def _without_number(row: str) -> str:
    return "|".join(part for number, part in enumerate(row.split("|")) if number != 2)


def _without_numbers(page: str) -> set[str]:
    return {_without_number(line) for line in page.splitlines() if line.startswith("|")}


def test_a_good_reading_is_remembered_by_the_files_state(
    place: Place, whole: bytes, depths: dict[str, Catches]
) -> None:
    """The note has inode, size, mtime and ctime, and nothing that an image could say of itself."""
    depths["full"](whole)
    note = json.loads((place.base / "store" / "images" / "checked" / "i.json").read_text())
    status = (place.base / "store" / "images" / "i.sqsh").stat()
    assert note["stamp"] == [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
