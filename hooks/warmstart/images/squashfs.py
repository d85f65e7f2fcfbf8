"""Check the superblock of a squashfs 4.0 image: the cheapest proof that a file can be one and is not truncated.

Hot path: needs 96 bytes and the file's size. mksquashfs writes the superblock last, so a killed one leaves none; in a
truncated image `bytes_used` exceeds the file's size. Layout: `struct squashfs_super_block` in squashfs_fs.h,
little-endian.
"""

from __future__ import annotations

import struct

from warmstart.errors import StoreError
from warmstart.lean import NamedTuple

SIZE = 96
MAGIC = 0x73717368  # "hsqs"
ABSENT = 0xFFFFFFFFFFFFFFFF
PADDING = 4096  # mksquashfs pads an image to a multiple of this
METADATA = 8192  # bytes in an unpacked metadata block
COMPRESSORS = range(1, 7)  # gzip, lzma, lzo, xz, lz4, zstd
LZMA = 2

_FIELDS = struct.Struct("<5I6H8Q")


class ImageInvalid(StoreError):
    """The bytes are not a whole squashfs image."""

    code = "image-invalid"
    template = "not a whole squashfs image: {problem}"
    hint = "it is imported again by itself; if it comes back, check the store's file system"


class Superblock(NamedTuple):
    """The fields in file order, with the names of squashfs_fs.h; offsets in bytes."""

    magic: int
    inodes: int
    mkfs_time: int
    block_size: int
    fragments: int
    compression: int
    block_log: int
    flags: int
    no_ids: int
    major: int
    minor: int
    root_inode: int  # (offset of its block in the inode table) << 16 | offset in the unpacked block
    bytes_used: int
    id_table: int
    xattr_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    lookup_table: int


def parse(data: bytes, file_size: int) -> Superblock:
    """Parse and check the first 96 bytes of a file of `file_size` bytes; raises `ImageInvalid`."""
    if len(data) < SIZE:
        raise ImageInvalid(problem="shorter than a superblock")
    block = Superblock(*_FIELDS.unpack_from(data))
    for check in (_check_head, _check_tables, _check_indexes):
        check(block)
    if block.bytes_used > file_size:
        raise ImageInvalid(problem=f"cut short: {file_size} of {block.bytes_used} bytes")
    if file_size - block.bytes_used >= PADDING:
        raise ImageInvalid(problem=f"{file_size - block.bytes_used} bytes follow its end")
    return block


def _check_head(block: Superblock) -> None:
    problem = ""
    if block.magic != MAGIC:
        problem = "no squashfs magic"
    elif (block.major, block.minor) != (4, 0):
        problem = f"version {block.major}.{block.minor} and not 4.0"
    elif not 12 <= block.block_log <= 20 or block.block_size != 1 << block.block_log:
        problem = f"block size {block.block_size} with log {block.block_log}"
    elif block.compression not in COMPRESSORS:
        problem = f"unknown compressor {block.compression}"
    elif block.compression == LZMA:
        problem = "compressed by lzma, which neither Linux nor squashfuse reads"
    elif not block.inodes or not block.no_ids:
        problem = "no inodes or no ids"
    if problem:
        raise ImageInvalid(problem=problem)


def _check_tables(block: Superblock) -> None:
    """Check that the tables are in this order and within `bytes_used`; optional ones may be absent."""
    tables = [
        ("inode", block.inode_table),
        ("directory", block.directory_table),
        *_optional("fragment", block.fragment_table, may_be_absent=not block.fragments),
        *_optional("export", block.lookup_table, may_be_absent=True),
        ("id", block.id_table),
        *_optional("xattr", block.xattr_table, may_be_absent=True),
    ]
    low = SIZE
    for name, start in tables:
        if not low <= start < block.bytes_used:
            raise ImageInvalid(problem=f"its {name} table is out of place")
        low = start
    if block.inode_table == block.directory_table:
        raise ImageInvalid(problem="its inode table is empty")


def _optional(name: str, start: int, *, may_be_absent: bool) -> list[tuple[str, int]]:
    return [] if start == ABSENT and may_be_absent else [(name, start)]


def _check_indexes(block: Superblock) -> None:
    """Check that the parts whose length follows from the superblock end before `bytes_used`."""
    ids = 8 * _blocks(4 * block.no_ids)
    fragments = 8 * _blocks(16 * block.fragments)
    root_block, root_offset = block.root_inode >> 16, block.root_inode & 0xFFFF
    if block.id_table + ids > block.bytes_used:
        raise ImageInvalid(problem="its id table is cut short")
    if fragments and block.fragment_table + fragments > block.id_table:
        raise ImageInvalid(problem="its fragment table is cut short")
    if block.inode_table + root_block >= block.directory_table or root_offset >= METADATA:
        raise ImageInvalid(problem="its root inode is out of place")


def _blocks(size: int) -> int:
    return -(-size // METADATA)
