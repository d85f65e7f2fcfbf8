"""Read a layer in a stream: decompress it, hash it, and yield its entries. All of that within bounds.

A part of the program `flatten`: these are bytes that a registry chose, and a few of them can claim or become any
number. What a layer holds counts whether it is hidden or not, and before it is read: `Budget`. No header is read that
is larger than `LARGEST_EXTENSION`, and one pass over each of them suffices.

Archives are read as Docker reads them (Go's archive/tar): V7, ustar, GNU and PAX. What is malformed there is malformed
here, and global PAX headers are passed over. Layers are compressed by gzip or zstd, or not at all. Python has zstd from
3.14 on, and umoci 0.4.7 doesn't know it. So it is libzstd itself, without which mksquashfs could not pack the image.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO, NamedTuple

LONGEST_NAME = 255  # bytes of one component
LONGEST_PATH = 4095
DEEPEST = 200  # nested directories: no image has so many, and each name has all names above it
CHUNK = 1 << 20  # decompressed at a time
PIECE = 1 << 15  # compressed; zlib copies what it leaves of one
LARGEST_EXTENSION = 1 << 20  # bytes of a PAX header or a long name, as in Go
MOST_BEHIND = 1 << 20  # bytes behind the end of an archive: the padding of a block of GNU tar
BLOCK = tarfile.BLOCKSIZE
GZIP, ZSTD, ZSTD_SKIPPABLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
ZSTD_LIBRARY = "libzstd.so.1"
LAST_SECOND = (1 << 32) - 1  # that squashfs can store
# CPU time that any honest image stays far below, on any machine.
LEAST_CPU_S, CPU_S_PER_BYTE, CPU_S_PER_ENTRY = 60.0, 1e-7, 1e-3
SPARSE = tarfile.GNUTYPE_SPARSE
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_PLAIN = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_OCTAL = re.compile(rb"[0-7]*")
_RECORD = re.compile(rb"([0-9]{1,7}) ")
_WHOLE = re.compile(rb"([0-9]{1,19})")
_TIME = re.compile(rb"(-?[0-9]{1,19})(\.[0-9]*)?")


class Unsupported(Exception):
    """The image needs a file system to be put together, or this node's programs do not suffice."""


class InvalidImage(Exception):
    """The image contradicts itself, or has a form that no program takes."""


class BoundsExceeded(Exception):
    """The image has more bytes or files than it may have."""


class ImageBounds(NamedTuple):
    """What an image may hold."""

    size: int  # bytes of its files' content
    files: int  # with directories


def cpu_seconds(size: int, files: int) -> float:
    """Return the CPU time that a program may take for so many bytes and entries."""
    return LEAST_CPU_S + size * CPU_S_PER_BYTE + files * CPU_S_PER_ENTRY


class Budget:
    """What the layers of an image may still hold together, hidden or not, and how long it may take to read them."""

    def __init__(self, bounds: ImageBounds) -> None:
        self.size, self._files = self._bounds = bounds
        self._since = time.process_time()

    def cpu_seconds(self) -> float:
        """Return the CPU time that a program may take for what came so far."""
        return cpu_seconds(self._bounds.size - self.size, self._bounds.files - self._files)

    def take(self, size: int, files: int = 0) -> None:
        """Count bytes and entries. Raises `BoundsExceeded`, or `InvalidImage` if what came so far took too long."""
        self.size -= size
        self._files -= files
        if self.size < 0 or self._files < 0:
            raise BoundsExceeded
        if time.process_time() - self._since > self.cpu_seconds():
            raise InvalidImage("reading its layers takes more time than their size explains")


class LayerArchive(NamedTuple):
    """A layer of an image."""

    path: str  # of its blob: a tar archive, as it is or compressed by gzip or zstd
    diff_id: str  # sha256:HEX of the archive as it is


class Entry(NamedTuple):
    """One entry of a layer."""

    path: bytes  # without slashes around it; b"" for the root
    type: bytes  # one of tarfile's: REGTYPE, DIRTYPE, SYMTYPE, LNKTYPE, FIFOTYPE, and SPARSE
    mode: int
    mtime: int  # seconds since the epoch
    size: int  # bytes of content
    target: bytes  # of a symbolic link, as it is; of a hard link, as a path


class LayerReader:
    """The entries of one layer in the order of its archive."""

    def __init__(self, layer: LayerArchive, budget: Budget, copy: IO[bytes] | None = None) -> None:
        self._diff_id = layer.diff_id
        self._budget = budget
        self._copy = copy  # gets the archive as it is
        self._hash = hashlib.sha256()
        self._chunks = _decompressed(layer.path)
        self._chunk, self._at = b"", 0
        self._left = self._padding = 0  # bytes of the entry that was yielded last

    def entries(self) -> Iterator[Entry]:
        """Yield all entries; then compare the whole archive with its hash.

        Raises `InvalidImage`, `BoundsExceeded` and `OSError`.
        """
        extended = _Extended()
        while header := self._block():
            if header == bytes(BLOCK):
                if self._block().strip(b"\0"):
                    raise InvalidImage("a layer's archive ends in its middle")
                break
            _check_sum(header)
            kind, size = header[156:157], _size(_number(header[124:136]))
            if kind in _EXTENSIONS:
                extended = extended.with_header(kind, self._extension(size))
                continue
            yield self._entry(header, extended)
            extended = _Extended()
            for _ in self._pieces(self._left):
                pass
            self._left = 0
            self._skip(self._padding)
        self._end()

    def content(self) -> Iterator[bytes]:
        """Yield the content of the entry that was yielded last."""
        left, self._left = self._left, 0
        yield from self._pieces(left)

    def _entry(self, header: bytes, extended: _Extended) -> Entry:
        """Return the entry of a header, and note how many bytes follow it."""
        kind, name = header[156:157], extended.long_name or extended.name or _name(header)
        target = extended.long_target or extended.target or _string(header[157:257])
        size = _size(_number(header[124:136])) if extended.size is None else extended.size
        if kind in _FILES:
            kind = tarfile.DIRTYPE if kind == tarfile.AREGTYPE and name.endswith(b"/") else tarfile.REGTYPE
        elif kind not in _PLAIN and kind != SPARSE:
            raise InvalidImage(f"{name[:100]!r} has the unknown type {kind!r}")
        self._left = size if kind in (tarfile.REGTYPE, SPARSE) else 0
        self._padding = -self._left % BLOCK
        self._budget.take(0, 1)
        if self._left > self._budget.size + len(self._chunk) - self._at:
            raise BoundsExceeded
        shown = self._left
        if kind == SPARSE or (kind == tarfile.REGTYPE and extended.sparse is not None):
            shown = max(shown, self._sparse_size(header) if kind == SPARSE else extended.sparse or 0)
            kind = SPARSE
            self._budget.take(shown - self._left)
        mtime = _number(header[136:148]) if extended.mtime is None else extended.mtime
        if kind == tarfile.SYMTYPE:
            if not 0 < len(target) <= LONGEST_PATH or b"\0" in target:
                raise InvalidImage(f"the target of {name[:100]!r} cannot be stored")
        else:
            target = path_of(target) if kind == tarfile.LNKTYPE else b""
        if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            kind = tarfile.REGTYPE
        mode = _number(header[100:108]) & 0o7777
        return Entry(path_of(name), kind, mode, min(max(mtime, 0), LAST_SECOND), shown, target)

    def _sparse_size(self, header: bytes) -> int:
        """Return the size of GNU tar's older form of a sparse file, after the blocks that continue its header."""
        goes_on = header[482]
        while goes_on:
            goes_on = self._read_exactly(BLOCK)[504]
        return _size(_number(header[483:495]))

    def _extension(self, size: int) -> bytes:
        if size > LARGEST_EXTENSION:
            raise InvalidImage(f"a header of a layer claims {size} bytes")
        data = self._read_exactly(size)
        self._skip(-size % BLOCK)
        return data

    def _end(self) -> None:
        """Read what follows the archive's end, and compare all of it with its hash."""
        behind = len(self._chunk) - self._at
        while behind <= MOST_BEHIND and self._more():
            behind += len(self._chunk)
        if behind > MOST_BEHIND:
            raise InvalidImage("more bytes than a padding follow a layer's end")
        if f"sha256:{self._hash.hexdigest()}" != self._diff_id:
            raise InvalidImage(f"a layer is not {self._diff_id}")

    def _more(self) -> bool:
        """Decompress some more, when nothing is left. Return False at the end."""
        self._chunk, self._at = b"", 0
        try:
            while not self._chunk:
                self._chunk = next(self._chunks)
                self._budget.take(len(self._chunk))
        except StopIteration:
            return False
        except zlib.error as error:
            raise InvalidImage(f"a layer cannot be decompressed: {error}") from error
        self._hash.update(self._chunk)
        if self._copy is not None:
            self._copy.write(self._chunk)
        return True

    def _pieces(self, size: int) -> Iterator[bytes]:
        """Yield that many bytes of the archive. Raises `InvalidImage` if it has no more."""
        while size:
            if self._at == len(self._chunk) and not self._more():
                raise InvalidImage("a layer ends too early")
            piece = self._chunk[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            yield piece

    def _skip(self, padding: int) -> None:
        """Read over padding, which may be missing where the archive ends: umoci 0.4.7 writes such."""
        while padding and (self._at < len(self._chunk) or self._more()):
            step = min(padding, len(self._chunk) - self._at)
            self._at += step
            padding -= step

    def _read_exactly(self, size: int) -> bytes:
        return b"".join(self._pieces(size))

    def _block(self) -> bytes:
        """Return the next block, b"" at the end."""
        return self._read_exactly(BLOCK) if self._at < len(self._chunk) or self._more() else b""


class _Extended(NamedTuple):
    """What extension headers say about the entry that follows."""

    name: bytes = b""
    target: bytes = b""
    size: int | None = None
    mtime: int | None = None
    sparse: int | None = None  # bytes of a sparse file with its holes
    long_name: bytes = b""  # GNU's; it counts before `name`
    long_target: bytes = b""

    def with_header(self, kind: bytes, data: bytes) -> _Extended:
        """Add an extension header."""
        if kind == tarfile.XHDTYPE:
            return _pax(data)._replace(long_name=self.long_name, long_target=self.long_target)
        if kind == tarfile.GNUTYPE_LONGNAME:
            return self._replace(long_name=_string(data))
        if kind == tarfile.GNUTYPE_LONGLINK:
            return self._replace(long_target=_string(data))
        return self


def _pax(data: bytes) -> _Extended:
    """Parse the records of a PAX header: `LENGTH KEY=VALUE`, a line each."""
    extended, at, sparse = _Extended(), 0, -1
    while at < len(data):
        head = _RECORD.match(data, at)
        end = at + int(head[1]) if head else 0
        if head is None or not head.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise InvalidImage("a PAX header of a layer is malformed")
        key, _, value = data[head.end() : end - 1].partition(b"=")
        at = end
        if key.startswith(b"GNU.sparse."):
            sparse = max(sparse, _pax_number(_WHOLE, value) if key[11:] in (b"realsize", b"size") else 0)
        elif not value:
            continue
        elif key == b"path":
            extended = extended._replace(name=value)
        elif key == b"linkpath":
            extended = extended._replace(target=value)
        elif key == b"size":
            extended = extended._replace(size=_pax_number(_WHOLE, value))
        elif key == b"mtime":
            extended = extended._replace(mtime=_pax_number(_TIME, value))
    return extended._replace(sparse=sparse) if sparse >= 0 else extended


def _pax_number(form: re.Pattern[bytes], value: bytes) -> int:
    number = form.fullmatch(value)
    if number is None:
        raise InvalidImage("a number in a PAX header of a layer is malformed")
    return int(number[1])


def _check_sum(header: bytes) -> None:
    said, data = _number(header[148:156]), header[:148] + b" " * 8 + header[156:]
    if said != sum(data) and said != sum(memoryview(data).cast("b")):  # old programs took bytes as signed
        raise InvalidImage("a header of a layer is malformed")


def _number(field: bytes) -> int:
    """Return a number as tar archives hold it: octal digits, or base 256 if the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & (1 << 8 * len(field) - 1) - 1
        return value - (1 << 8 * len(field) - 1) if field[0] & 0x40 else value
    digits = _string(field.strip(b" \0"))
    if not _OCTAL.fullmatch(digits):
        raise InvalidImage("a number in a header of a layer is malformed")
    return int(digits or b"0", 8)


def _size(value: int) -> int:
    if value < 0:
        raise InvalidImage("a header of a layer claims a negative size")
    return value


def _string(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _name(header: bytes) -> bytes:
    """Return the name in a header: ustar puts the beginning of a long one into a prefix."""
    name, prefix = _string(header[:100]), b""
    if header[257:263] == b"ustar\0":
        prefix = _string(header[345 : 476 if header[508:] == b"tar\0" else 500])
    elif header[257:265] == b"ustar  \0" and not _are_times(header[345:369]):
        prefix = _string(header[345:500])  # Go before 1.8 wrote these, with Docker
        prefix = prefix if prefix.isascii() else b""
    return prefix + b"/" + name if prefix else name


def _are_times(fields: bytes) -> bool:
    try:
        _number(fields[:12]), _number(fields[12:])
    except InvalidImage:
        return False
    return True


def path_of(name: bytes) -> bytes:
    """Return the path that a name stands for, without slashes around it. Raises `InvalidImage`."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    path = b"/".join(parts)
    if b"\0" in path or len(path) > LONGEST_PATH or len(parts) > DEEPEST or any(len(p) > LONGEST_NAME for p in parts):
        raise InvalidImage(f"the name {name[:100]!r} cannot be stored")
    return path


def _decompressed(path: str) -> Iterator[bytes]:
    with open(path, "rb") as blob:
        magic = blob.read(4)
        blob.seek(0)
        if magic.startswith(GZIP):
            yield from _gunzip(blob)
        elif is_zstd(magic):
            yield from _unzstd(blob)
        else:
            while chunk := blob.read(CHUNK):
                yield chunk


def is_zstd(magic: bytes) -> bool:
    """Return whether a file that begins with these four bytes was compressed by zstd."""
    return magic == ZSTD or (magic[1:] == ZSTD_SKIPPABLE and magic[0] & 0xF0 == 0x50)


def _gunzip(blob: BinaryIO) -> Iterator[bytes]:
    member, data = zlib.decompressobj(31), b""
    while data := data or blob.read(PIECE):
        if member.eof:
            if not data.strip(b"\0"):  # padding
                data = b""
                continue
            member = zlib.decompressobj(31)
        chunk = member.decompress(data, CHUNK)
        data = member.unused_data if member.eof else member.unconsumed_tail
        yield chunk
        while len(chunk) == CHUNK and not data and not member.eof:  # zlib has taken all, and has more
            chunk = member.decompress(b"", CHUNK)
            yield chunk
    if not member.eof:
        raise zlib.error("it ends too early")


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer (zstd.h)."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


def zstd_library() -> ctypes.CDLL:
    """Load libzstd. Raises `OSError`."""
    try:
        library = ctypes.CDLL(ZSTD_LIBRARY)
    except OSError as error:
        raise OSError(f"a layer is compressed by zstd, which takes {ZSTD_LIBRARY}: this node has none") from error
    library.ZSTD_createDStream.restype = ctypes.c_void_p
    library.ZSTD_freeDStream.argtypes = (ctypes.c_void_p,)
    library.ZSTD_decompressStream.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer))
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_isError.argtypes = library.ZSTD_getErrorName.argtypes = (ctypes.c_size_t,)
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    return library


def _unzstd(blob: io.BufferedReader) -> Iterator[bytes]:
    """Decompress frames. libzstd itself refuses those that want more than 128 MiB of memory."""
    library = zstd_library()
    data, chunk = ctypes.create_string_buffer(PIECE), ctypes.create_string_buffer(CHUNK)
    stream, missing = library.ZSTD_createDStream(), 1
    if stream is None:
        raise MemoryError
    try:
        while size := blob.readinto(data):
            taken = _Buffer(ctypes.addressof(data), size, 0)
            given = _Buffer(ctypes.addressof(chunk), CHUNK, CHUNK)
            while taken.pos < taken.size or given.pos == CHUNK:
                before, given.pos = taken.pos, 0
                result = library.ZSTD_decompressStream(stream, ctypes.byref(given), ctypes.byref(taken))
                if library.ZSTD_isError(result):
                    raise InvalidImage(f"a layer cannot be decompressed: {library.ZSTD_getErrorName(result).decode()}")
                if given.pos or taken.pos > before:  # else it says how much the next frame should have
                    missing = result
                yield ctypes.string_at(chunk, given.pos)
    finally:
        library.ZSTD_freeDStream(stream)
    if missing:
        raise InvalidImage("a layer ends too early")
