"""The superblock parser: strict, and with one kind of error for whatever it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.superblocks import GOOD, PADDED, image, packed
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


def test_refuses_every_truncation() -> None:
    whole = image()
    for size in range(GOOD.bytes_used):
        with pytest.raises(ImageInvalid):
            parse(whole[: min(size, 96)], size)


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
