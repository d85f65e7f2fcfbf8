"""Images of layers that are wrong in the ways of tar, PAX, GNU tar, gzip and zstd; and what reads them.

An input is one image: blobs of layers, each with its length before it. Most have a right form, a change here or there,
and numbers from which programs count, allocate or seek.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.lib.layer_stacks import Item, archive, random_stack
from tests.lib.tar_headers import (
    BLOCK,
    END,
    GNU,
    USTAR,
    V7,
    base256,
    header,
    long_name,
    padded,
    pax,
    record,
    summed,
    zstd,
)
from warmstart.images.importers import flatten, layer_reader
from warmstart.images.importers.image_config import Additions
from warmstart.images.importers.layer_reader import ImageBounds, LayerArchive

NOTHING = Additions({}, ())
BOUNDS = ImageBounds(8 << 20, 400)
MOST_LAYERS = 6
KINDS = [bytes([kind]) for kind in b"00000555511122346\0\0" * 6 + b"7xgLKSSSVMDNA"]
NAMES = [
    b"a", b"b", b"a/b", b"a/b/c", b"./", b"", b".", b"/", b"..", b"../a", b"a/../b", b"d/" * 300, b"n" * 300, b"\xff",
]  # fmt: skip
WHITEOUTS = [
    b".wh.a", b"a/.wh.b", b".wh..wh..opq", b"a/.wh..wh..opq", b".wh.", b"a/.wh..", b".wh...", b".wh..wh.plnk/a",
]  # fmt: skip
SIZES = [0, 1, 5, 511, 512, 513, 9000, 1 << 20, 8 << 20, 1 << 33, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 70]
FIELDS = [
    b"", b" ", b"\xff" * 12, b"\x80" + bytes(11), b"\xbf" + b"\xff" * 11, b"\xc0" + bytes(11), b"-1", b"0x10",
    b"9" * 12, b"7" * 12, b"1_0", b"+7", b"1 2", b"\0" * 11 + b"7", b"1\0009", base256((1 << 63) - 1), base256(-512),
]  # fmt: skip
KEYS = [
    b"path", b"linkpath", b"size", b"mtime", b"GNU.sparse.realsize", b"GNU.sparse.size", b"GNU.sparse.major",
    b"GNU.sparse.map", b"GNU.sparse.numblocks", b"SCHILY.xattr.security.capability", b"hdrcharset", b"", b"k" * 200,
]  # fmt: skip
VALUES = [
    b"", b"0", b"-1", b"5", b"1e9", b"1.5", b"-1.5", b"nan", b"1" * 30, b"9" * 5000, b"a", b"a/b", b"\0", b"\xff",
    b"a\nb", b"9223372036854775807", b"9223372036854775808", b"=", b"../../etc", b"/", b"d/" * 2000,
]  # fmt: skip


def images() -> SearchStrategy[bytes]:
    """Return images."""
    return st.builds(lambda seed: image(random.Random(seed)), st.integers(0, 1 << 62))


def image(chance: random.Random) -> bytes:
    """Return an image of a few layers."""
    if chance.random() < 0.1:
        archives = [archive(items, chance.choice([0, 1, 2])) for items in random_stack(chance)]
    else:
        archives = [_archive(chance) for _ in range(chance.choice([1, 1, 2, 3]))]
    return joined([_compressed(chance, each) for each in archives])


def joined(blobs: list[bytes]) -> bytes:
    """Return an input of these blobs."""
    return b"".join(len(blob).to_bytes(4, "big") + blob for blob in blobs)


def _archive(chance: random.Random) -> bytes:
    data = b"".join(_part(chance) for _ in range(chance.choice([0, 1, 2, 3, 5, 8])))
    data += chance.choice(
        [END] * 6 + [b"", END[:BLOCK], END + bytes(chance.choice([100, 9000, 3 << 20])), END + b"more"]
    )
    if chance.random() < 0.1:
        data = bytes(_damaged(chance, bytearray(data)))
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data


def _part(chance: random.Random) -> bytes:
    """Return headers and content of one entry, or what resembles them."""
    before = b"".join(_extension(chance) for _ in range(chance.choice([0] * 6 + [1, 1, 2, 20])))
    size = chance.choice(SIZES[:7] * 20 + SIZES)
    block = header(
        _name(chance), chance.choice(KINDS), _field(chance, size), _name(chance),
        chance.choice([USTAR] * 4 + [GNU, GNU, V7, b"ustar\0\0\0"]), chance.choice([b""] * 40 + NAMES),
        _field(chance, 0o644), _field(chance, 1000),
    )  # fmt: skip
    if block[156:157] == b"S" or chance.random() < 0.01:
        block = _sparse(chance, block)
    there = chance.choice([min(size, 1 << 16)] * 60 + [0, 512, 9999])
    return before + block + padded(chance.choice([bytes(there), chance.randbytes(min(there, 3000))]))


def _sparse(chance: random.Random, block: bytes) -> bytes:
    changed = bytearray(block)
    changed[482] = chance.choice([0, 0, 1])
    changed[483:495] = _number(chance.choice([_field(chance, 9000), base256(chance.choice(SIZES[:-2]))]))
    return (
        summed(bytes(changed))
        + (bytes(504) + b"\1" + bytes(7)) * chance.choice([0, 0, 1, 50])
        + (bytes(BLOCK) if chance.random() < 0.5 else b"")
    )


def _number(field: int | bytes) -> bytes:
    return field.ljust(12, b"\0")[:12] if isinstance(field, bytes) else b"%011o\0" % field


def _extension(chance: random.Random) -> bytes:
    how = chance.choice([0, 0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4])
    if how == 0:
        return long_name(_name(chance) * chance.choice([1, 1, 50, 3000]), chance.choice([b"L", b"K"]))
    if how == 1:  # claims another size than it has
        return header(b"h", chance.choice([b"x", b"g", b"L", b"K"]), _field(chance, chance.choice(SIZES))) + bytes(
            BLOCK
        )
    if how == 2:
        return pax(b"5 aaa" * chance.choice([1, 100, 20_000]) + b"=", chance.choice([b"x", b"g"]))
    records = b"".join(_record(chance) for _ in range(chance.choice([1, 2, 3, 100])))
    if how == 3:
        records = bytes(_damaged(chance, bytearray(records)))
    return pax(records, chance.choice([b"x", b"x", b"x", b"g", b"X"]))


def _record(chance: random.Random) -> bytes:
    key = chance.choice(KEYS)
    if chance.random() < 0.2:
        value = chance.choice([*VALUES, b"%d" % chance.choice(SIZES)])
    else:
        value = _name(chance) if b"path" in key else b"%d" % chance.choice(SIZES[:7])
    return record(key, value)


def _name(chance: random.Random) -> bytes:
    return chance.choice(NAMES[:5] * 20 + NAMES + WHITEOUTS * 3 + [b"f%d" % chance.randrange(50)] * 30)


def _field(chance: random.Random, usual: int) -> int | bytes:
    return chance.choice(FIELDS) if chance.random() < 0.01 else usual


def _damaged(chance: random.Random, data: bytearray) -> bytearray:
    for _ in range(chance.randint(1, 4) if data else 0):
        at = chance.randrange(len(data))
        data[at] = chance.choice([0, 0x80, 0xFF, chance.randrange(256)])
        if chance.random() < 0.5:  # or the sum would refuse the header
            start = at - at % BLOCK
            data[start : start + BLOCK] = summed(bytes(data[start : start + BLOCK]).ljust(BLOCK, b"\0"))
    return data


def _compressed(chance: random.Random, data: bytes) -> bytes:
    cut = chance.randrange(len(data) + 1)
    forms: list[Callable[[], bytes]] = [
        lambda: data,
        lambda: gzip.compress(data, 1, mtime=0),
        lambda: gzip.compress(data[:cut], 1, mtime=0) + gzip.compress(data[cut:], 9, mtime=0),
        lambda: gzip.compress(data, 1, mtime=0) + bytes(chance.choice([0, 1, 600, 40_000])),
        lambda: gzip.compress(b"", mtime=0) * 300 + gzip.compress(data, 1, mtime=0),
        lambda: zstd(data),
        lambda: zstd(data[:cut]) + zstd(data[cut:]),
        lambda: b"\x5f\x2a\x4d\x18\x03\0\0\0abc" + zstd(data),
    ]
    blob = chance.choice(forms)()
    if chance.random() < 0.03:
        blob = blob[: chance.randrange(len(blob) + 1)]
    if chance.random() < 0.03 and blob:
        changed = bytearray(blob)
        changed[chance.randrange(len(blob))] = chance.randrange(256)
        blob = bytes(changed)
    return blob


class _Sink(io.RawIOBase):
    """Keeps an archive that is within bounds."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        self.data += data
        assert len(self.data) <= BOUNDS.size + BOUNDS.files * 16384
        return len(data)


def flattened(directory: Path) -> Callable[[bytes], None]:
    """Return what reads an image as imports do: it flattens the layers, or reads them through for the unpacker."""

    def read(data: bytes) -> None:
        layers = list(written(directory, data))
        sink = _Sink()
        try:
            flatten.flatten(layers, NOTHING, sink, BOUNDS)  # type: ignore[arg-type] # the rest of IO is not used
        except layer_reader.Unsupported:
            budget = layer_reader.Budget(BOUNDS)
            for layer in layers:
                for entry in layer_reader.LayerReader(layer, budget).entries():
                    assert entry.size <= BOUNDS.size
            return
        with tarfile.open(fileobj=io.BytesIO(sink.data)) as made:
            names, links = made.getnames(), [(entry.name, entry.linkname) for entry in made if entry.islnk()]
        assert len(names) == len(set(names)) <= BOUNDS.files
        assert all(target in names and target != name for name, target in links)

    return read


def written(directory: Path, data: bytes) -> Iterator[LayerArchive]:
    """Write the blobs of an input; yield the layers, each with the hash that it has."""
    directory.mkdir(exist_ok=True)
    for number in range(MOST_LAYERS):
        blob, data = data[4 : 4 + int.from_bytes(data[:4], "big")], data[4 + int.from_bytes(data[:4], "big") :]
        path = directory / str(number)
        path.write_bytes(blob)
        sha256, left = hashlib.sha256(), 2 * BOUNDS.size
        try:
            for chunk in layer_reader._decompressed(str(path)):
                sha256.update(chunk)
                left -= len(chunk)
                if left < 0:  # the reader stops before
                    break
        except (zlib.error, layer_reader.InvalidImage):
            pass
        yield LayerArchive(str(path), f"sha256:{sha256.hexdigest()}")
        if not data:
            return


def samples() -> tuple[bytes, ...]:
    """Return images that are right."""
    stack = [archive([Item("etc/hello", content=b"hello"), Item("etc/link", "symlink", target="hello")])]
    stack.append(archive([Item("etc/.wh.link"), Item("etc/hard", "hardlink", target="etc/hello")], tarfile.GNU_FORMAT))
    return tuple(
        joined([pack(data) for data in stack])
        for pack in (bytes, zstd, lambda data: gzip.compress(data, mtime=0))
    )  # fmt: skip
