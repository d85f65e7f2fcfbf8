"""What is checked of an image before it is published: its superblock, and what its listing counts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.superblocks import GOOD, PADDED, packed
from warmstart.host.process import CompletedProgram
from warmstart.images.imports import verify
from warmstart.images.imports.verify import Listing
from warmstart.images.squashfs import ABSENT, ImageInvalid, Superblock, parse

WRONG = [
    ({"magic": 0x68737173}, "no squashfs magic"),
    ({"major": 3, "minor": 1}, "version 3.1 and not 4.0"),
    ({"block_size": 131073}, "block size 131073 with log 17"),
    ({"block_log": 63}, "block size 131072 with log 63"),
    ({"block_size": 2048, "block_log": 11}, "block size 2048 with log 11"),
    ({"compression": 0}, "unknown compressor 0"),
    ({"compression": 7}, "unknown compressor 7"),
    ({"compression": 2}, "compressed by lzma, which neither Linux nor squashfuse reads"),
    ({"inodes": 0}, "no inodes or no ids"),
    ({"no_ids": 0}, "no inodes or no ids"),
    ({"bytes_used": 4097}, "cut short: 4096 of 4097 bytes"),
    ({"inode_table": 95}, "its inode table is out of place"),
    ({"inode_table": 2400}, "its inode table is empty"),
    ({"directory_table": 1999}, "its directory table is out of place"),
    ({"fragment_table": ABSENT}, "its fragment table is out of place"),
    ({"lookup_table": 2699}, "its export table is out of place"),
    ({"id_table": 3000}, "its id table is out of place"),
    ({"id_table": ABSENT}, "its id table is out of place"),
    ({"id_table": 2993}, "its id table is cut short"),
    ({"xattr_table": 2899}, "its xattr table is out of place"),
    ({"fragments": 1 << 20}, "its fragment table is cut short"),
    ({"root_inode": 400 << 16}, "its root inode is out of place"),
    ({"root_inode": 8192}, "its root inode is out of place"),
]


def test_takes_a_whole_image() -> None:
    assert parse(packed(), PADDED) == GOOD
    assert parse(packed(), GOOD.bytes_used) == GOOD


@pytest.mark.parametrize(("changes", "problem"), WRONG)
def test_names_what_is_wrong(changes: dict[str, int], problem: str) -> None:
    with pytest.raises(ImageInvalid) as raised:
        parse(packed(GOOD._replace(**changes)), PADDED)
    assert raised.value.fields["problem"] == problem


def test_refuses_what_follows_the_end() -> None:
    with pytest.raises(ImageInvalid):
        parse(packed(), GOOD.bytes_used + 4096)


@given(st.data())
def test_any_one_changed_field_is_survived(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(Superblock._fields))
    limit = {**dict.fromkeys(Superblock._fields[5:11], 16), **dict.fromkeys(Superblock._fields[11:], 64)}.get(name, 32)
    block = GOOD._replace(**{name: data.draw(st.integers(0, (1 << limit) - 1))})
    try:
        parse(packed(block), PADDED)
    except ImageInvalid:
        return
    assert block.inode_table < block.directory_table < block.id_table < block.bytes_used <= PADDED


# How much an image has, as its listing says.


LINE = b"-rw-r--r-- 0/0                %s 2026-11-27 07:25 squashfs-root/%s\n"


def counted(tmp_path: Path, listing: bytes, command: str = "cat", path: str = "") -> CompletedProgram:
    (tmp_path / "listing").write_bytes(listing)
    argv = ["/bin/sh", "-c", verify._COUNT, "sh", f"/bin/{command}", str(tmp_path / "listing")]
    environment = {"LC_ALL": "C.UTF-8", **({"PATH": path} if path else {})}
    done = subprocess.run(argv, capture_output=True, check=False, env=environment)
    return CompletedProgram(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("listing", "found"),
    [
        (LINE % (b"3", b"a") + LINE % (b"4", b"b c"), (2, 7)),
        (LINE % (b"5", b"in\xff\xfelatin"), (1, 5)),
        (LINE % (b"5", b"two\nlines -9 -9 7 x"), (2, 5)),
        (b"crw-r--r-- 0/0             1,  3 2026-11-27 07:25 squashfs-root/null\n", (1, 0)),
        (LINE % (b"-9", b"a"), (1, 0)),
    ],
)
def test_what_a_listing_says_is_counted(tmp_path: Path, listing: bytes, found: tuple[int, int]) -> None:
    assert verify.listed(counted(tmp_path, listing)) == found


@pytest.mark.parametrize("listing", [LINE % (b"9" * 17, b"a"), (LINE % (b"9" * 16, b"a")) * 200])
def test_more_bytes_than_there_can_be_are_not_counted(tmp_path: Path, listing: bytes) -> None:
    """A sum that overflows would be taken for a small one."""
    with pytest.raises(ImageInvalid, match="more bytes than a disk can have"):
        verify.listed(counted(tmp_path, listing))


def test_a_listing_that_fails_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(ImageInvalid, match=r"unsquashfs can't list it: .*Not a directory"):
        verify.listed(counted(tmp_path, b"", "rmdir"))


def test_a_listing_that_breaks_off_within_a_line_is_not_counted(tmp_path: Path) -> None:
    """As where unsquashfs crashes: what it has written ends at a multiple of its buffer's size."""
    with pytest.raises(ImageInvalid, match="unsquashfs can't list it"):
        verify.listed(counted(tmp_path, b"printf '%s' '-rw-r--r-- 0/0 3 2026'; kill -SEGV $$", "sh"))


@pytest.mark.report
@pytest.mark.parametrize(
    ("script", "is_the_images"),
    [("exit 1", True), ("kill -SEGV $$", True), ("kill -KILL $$", False), ("exit 127", False), ("exit 126", False)],
)
@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_whose_fault_it_is_that_an_image_cannot_be_listed(
    tmp_path: Path, script: str, path: str, *, is_the_images: bool
) -> None:
    done = counted(tmp_path, script.encode(), "sh", path=path)
    with pytest.raises(ImageInvalid) as raised:
        verify.listed(done)
    assert raised.value.fields["again"] is not is_the_images


@pytest.mark.report
@pytest.mark.parametrize("status", ["", " 256", " 0"])
def test_a_name_does_not_end_a_listing_well(tmp_path: Path, status: str) -> None:
    """Nothing would be counted."""
    try:
        assert verify.listed(counted(tmp_path, LINE % (b"5", b"two\nfailed" + status.encode()))) == (2, 5)
    except ImageInvalid as error:
        assert not error.fields["again"]  # noqa: PT017


@pytest.mark.parametrize(("command", "status"), [("cat", 0), ("false", 1)])
def test_without_a_program_that_counts_it_is_only_listed(tmp_path: Path, command: str, status: int) -> None:
    done = counted(tmp_path, LINE % (b"3", b"a"), command, path="/nonexistent")
    assert (done.status, done.stdout) == (status, b"")
    if not status:
        assert verify.listed(done) == Listing(0, 0)
