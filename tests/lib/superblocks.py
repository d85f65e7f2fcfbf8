"""Build a squashfs superblock from its fields, for tests that need a file that passes as an image."""

from __future__ import annotations

import struct

from warmstart.images.squashfs import ABSENT, Superblock

GOOD = Superblock(
    magic=0x73717368,
    inodes=10,
    mkfs_time=0,
    block_size=131072,
    fragments=1,
    compression=6,
    block_log=17,
    flags=0xC0,
    no_ids=1,
    major=4,
    minor=0,
    root_inode=0x60,
    bytes_used=3000,
    id_table=2900,
    xattr_table=ABSENT,
    inode_table=2000,
    directory_table=2400,
    fragment_table=2700,
    lookup_table=2800,
)
PADDED = 4096


def packed(block: Superblock = GOOD) -> bytes:
    return struct.pack("<5I6H8Q", *block)


def image(block: Superblock = GOOD, size: int = PADDED) -> bytes:
    """Return the bytes of a file that starts with this superblock."""
    return packed(block) + bytes(size - 96)
