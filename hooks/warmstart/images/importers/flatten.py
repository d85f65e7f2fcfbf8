"""Make a squashfs straight from the layers of an OCI image: one tar archive, piped into mksquashfs.

A program of the importer `oci`. It runs as the import account, without network, on bytes that a registry chose.

The layers are read once, from the top down, and the first occurrence of a path wins:

| a layer has                     | what that means for lower layers                                     |
|---------------------------------|----------------------------------------------------------------------|
| a file, link, FIFO or device    | that path is hidden, with everything in it                           |
| a directory                     | a file of that name is hidden; what is in a directory is added to it |
| `.wh.NAME`                      | NAME is hidden, with everything in it                                |
| `.wh..wh..opq`                  | everything in its directory is hidden                                |

What a layer hides does not concern its own entries (OCI image-spec, layer.md, Whiteouts). Hard links and directories
are written last: a link's target may be in a lower layer, and a directory's mode, too. A target that is hidden itself
is written under the link's name. If it has passed by already, its layer is read again for it.

Types and modes are those that `umoci raw unpack --rootless` and `chmod -R u+rX` leave: owners can read everything,
devices are empty files, extended attributes are dropped. An image whose result depends on the order in which its
entries are extracted is `Unsupported`: a path that occurs twice in a layer, or one that leads through a link. The
importer unpacks such an image.

Every layer is read to its end and compared with its `diff_id`, the SHA-256 in the image's configuration, whose own
SHA-256 is in the manifest. If this program fails, it leaves no result.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, BinaryIO, NamedTuple, cast

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
LONGEST_NAME = 255  # bytes of one component
LONGEST_PATH = 4095
CHUNK = 1 << 20
CHUNKS_AHEAD = 8  # decompressed and not yet written
LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZSTD_PROGRAM = "/usr/bin/zstd"
MKSQUASHFS = "/usr/bin/mksquashfs"
OLDEST_WITH_TAR = (4, 5)
LAST_SECOND = (1 << 32) - 1  # that squashfs can store
MOST_MEMORY = 4 << 30  # bytes of address space; names take most of it, and a header could be without end
PLAIN_DIRECTORY = 0o755  # the mode of a directory that no layer has an entry for
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
VERSION = re.compile(rb"mksquashfs version (\d+)\.(\d+)")
# Exit statuses, for the importer. 1 is any other failure.
UNSUPPORTED, INVALID, TOO_LARGE = 3, 4, 5


class Unsupported(Exception):
    """The image needs a file system to be put together, or this node's programs do not suffice."""


class InvalidImage(Exception):
    """The image contradicts itself: a wrong hash, or a malformed manifest or configuration."""


class BoundsExceeded(Exception):
    """The image has more bytes or files than it may have."""


class ImageBounds(NamedTuple):
    """What an image may hold."""

    size: int  # bytes of its files' content
    files: int  # with directories


class LayerArchive(NamedTuple):
    """A layer of an image."""

    path: str  # of its blob: a tar archive, as it is or compressed by gzip or zstd
    diff_id: str  # sha256:HEX of the archive as it is


class Entry(NamedTuple):
    """One entry of a layer."""

    path: bytes  # without slashes around it; b"" for the root
    type: bytes  # one of tarfile's: REGTYPE, DIRTYPE, SYMTYPE, LNKTYPE, FIFOTYPE
    mode: int
    mtime: int  # seconds since the epoch
    size: int  # bytes of content
    target: bytes  # of a symbolic link, as it is; of a hard link, as a path


def layers_of(layout: str, tag: str) -> list[LayerArchive]:
    """Return the layers of the image `tag` in the OCI layout at `layout`, the lowest first. Raises `InvalidImage`."""
    index = _parse(_read_document(os.path.join(layout, "index.json")))
    named = [entry for entry in _list_of(index, "manifests") if _name_of(entry) == tag]
    if len(named) != 1:
        raise InvalidImage(f"the layout has {len(named)} images named {tag}")
    manifest = _read_blob(layout, named[0])
    config = _read_blob(layout, _part(manifest, "config"))
    diff_ids = _part(config, "rootfs").get("diff_ids")
    blobs = [_sized_blob(layout, entry) for entry in _list_of(manifest, "layers")]
    if not isinstance(diff_ids, list) or len(diff_ids) != len(blobs):
        raise InvalidImage("its manifest and its configuration have different numbers of layers")
    return [LayerArchive(path, _digest(diff_id)) for path, diff_id in zip(blobs, diff_ids, strict=True)]


def _name_of(entry: dict[str, object]) -> object:
    annotations = entry.get("annotations")
    return annotations.get("org.opencontainers.image.ref.name") if isinstance(annotations, dict) else None


def _read_document(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT:
        raise InvalidImage("its manifest or configuration is too large")
    return data


def _read_blob(layout: str, descriptor: dict[str, object]) -> dict[str, object]:
    digest = _digest(descriptor.get("digest"))
    data = _read_document(_blob_path(layout, digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise InvalidImage(f"{digest} has other bytes than its name says")
    return _parse(data)


def _sized_blob(layout: str, descriptor: dict[str, object]) -> str:
    digest = _digest(descriptor.get("digest"))
    path = _blob_path(layout, digest)
    if os.stat(path).st_size != descriptor.get("size"):
        raise InvalidImage(f"{digest} has another size than its manifest says")
    return path


def _blob_path(layout: str, digest: str) -> str:
    return os.path.join(layout, "blobs", *digest.split(":"))


def _digest(value: object) -> str:
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise InvalidImage("a digest in its manifest or configuration is not a SHA-256")
    return value


def _parse(data: bytes) -> dict[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidImage("its manifest or configuration is not JSON") from error
    return _mapping(value)


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidImage("its manifest or configuration is malformed")
    return value


def _part(document: dict[str, object], key: str) -> dict[str, object]:
    return _mapping(document.get(key))


def _list_of(document: dict[str, object], key: str) -> list[dict[str, object]]:
    value = document.get(key)
    if not isinstance(value, list):
        raise InvalidImage("its manifest or configuration is malformed")
    return [_mapping(entry) for entry in value]


class LayerReader:
    """The entries of one layer in the order of its archive, read in a stream. Decompresses in a thread."""

    def __init__(self, layer: LayerArchive) -> None:
        self._diff_id = layer.diff_id
        self._hash = hashlib.sha256()
        self._chunks: queue.Queue[bytes | Exception] = queue.Queue(CHUNKS_AHEAD)
        self._rest = b""
        self._is_closed = False
        self._content: IO[bytes] | None = None
        # Daemon: if the consumer fails, nobody empties the queue, and the process must end all the same.
        threading.Thread(target=self._decompress, args=(layer.path,), daemon=True).start()

    def _decompress(self, path: str) -> None:
        try:
            with open(path, "rb") as blob:
                for chunk in _decompressed(blob):
                    self._hash.update(chunk)
                    self._chunks.put(chunk)
            self._chunks.put(b"")
        except Exception as error:  # noqa: BLE001 - raised again by `read`
            self._chunks.put(error)

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes of the archive, b"" at its end. tarfile reads by this."""
        if not self._rest and not self._is_closed:
            chunk = self._chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            self._rest, self._is_closed = chunk, not chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def entries(self) -> Iterator[Entry]:
        """Yield all entries; then compare the whole archive with its hash.

        Raises `Unsupported` for what tarfile or this program does not understand, and `InvalidImage`.
        """
        with (
            _understood(),
            # In this mode tarfile calls nothing but `read`.
            tarfile.open(mode="r|", fileobj=cast("IO[bytes]", self), bufsize=CHUNK, encoding="utf-8") as archive,
        ):
            for info in archive:
                self._content = archive.extractfile(info) if info.isreg() else None
                yield _entry(info)
                archive.members.clear()  # type: ignore[attr-defined] # or it keeps them all
            while self.read(CHUNK):
                pass
        if f"sha256:{self._hash.hexdigest()}" != self._diff_id:
            raise InvalidImage(f"a layer is not {self._diff_id}")

    def content(self) -> Iterator[bytes]:
        """Yield the content of the entry that was yielded last."""
        assert self._content is not None
        with _understood():
            while chunk := self._content.read(CHUNK):
                yield chunk


@contextmanager
def _understood() -> Iterator[None]:
    """Raise `Unsupported` for an archive that tarfile or zlib refuses."""
    try:
        yield
    except (tarfile.TarError, zlib.error, ValueError, OverflowError, EOFError) as error:
        raise Unsupported(f"a layer is not understood: {error}") from error


def _decompressed(blob: BinaryIO) -> Iterator[bytes]:
    magic = blob.read(4)
    blob.seek(0)
    if magic.startswith(GZIP):
        yield from _gunzip(blob)
    elif magic == ZSTD:
        yield from _unzstd(blob)
    else:
        while chunk := blob.read(CHUNK):
            yield chunk


def _gunzip(blob: BinaryIO) -> Iterator[bytes]:
    member = zlib.decompressobj(31)
    data, chunk = b"", b""
    while True:
        if not data and len(chunk) < CHUNK and not (data := blob.read(CHUNK)):
            break
        if member.eof:
            if not data.strip(b"\0"):  # padding
                data = b""
                continue
            member = zlib.decompressobj(31)
        chunk = member.decompress(data, CHUNK)
        data = member.unused_data if member.eof else member.unconsumed_tail
        if chunk:
            yield chunk
    if not member.eof:
        raise zlib.error("it ends too early")


def _unzstd(blob: BinaryIO) -> Iterator[bytes]:
    try:
        # S603: a program by its absolute path
        process = subprocess.Popen([ZSTD_PROGRAM, "-dcq"], stdin=blob, stdout=subprocess.PIPE)
    except OSError as error:
        raise Unsupported(f"cannot run {ZSTD_PROGRAM}: {error.strerror}") from error
    with process:
        assert process.stdout is not None
        while chunk := process.stdout.read(CHUNK):
            yield chunk
    if process.returncode:
        raise zlib.error(f"{ZSTD_PROGRAM} ended with {process.returncode}")


def _entry(info: tarfile.TarInfo) -> Entry:
    kind, target = info.type, b""
    if info.isreg():
        kind = tarfile.REGTYPE
    elif info.issym():
        target = _bytes(info.linkname)
        if not 0 < len(target) <= LONGEST_PATH or b"\0" in target:
            raise Unsupported(f"the target of {info.name!r} cannot be stored")
    elif info.islnk():
        target = _path(info.linkname)
    elif info.ischr() or info.isblk():
        kind = tarfile.REGTYPE
    elif not (info.isdir() or info.isfifo()):
        raise Unsupported(f"{info.name!r} has the unknown type {info.type!r}")
    size = info.size if info.isreg() else 0
    return Entry(_path(info.name), kind, info.mode & 0o7777, _clamp(info.mtime), size, target)


def _clamp(mtime: float) -> int:
    return min(max(int(mtime), 0), LAST_SECOND)


def _path(name: str) -> bytes:
    parts = [part for part in _bytes(name).split(b"/") if part not in (b"", b".")]
    path = b"/".join(parts)
    if b".." in parts or b"\0" in path or len(path) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in parts):
        raise Unsupported(f"the name {name[:100]!r} cannot be stored")
    return path


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _parents(path: bytes) -> Iterator[bytes]:
    """Yield the directories that a path is in, the nearest first; the root (b"") last."""
    while path:
        path = path.rpartition(b"/")[0]
        yield path


class Archive:
    """The tar archive for mksquashfs. Every path is written once."""

    def __init__(self, out: IO[bytes], bounds: ImageBounds) -> None:
        self._out = out
        self._size, self._files = bounds

    def add(self, path: bytes, entry: Entry, content: Iterator[bytes]) -> None:
        """Write an entry under a path, with its content if it is a file. Raises `BoundsExceeded`."""
        self._files -= 1
        self._size -= entry.size
        if self._size < 0 or self._files < 0:
            raise BoundsExceeded
        info = tarfile.TarInfo(_text(path))
        info.type, info.mode, info.mtime, info.size = entry.type, _readable(entry), entry.mtime, entry.size
        info.linkname = _text(entry.target)
        self._out.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        left = entry.size
        for chunk in content if entry.size else ():
            left -= len(chunk)
            self._out.write(chunk)
        if left:
            raise Unsupported(f"{path!r} ends too early")
        self._out.write(bytes(-entry.size % tarfile.BLOCKSIZE))

    def end(self) -> None:
        """Write the end of the archive."""
        self._out.write(bytes(2 * tarfile.BLOCKSIZE))
        self._out.flush()


def _readable(entry: Entry) -> int:
    """Return the mode of an entry as `chmod u+rX` leaves it."""
    if entry.type == tarfile.SYMTYPE:
        return 0o777
    executable = entry.type == tarfile.DIRTYPE or entry.mode & 0o111
    return entry.mode | (0o500 if executable else 0o400)


class _Links(NamedTuple):
    """Hard links of one layer to a target that no layer has had so far."""

    paths: list[bytes]
    layer: int


class Image:
    """What the layers that were read so far make of the image, and what they hide in lower ones."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._directories: dict[bytes, Entry] = {}
        self._implied: set[bytes] = {b""}  # directories that hold something, with or without an entry of their own
        self._ends: set[bytes] = set()  # hidden, with everything in it
        self._opaque: set[bytes] = set()  # everything in it is hidden
        self._links: list[tuple[bytes, bytes]] = []  # hard links to write, with the paths of their content
        self._wanted: dict[bytes, list[_Links]] = {}  # by target: links to what may be in a lower layer
        self.passed: dict[int, dict[bytes, list[bytes]]] = {}  # by layer and target: links to what was not written

    def add_layer(self, number: int, reader: LayerReader) -> None:
        """Write what a layer adds to the upper ones. Layers have falling numbers."""
        layer = _LayerState()
        for entry in reader.entries():
            if not layer.register(entry):
                self._add(number, layer, entry, reader)
        for path, entry in layer.directories.items():
            if path not in self._directories and not self._hides(path, layer):
                self._directories[path] = entry
        if any(path in layer.implied and path not in layer.directories for path in layer.whiteouts):
            raise Unsupported("a layer removes a directory and has files in it")
        self._ends |= layer.whiteouts | layer.contents.keys()
        self._opaque |= layer.opaque

    def _add(self, number: int, layer: _LayerState, entry: Entry, reader: LayerReader) -> None:
        """Write an entry that is no directory, if it is visible or the target of a link."""
        path = entry.path
        is_visible = not self._hides(path, layer) and path not in self._directories
        if is_visible and path in self._implied:
            raise Unsupported(f"an upper layer leads through {path!r}")
        links = [path] if is_visible else []
        for wanted in self._wanted.pop(path, []):
            if wanted.layer == number:
                raise Unsupported(f"a hard link to {path!r} comes before it")
            links += wanted.paths
        if is_visible:
            self._implied.update(_parents(path))
        if entry.type == tarfile.LNKTYPE:
            target = layer.targets.get(entry.target, entry.target)
            layer.targets[path] = target
            layer.contents[path] = None
            self._link(number, layer, links, target)
            return
        layer.contents[path] = links[0] if links else None
        if links:
            self._archive.add(links[0], entry, reader.content() if entry.size else iter(()))
            self._links += [(link, links[0]) for link in links[1:]]

    def _link(self, number: int, layer: _LayerState, links: list[bytes], target: bytes) -> None:
        """Remember hard links to what a layer has, or may find below it, under the path `target`."""
        if not links:
            return
        if target not in layer.contents:
            self._wanted.setdefault(target, []).append(_Links(links, number))
        elif content := layer.contents[target]:
            self._links += [(link, content) for link in links]
        else:
            self.passed.setdefault(number, {}).setdefault(target, []).extend(links)

    def _hides(self, path: bytes, layer: _LayerState) -> bool:
        """Return whether upper layers hide a path."""
        return bool(path) and (path in self._ends or self._hides_content(path.rpartition(b"/")[0], layer))

    def _hides_content(self, directory: bytes, layer: _LayerState) -> bool:
        known = layer.hidden.get(directory)
        if known is None:
            known = directory in self._opaque or self._hides(directory, layer)
            layer.hidden[directory] = known
        return known

    def add_passed(self, links_of: dict[bytes, list[bytes]], reader: LayerReader) -> None:
        """Write what links need of a layer that was read before."""
        for entry in reader.entries():
            links = links_of.get(entry.path)
            if links and entry.type != tarfile.DIRTYPE:
                self._archive.add(links[0], entry, reader.content() if entry.size else iter(()))
                self._links += [(link, links[0]) for link in links[1:]]

    def end(self) -> Entry:
        """Write hard links, then directories; return the root's entry. Raises `Unsupported` if a link has no target."""
        if self._wanted:
            raise Unsupported(f"a hard link has no target: {next(iter(self._wanted))!r}")
        for link, content in self._links:
            self._archive.add(link, Entry(link, tarfile.LNKTYPE, 0, 0, 0, content), iter(()))
        plain = Entry(b"", tarfile.DIRTYPE, PLAIN_DIRECTORY, 0, 0, b"")
        for path in sorted(self._implied | self._directories.keys()):
            if path:
                self._archive.add(path, self._directories.get(path, plain), iter(()))
        self._archive.end()
        return self._directories.get(b"", plain)


class _LayerState:
    """What was seen of one layer."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes | None] = {}  # all but directories → path that has the content, None: none
        self.targets: dict[bytes, bytes] = {}  # hard link → what it leads to, not itself a link of this layer
        self.directories: dict[bytes, Entry] = {}  # the last entry of each
        self.implied: set[bytes] = {b""}  # directories that entries are in
        self.whiteouts: set[bytes] = set()
        self.opaque: set[bytes] = set()
        self.hidden: dict[bytes, bool] = {}  # directory → whether upper layers hide what it has here

    def register(self, entry: Entry) -> bool:
        """Remember where an entry is. Return whether that is all: it is a whiteout or a directory.

        Raises `Unsupported` if the result depends on the order of entries.
        """
        path = entry.path
        parent, _, name = path.rpartition(b"/")
        self._enter(parent)
        if name == OPAQUE:
            self.opaque.add(parent)
        elif name.startswith(WHITEOUT):
            self.whiteouts.add(path[: len(path) - len(name)] + name[len(WHITEOUT) :])
        elif path in self.contents or (
            entry.type != tarfile.DIRTYPE and (path in self.directories or path in self.implied)
        ):
            raise Unsupported(f"{path!r} occurs twice in a layer")
        elif entry.type == tarfile.DIRTYPE:
            self.directories[path] = entry
        else:
            return False
        return True

    def _enter(self, directory: bytes) -> None:
        while directory not in self.implied:
            if directory in self.contents:
                raise Unsupported(f"entries lead through {directory!r}, which is no directory")
            self.implied.add(directory)
            directory = directory.rpartition(b"/")[0]


def flatten(layers: list[LayerArchive], out: IO[bytes], bounds: ImageBounds) -> int:
    """Write the image of `layers` (the lowest first) as a tar archive; return the mode of its root.

    Raises `Unsupported`, `InvalidImage`, `BoundsExceeded` and `OSError`; what was written then is of no use.
    """
    image = Image(Archive(out, bounds))
    for number in reversed(range(len(layers))):
        image.add_layer(number, LayerReader(layers[number]))
    for number, links_of in image.passed.items():
        image.add_passed(links_of, LayerReader(layers[number]))
    return _readable(image.end())


def root_mode(layers: list[LayerArchive]) -> int:
    """Return the mode of the root, by the first entry of each layer: mksquashfs must be told before it starts."""
    for layer in reversed(layers):
        with suppress(Unsupported):
            entry = next(LayerReader(layer).entries(), None)
            if entry is not None and entry.path == b"" and entry.type == tarfile.DIRTYPE:
                return _readable(entry)
    return PLAIN_DIRECTORY


def make(layout: str, tag: str, result: str, bounds: ImageBounds, memory: int) -> int:
    """Make the squashfs `result` of the image `tag` in an OCI layout; return the exit status of mksquashfs.

    Raises `Unsupported`, `InvalidImage`, `BoundsExceeded` and `OSError`. After a failure there is no result.
    """
    _require_tar()
    layers = layers_of(layout, tag)
    mode = root_mode(layers)
    is_made = False
    with tempfile.TemporaryFile() as messages:
        # S603: a program by its absolute path, and arguments of our own
        process = subprocess.Popen(_pack(result, mode), stdin=subprocess.PIPE, stderr=messages)
        assert process.stdin is not None
        # Not before: mksquashfs takes a share of the machine's memory.
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
        try:
            try:
                is_as_announced = flatten(layers, process.stdin, bounds) == mode
                process.stdin.close()
            except BrokenPipeError:  # mksquashfs has ended, and says why
                is_as_announced = True
            status = process.wait()
            messages.seek(0)
            said = messages.read()
            sys.stderr.buffer.write(said)
            if not status and said:
                raise Unsupported("mksquashfs did not take everything")
            if not is_as_announced:
                raise Unsupported("the root's mode is not in the first entry of a layer")
            is_made = not status
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            if not is_made:
                with suppress(FileNotFoundError):
                    os.unlink(result)
    return status


def _require_tar() -> None:
    """Raise `Unsupported` if this node's mksquashfs reads no tar archives (squashfs-tools, CHANGES, 4.5)."""
    said = subprocess.run([MKSQUASHFS, "-version"], stdout=subprocess.PIPE, check=False).stdout
    version = VERSION.search(said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_WITH_TAR:
        raise Unsupported(f"{MKSQUASHFS} is older than 4.5")


def _pack(result: str, mode: int) -> list[str]:
    processors = str(len(os.sched_getaffinity(0)))
    return [
        *(MKSQUASHFS, "-", result, "-tar", "-root-mode", f"{mode:o}"),
        *("-all-root", "-no-xattrs", "-noappend", "-no-progress", "-quiet"),
        *("-comp", "zstd", "-Xcompression-level", "3", "-mkfs-time", "0", "-processors", processors),
    ]


def main(arguments: list[str], memory: int) -> int:
    """Run with the arguments LAYOUT TAG RESULT BYTES FILES, and at most `memory` bytes. Return the exit status."""
    layout, tag, result, size, files = arguments
    try:
        return make(layout, tag, result, ImageBounds(int(size), int(files)), memory)
    except Unsupported as error:
        status, problem = UNSUPPORTED, str(error)
    except InvalidImage as error:
        status, problem = INVALID, str(error)
    except BoundsExceeded:
        status, problem = TOO_LARGE, "too large"
    except OSError as error:
        status, problem = 1, error.strerror or str(error)
    except MemoryError:
        status, problem = 1, "its layers need too much memory to be understood"
    print(problem, file=sys.stderr)  # noqa: T201 - the importer reads it
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], MOST_MEMORY))
