"""Layers that cost more than they are: small ones that claim, hide or become much, or take what reads them long.

How each ends under `BOUNDS` (docs/threats.md, row 45).
"""

from __future__ import annotations

import gzip
import hashlib
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.lib.tar_headers import END, GNU, base256, header, padded, pax, summed, zstd
from warmstart.images.importers import flatten
from warmstart.images.importers.layer_reader import ImageBounds

MIB = 1 << 20
BOUNDS = ImageBounds(256 * MIB, 20_000)
HUGE = (1 << 63) - 1
MALFORMED, TOO_LARGE = flatten.INVALID, flatten.TOO_LARGE


def streamed(parts: Iterable[bytes]) -> tuple[bytes, str]:
    """Return the gzip of an archive that comes in parts, and its SHA-256."""
    packer, sha256, out = zlib.compressobj(9, zlib.DEFLATED, 31), hashlib.sha256(), []
    for part in parts:
        out.append(packer.compress(part))
        sha256.update(part)
    return b"".join([*out, packer.flush()]), sha256.hexdigest()


def zeros(mebibytes: int) -> Iterable[bytes]:
    return (bytes(MIB) for _ in range(mebibytes))


def layer(*parts: bytes) -> tuple[bytes, str]:
    return streamed(parts)


def _hidden_bomb() -> Sequence[tuple[bytes, str]]:
    lower = streamed([header(b"zeros", size=300 * MIB), *zeros(300), END])
    return [lower, layer(header(b".wh.zeros"), END)]


def _many(count: int, entry: Callable[[int], bytes]) -> Sequence[tuple[bytes, str]]:
    return [streamed(entry(number) for number in range(count))]


def _quadratic_pax() -> bytes:
    """Return records without `=`: whoever looks for one from each of them reads all that follow."""
    return b"5 aaa" * 200_000 + b"="


def _sparse(real: int) -> bytes:
    """Return GNU tar's older form of a sparse file without content."""
    block = bytearray(header(b"holes", b"S", magic=GNU))
    block[483:495] = base256(real)
    return summed(bytes(block))


ATTACKS: dict[str, tuple[Callable[[], Sequence[tuple[bytes, str]]], int]] = {
    "a whiteout that claims 8 EiB": (lambda: [layer(header(b".wh.f", size=base256(HUGE)))], TOO_LARGE),
    "a whiteout that claims more than there is": (lambda: [layer(header(b".wh.f", size=100 * MIB))], MALFORMED),
    "a hidden file that claims 8 EiB": (
        lambda: [layer(header(size=base256(HUGE))), layer(header(b".wh.f"), END)], TOO_LARGE,
    ),
    "a PAX header that claims 8 EiB": (
        lambda: [layer(pax({b"size": b"%d" % HUGE}), header(b".wh.f"), END)], TOO_LARGE,
    ),
    "a file that claims less than nothing": (lambda: [layer(header(size=base256(-512)), END)], MALFORMED),
    "a sparse whiteout of 8 EiB": (
        lambda: [layer(pax({b"GNU.sparse.realsize": b"%d" % HUGE}), header(b".wh.f"), END)], TOO_LARGE,
    ),
    "holes of 8 EiB, for the unpacker": (lambda: [layer(_sparse(HUGE), END)], TOO_LARGE),
    "many holes, for the unpacker": (lambda: [layer(*[_sparse(64 * MIB)] * 5, END)], TOO_LARGE),
    "a sparse file whose header never ends": (lambda: [layer(_endless_sparse())], MALFORMED),
    "zeros behind the end": (lambda: [streamed([header(), END, *zeros(64)])], MALFORMED),
    "content that an upper layer hides": (_hidden_bomb, TOO_LARGE),
    "content for the unpacker": (
        lambda: [streamed([header(), header(), header(b"g", size=300 * MIB), *zeros(300)])], TOO_LARGE,
    ),
    "a long name of 100 MiB": (
        lambda: [streamed([header(b"n", b"L", 100 * MIB), *zeros(100), header(), END])], MALFORMED,
    ),
    "a PAX header of 100 MiB": (
        lambda: [streamed([header(b"n", b"x", 100 * MIB), *zeros(100), header(), END])], MALFORMED,
    ),
    "PAX headers that take long": (lambda: [layer(*[pax(_quadratic_pax())] * 20, header(), END)], MALFORMED),
    "a number of a million digits": (lambda: [layer(pax({b"size": b"9" * 1_000_000}), header(), END)], MALFORMED),
    "global headers without end": (
        lambda: _many(30_000, lambda number: pax({b"k%d" % number: b"v" * 900}, b"g")), 0,
    ),
    "names of two thousand directories": (
        lambda: _many(5000, lambda number: pax({b"path": b"%d/" % number + b"d/" * 2000 + b"f"}) + header()), MALFORMED,
    ),
    "more entries than files, hidden": (lambda: _many(30_000, lambda number: header(b"d/.wh.%d" % number)), TOO_LARGE),
    "an archive that is cut": (lambda: [layer(header(size=5))], MALFORMED),
    "a header that is none": (lambda: [layer(header(), bytes(range(256)) * 2, header(b"g"), END)], MALFORMED),
    "empty members of gzip": (lambda: [(gzip.compress(b"") * 200_000 + layer(END)[0], layer(END)[1])], 0),
    "a frame of zstd with a window of 2 GiB": (
        lambda: [(b"\x28\xb5\x2f\xfd\0" + bytes([21 << 3]) + b"\1\0\0", layer()[1])], MALFORMED,
    ),
    "zeros in zstd": (lambda: [(zstd(header() + END + bytes(600 * MIB)), "0" * 64)], MALFORMED),
    "a cut frame of zstd": (lambda: [(zstd(random.Random(1).randbytes(5000))[:3000], "0" * 64)], MALFORMED),
    "a wrong hash": (lambda: [(layer(END)[0], "0" * 64)], MALFORMED),
}  # fmt: skip


def alike(count: int) -> Iterator[bytes]:
    """Yield files of one size and one sum, by which mksquashfs looks for equal ones: it compares each with all."""
    for number in range(count):
        bits = bytes(number >> bit & 1 for bit in range(16))  # a bit of the sum each; it rotates once a byte
        yield header(b"f%d" % number, size=100_000)
        yield padded(bytes(100_000 - 32) + bits + bytes(1 - bit for bit in bits))
    yield END


def emptied(count: int) -> Iterator[bytes]:
    """Yield a directory that is emptied as often as it has files, which umoci looks at each time."""
    yield from (header(b"d/%d" % number) for number in range(count))
    yield from (header(b"d/.wh..wh..opq") for _ in range(count))
    yield header(b"twice") * 2 + END  # so that it is unpacked


def _endless_sparse() -> bytes:
    block = bytearray(header(b"holes", b"S", magic=GNU))
    block[482] = 1
    return summed(bytes(block)) + (bytes(504) + b"\1" + bytes(7)) * 1000
