"""Copies of files that others can write, hashed on the way; holes stay holes.

The source and the target of a copy fail by different errors, because they are different people's fault.
"""

from __future__ import annotations

import errno
import os

from warmstart.host.files import write_all
from warmstart.lean import Callable, Iterator, NamedTuple, sha256

CHUNK = 1 << 20  # bytes that a copy reads at once


class ReadFailed(OSError):
    """The source of a copy could not be read. Any other `OSError` of a copy comes from its target."""


class Copied(NamedTuple):
    """Size and hash of what was read from a file."""

    size: int  # bytes
    sha256: str  # hexadecimal


def copy_hashed(
    source: int,
    target: int | None = None,
    *,
    most: int | None = None,
    have: int = 0,
) -> Copied:
    """Hash a file while reading it once, and copy it to `target`, if given, at that descriptor's position.

    Reads from the start, but no more than `most` bytes; to detect a file that is too long, pass one byte more than is
    expected. The first `have` bytes are hashed in `target`, where an earlier copy left them, and not read again. Raises
    `ReadFailed` for the source and `OSError` for the target. The position of `source` is neither used nor changed.
    """
    digest = sha256(more=have)
    size = 0
    while target is not None and size < have and (chunk := os.pread(target, min(CHUNK, have - size), size)):
        digest.update(chunk)
        size += len(chunk)
    for chunk in _chunks(source, size, most if most is None else most - size):
        if size == 0:  # nothing is hashed yet, and this tells whether there is much
            digest = sha256(more=len(chunk))
        digest.update(chunk)
        if target is not None:
            write_all(target, chunk)
        size += len(chunk)
    return Copied(size, digest.hexdigest())


def copy_data(source: int, target: int, size: int, watch: Callable[[int], object]) -> Copied:
    """Hash the first `size` bytes of a file, and copy its data to an empty one of the same length; holes stay holes.

    `watch` is called before every write with its number of bytes, and with 0 before every part of a hole; an exception
    from it ends the copy. Errors as in `copy_hashed`. Changes the position of both files.
    """
    digest = sha256(more=size)
    zeros = bytes(CHUNK)
    done = 0
    for start, end in _extents(source, size):
        for offset in range(done, start, CHUNK):
            watch(0)
            digest.update(memoryview(zeros)[: start - offset])
        done = start
        os.lseek(target, start, os.SEEK_SET)
        for chunk in _chunks(source, start, end - start):
            watch(len(chunk))
            write_all(target, chunk)
            digest.update(chunk)
            done += len(chunk)
        if done < end:  # the file became shorter
            break
    os.ftruncate(target, done)
    return Copied(done, digest.hexdigest())


def _extents(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of the first `size` bytes that is no hole; at last an empty one at the end."""
    end = 0
    while end < size:
        start = min(seek(source, end, os.SEEK_DATA, size), size)
        end = min(seek(source, start, os.SEEK_HOLE, size), size) if start < size else size
        yield start, end


def seek(source: int, offset: int, whence: int, size: int) -> int:
    """Return where data (`SEEK_DATA`) or a hole (`SEEK_HOLE`) begins in a file of a size. Raises `ReadFailed`."""
    try:
        return os.lseek(source, offset, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:  # lseek(2): nothing of this kind up to the end of the file
            return size
        if error.errno == errno.EINVAL:  # the file system does not know holes
            return offset if whence == os.SEEK_DATA else size
        raise ReadFailed(error.errno, error.strerror) from error


def copy(source: int, target: int) -> int:
    """Copy a file from its start without hashing it; return its size in bytes. Errors as in `copy_hashed`."""
    size = 0
    for chunk in _chunks(source, 0, None):
        write_all(target, chunk)
        size += len(chunk)
    return size


def _chunks(source: int, offset: int, most: int | None) -> Iterator[bytes]:
    left = most
    while left is None or left > 0:
        try:
            chunk = os.pread(source, CHUNK if left is None else min(CHUNK, left), offset)
        except OSError as error:
            raise ReadFailed(error.errno, error.strerror) from error
        if not chunk:
            return
        yield chunk
        offset += len(chunk)
        left = left and left - len(chunk)
