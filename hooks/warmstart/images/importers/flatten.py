"""Make a squashfs straight from the layers of an OCI image: one tar archive, piped into mksquashfs.

A program of the importer `oci`. It runs as the import account, without network, on bytes that a registry chose.

The layers are read once, from the top down, and the first occurrence of a path wins:

| a layer has                     | what that means for lower layers                                     |
|---------------------------------|----------------------------------------------------------------------|
| a file, link, FIFO or device    | that path is hidden, with everything in it                           |
| a directory                     | a file of that name is hidden; what is in a directory is added to it |
| `.wh.NAME`                      | NAME is hidden, with everything in it                                |
| `.wh..wh..opq`                  | everything in its directory is hidden                                |
| any other `.wh..wh.*`           | it is hidden itself, with everything in it: AUFS wrote it for itself |

What a layer hides does not concern its own entries (OCI image-spec, layer.md, Whiteouts). Hard links and directories
are written last: a link's target may be in a lower layer, and a directory's mode, too. A target that is hidden itself
is written under the link's name. If it has passed by already, its layer is read again for it.

On top comes what `image_config` makes of the image's configuration, and nothing is left in `dev`.

Types and modes are those that `umoci raw unpack --rootless` and `unpacked` leave: owners can read everything and fill
directories, devices are empty files, extended attributes are dropped. An image whose result depends on the order in
which its entries are extracted is `Unsupported`: a path that occurs twice in a layer, or one that leads through a link.
The importer unpacks such an image.

Every layer is read to its end and compared with its `diff_id`, the SHA-256 in the image's configuration, whose own
SHA-256 is in the manifest. What a layer may hold, hidden or not, is counted by `layer_reader`; so no image gets to
umoci, which counts nothing, before all its layers were read. If this program fails, it leaves no result.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from warmstart.images.importers import image_config, manifest, oci_layout
from warmstart.images.importers.image_config import Additions
from warmstart.images.importers.layer_reader import (
    CHUNK,
    SPARSE,
    BoundsExceeded,
    Budget,
    Entry,
    ImageBounds,
    InvalidImage,
    LayerArchive,
    LayerReader,
    Unsupported,
    cpu_seconds,
    is_zstd,
)
from warmstart.images.importers.oci_layout import LayoutImage

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
AUFS = b".wh..wh."
MKSQUASHFS = "/usr/bin/mksquashfs"
OLDEST_WITH_TAR = (4, 5)
# Bytes of address space, before anything is read: the names of all files, and libzstd's window.
LEAST_MEMORY, MEMORY_PER_FILE = 512 << 20, 2048
PACKING_MEMORY = "256M"  # for what mksquashfs has read and not yet written; by itself a quarter of the machine's memory
PLAIN_DIRECTORY = 0o755  # the mode of a directory that no layer has an entry for, and of the root, as enroot has it
UNCOMPRESSED = "uncompressed"  # the layout for umoci where it cannot read the image's own
VERSION = re.compile(rb"mksquashfs version (\d+)\.(\d+)")
# Exit statuses, for the importer. 1 is any other failure.
UNSUPPORTED, INVALID, TOO_LARGE, UNSUPPORTED_ZSTD, OTHER_MACHINE = 3, 4, 5, 6, 7


def command(layout: str, tag: str, result: str, bounds: tuple[int, int], mount_point: str) -> list[str]:
    """Return the command line that makes `result` of the image `tag` in a layout, all in the current directory."""
    return program(__name__, layout, tag, result, *map(str, bounds), mount_point)


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs `main` of a module of warmstart's."""
    library = __file__.removesuffix("/warmstart/images/importers/flatten.py")
    start = f"import sys; sys.path.insert(0, {library!r}); from {module} import main; sys.exit(main(sys.argv[1:]))"
    return [os.path.realpath(sys.executable), "-ISXutf8", "-c", start, *arguments]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _parents(path: bytes) -> Iterator[bytes]:
    """Yield the directories that a path is in, the nearest first; the root (b"") last."""
    while path:
        path = path.rpartition(b"/")[0]
        yield path


class Archive:
    """The tar archive for mksquashfs. Every path is written once."""

    def __init__(self, out: IO[bytes], bounds: ImageBounds, packer: int = 0) -> None:
        self._out = out
        self._size, self._files = self._bounds = bounds
        self._packer = packer  # process that gets CPU time by what is written
        self._granted = 0
        self._grant()

    def add(self, path: bytes, entry: Entry, content: Iterator[bytes]) -> None:
        """Write an entry under a path, with its content if it is a file. Raises `BoundsExceeded`."""
        self._files -= 1
        self._size -= entry.size
        if self._size < 0 or self._files < 0:
            raise BoundsExceeded
        self._grant()
        info = tarfile.TarInfo(_text(path))
        info.type, info.mode, info.mtime, info.size = entry.type, _mode(entry), entry.mtime, entry.size
        info.linkname = _text(entry.target)
        self._out.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        left = entry.size
        for chunk in content if entry.size else ():
            left -= len(chunk)
            self._out.write(chunk)
        if left:
            raise Unsupported(f"{path!r} ends too early")
        self._out.write(bytes(-entry.size % tarfile.BLOCKSIZE))

    def _grant(self) -> None:
        """Let mksquashfs take as much CPU time as an honest image of that size needs.

        It compares files that are alike with each other, and the names of a directory, too: that grows with the square.
        """
        seconds = int(cpu_seconds(self._bounds.size - self._size, self._bounds.files - self._files))
        if self._packer and seconds > self._granted:
            self._granted = seconds
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]  # -1: none
            with suppress(ProcessLookupError):  # its end is noticed where it is written to
                resource.prlimit(self._packer, resource.RLIMIT_CPU, (seconds if hard < 0 else min(seconds, hard), hard))

    def end(self) -> None:
        """Write the end of the archive."""
        self._out.write(bytes(2 * tarfile.BLOCKSIZE))
        self._out.flush()


def _mode(entry: Entry) -> int:
    return 0o777 if entry.type == tarfile.SYMTYPE else readable(entry.mode, is_directory=entry.type == tarfile.DIRTYPE)


def readable(mode: int, *, is_directory: bool) -> int:
    """Return the mode of what its owner can read, and fill if it is a directory, as enroot has it."""
    return mode | (0o700 if is_directory else 0o500 if mode & 0o111 else 0o400)


def _link_target(entry: Entry) -> bytes:
    return entry.target if entry.type == tarfile.LNKTYPE else b""


class Image:
    """What the layers that were read so far make of the image, and what they hide in lower ones."""

    def __init__(self, archive: Archive, added: Additions) -> None:
        self._archive = archive
        self._directories: dict[bytes, Entry] = {}
        self._implied: set[bytes] = {b""}  # directories that hold something, with or without an entry of their own
        self._ends: set[bytes] = set()  # hidden, with everything in it
        self._opaque: set[bytes] = set()  # everything in it is hidden
        self._links: list[tuple[bytes, bytes]] = []  # hard links to write, with the paths of their content
        self._wanted: dict[bytes, list[bytes]] = {}  # by target: links to what may be in a lower layer
        self.passed: dict[int, dict[bytes, list[bytes]]] = {}  # by layer and target: links to what was not written
        self._opaque.add(image_config.EMPTIED)
        for path, content in added.files.items():
            self._implied.update(_parents(path))
            self._ends.add(path)
            entry = Entry(path, tarfile.REGTYPE, image_config.FILE_MODE, 0, len(content), b"")
            self._archive.add(path, entry, iter((content,)))
        # Directories that are made where nothing is, with those above each; and what is there that is none.
        self._wanted_directories = [{path, *_parents(path)} for path in added.directories]
        self._in_the_way: set[bytes] = {*added.files}

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
        if path in layer.awaited:
            raise Unsupported(f"a hard link to {path!r} comes before it")
        links = [*([path] if is_visible else ()), *self._wanted.pop(path, ())]
        if is_visible:
            self._implied.update(_parents(path))
            if any(path in wanted for wanted in self._wanted_directories):
                self._in_the_way.add(path)
        if entry.type == tarfile.LNKTYPE:
            target = layer.targets.get(entry.target, entry.target)
            if entry.target == path:
                raise InvalidImage(f"{path!r} is a hard link to itself")
            if target not in layer.contents:
                layer.awaited.add(target)
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
            self._wanted.setdefault(target, []).extend(links)
        elif content := layer.contents[target]:
            self._links += [(link, content) for link in links]
        else:
            self.passed.setdefault(number, {}).setdefault(target, []).extend(links)

    def _hides(self, path: bytes, layer: _LayerState) -> bool:
        """Return whether upper layers hide a path."""
        parent, _, name = path.rpartition(b"/")
        return bool(path) and (name.startswith(AUFS) or path in self._ends or self._hides_content(parent, layer))

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

    def end(self) -> None:
        """Write hard links, then directories. Raises `Unsupported` if a link has no target."""
        if self._wanted:
            raise Unsupported(f"a hard link has no target: {next(iter(self._wanted))!r}")
        for link, content in self._links:
            self._archive.add(link, Entry(link, tarfile.LNKTYPE, 0, 0, 0, content), iter(()))
        for wanted in self._wanted_directories:
            if wanted.isdisjoint(self._in_the_way):
                self._implied |= wanted
        plain = Entry(b"", tarfile.DIRTYPE, PLAIN_DIRECTORY, 0, 0, b"")
        for path in sorted(self._implied | self._directories.keys()):
            if path:
                self._archive.add(path, self._directories.get(path, plain), iter(()))
        self._archive.end()


class _LayerState:
    """What was seen of one layer."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes | None] = {}  # all but directories → path that has the content, None: none
        self.targets: dict[bytes, bytes] = {}  # hard link → what it leads to, not itself a link of this layer
        self.awaited: set[bytes] = set()  # targets that this layer had not had when a link to them came
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
        if entry.type == SPARSE:
            raise Unsupported(f"{path!r} is sparse")
        if any(b".." in each.split(b"/") for each in (path, _link_target(entry))):
            raise Unsupported(f"{path!r} leads out of its directory")
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


def flatten(layers: list[LayerArchive], added: Additions, out: IO[bytes], bounds: ImageBounds, packer: int = 0) -> None:
    """Write the image of `layers` (the lowest first), and what comes on top of them, as a tar archive.

    `packer` is the process that reads it.

    Raises `Unsupported`, `InvalidImage`, `BoundsExceeded` and `OSError`; what was written then is of no use.
    """
    image, budget = Image(Archive(out, bounds, packer), added), Budget(bounds)
    for number in reversed(range(len(layers))):
        image.add_layer(number, LayerReader(layers[number], budget))
    again = Budget(bounds)
    for number, links_of in image.passed.items():
        image.add_passed(links_of, LayerReader(layers[number], again))
    image.end()


def make(image: LayoutImage, added: Additions, result: str, bounds: ImageBounds) -> int:
    """Make the squashfs `result` of an image; return the exit status of mksquashfs.

    Raises `Unsupported`, `InvalidImage`, `BoundsExceeded` and `OSError`. After a failure there is no result.
    """
    _require_tar()
    is_made = False
    with tempfile.TemporaryFile() as messages:
        with _without_limit():
            # S603: a program by its absolute path, and arguments of our own
            process = subprocess.Popen(_pack(result), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages)
        assert process.stdin is not None
        with suppress(OSError):  # or mksquashfs waits for each 64 KiB
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, CHUNK)
        try:
            try:
                flatten(image.layers, added, process.stdin, bounds, process.pid)
                process.stdin.close()
            except BrokenPipeError:
                pass  # mksquashfs has ended, and says why
            status = process.wait()
            messages.seek(0)
            said = messages.read()
            sys.stderr.buffer.write(said)
            if status == -signal.SIGXCPU:
                raise Unsupported("packing it takes more time than its size explains")
            if status < 0:
                raise Unsupported(f"mksquashfs was ended by signal {-status}")
            if not status and said:
                raise Unsupported("mksquashfs did not take everything")
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


@contextmanager
def _without_limit() -> Iterator[None]:
    """Start mksquashfs without this program's limit: it takes a share of the machine's memory, and gets our archive."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def prepare(image: LayoutImage, tag: str, bounds: ImageBounds) -> int:
    """Read all layers, so that umoci may unpack the image; return the exit status that says from which layout.

    The importer reads how many seconds of CPU time each program that takes part in it may have.

    umoci 0.4.7 knows no zstd: it gets the layers uncompressed. Raises `InvalidImage`, `BoundsExceeded` and `OSError`.
    """
    budget = Budget(bounds)
    if not any(_is_zstd(layer) for layer in image.layers):
        for layer in image.layers:
            _read_through(LayerReader(layer, budget))
        print(int(budget.cpu_seconds()))  # noqa: T201 - the importer reads it
        return UNSUPPORTED
    os.makedirs(os.path.join(UNCOMPRESSED, "blobs", "sha256"))
    for layer in image.layers:
        with open(oci_layout.blob_path(UNCOMPRESSED, layer.diff_id), "wb") as copy:
            _read_through(LayerReader(layer, budget, copy))
    oci_layout.write_uncompressed(UNCOMPRESSED, tag, image)
    print(int(budget.cpu_seconds()))  # noqa: T201 - the importer reads it
    return UNSUPPORTED_ZSTD


def _is_zstd(layer: LayerArchive) -> bool:
    with open(layer.path, "rb") as blob:
        return is_zstd(blob.read(4))


def _read_through(reader: LayerReader) -> None:
    for _ in reader.entries():
        pass


def _require_tar() -> None:
    """Raise `Unsupported` if this node's mksquashfs reads no tar archives (squashfs-tools, CHANGES, 4.5)."""
    said = subprocess.run([MKSQUASHFS, "-version"], stdout=subprocess.PIPE, check=False).stdout
    version = VERSION.search(said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_WITH_TAR:
        raise Unsupported(f"{MKSQUASHFS} is older than 4.5")


def _pack(result: str) -> list[str]:
    processors = str(len(os.sched_getaffinity(0)))
    return [
        MKSQUASHFS, "-", result, "-tar", "-root-mode", f"{PLAIN_DIRECTORY:o}",
        "-all-root", "-no-xattrs", "-noappend", "-no-progress", "-quiet", "-mem", PACKING_MEMORY,
        "-comp", "zstd", "-Xcompression-level", "3", "-mkfs-time", "0", "-processors", processors,
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run with LAYOUT TAG RESULT BYTES FILES MOUNT-POINT, and a limit of memory. Return the exit status."""
    layout, tag, result, size, files, mount_point = arguments
    bounds = ImageBounds(int(size), int(files))
    memory = LEAST_MEMORY + bounds.files * MEMORY_PER_FILE
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return run(layout, tag, result, bounds, mount_point)


def run(layout: str, tag: str, result: str, bounds: ImageBounds, mount_point: str = "") -> int:
    """Make the squashfs `result` of the image `tag` in a layout. Return the exit status, and say what failed."""
    try:
        image = oci_layout.read(layout, tag)
        # In a list of manifests the importer, or skopeo, has looked for this machine; one alone is fetched as it is.
        if manifest.is_for(os.uname().machine, oci_layout.parse(image.config).get("architecture")):
            status, problem = _made(image, tag, result, bounds, mount_point)
        else:
            status, problem = OTHER_MACHINE, "built for another machine"
    except InvalidImage as error:
        status, problem = INVALID, str(error)
    except BoundsExceeded:
        status, problem = TOO_LARGE, "too large"
    except OSError as error:
        status, problem = 1, error.strerror or str(error)
    except MemoryError:
        status, problem = TOO_LARGE, "its layers need too much memory to be understood"
    if problem:
        print(problem, file=sys.stderr)  # noqa: T201 - the importer reads it
    return status


def _made(image: LayoutImage, tag: str, result: str, bounds: ImageBounds, mount_point: str) -> tuple[int, str]:
    added = image_config.additions(image.config, mount_point)
    try:
        try:
            return make(image, added, result, bounds), ""
        except Unsupported as error:
            return prepare(image, tag, bounds), str(error)
    except (InvalidImage, BoundsExceeded):
        for layer in image.layers:
            oci_layout.require_whole(layer.path)
        raise
