"""FUSE file systems that nobody wants in a tree: one that lies, and one that never answers.

    python -m tests.lib.odd_files SOURCE TARGET

shows SOURCE read-only, but for what has one of these names:

    endless     a directory that lists names without end
    twice       a directory that lists one name twice
    inside      a directory whose only name leads to itself
    short       a file that ends before its size

SOURCE has to have a file `file`, which is what the first two list.
"""

from __future__ import annotations

import errno
import os
import posixpath
import signal
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.lib.teardown import unmount
from warmstart.host import linux

_HEADER = struct.Struct("<IIQQIIIHH")  # linux/fuse.h, version 7.31
_ATTRIBUTES = struct.Struct("<6Q10I")
_MEGABYTE = 1 << 20
_NO_ANSWER = frozenset({2, 36, 42})  # FORGET, INTERRUPT, BATCH_FORGET
_TOP = 1
_DIRECTORY, _FILE = 4, 8  # readdir(3), DT_DIR and DT_REG
_NAMES = {"endless": 1 << 60, "twice": 2, "inside": 1}  # how many


class OddFiles:
    """The file system that lies. It speaks the kernel's protocol itself."""

    def __init__(self, source: str) -> None:
        self._paths = {_TOP: source}
        self._file = f"{source}/file"
        self._answers: dict[int, Callable[[str, bytes], bytes]] = {
            1: self._lookup,
            3: lambda path, _: struct.pack("<Q2I", 1, 0, 0) + _packed(path),
            14: lambda path, _: struct.pack("<Q2I", os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0, 0),
            15: self._read,
            18: self._release,
            27: lambda *_: struct.pack("<Q2I", 0, 0, 0),
            28: self._readdir,
            29: lambda *_: b"",
        }

    def mount(self, target: str) -> None:
        """Mount it, and serve it in a thread."""
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        linux.mount("odd", target, "fuse", linux.MS_RDONLY | linux.RESTRICTED, options)
        _, _, unique, *_ = _HEADER.unpack_from(os.read(device, 2 * _MEGABYTE))
        answer = struct.pack("<4I2H2I2HI7I", 7, 31, _MEGABYTE, 0, 64, 48, 4096, 1, 256, 0, 0, *([0] * 7))
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
        threading.Thread(target=self._serve, args=(device,), daemon=True).start()

    def _serve(self, device: int) -> None:
        while True:
            try:
                request = os.read(device, 2 * _MEGABYTE)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue
            _, code, unique, node, *_ = _HEADER.unpack_from(request)
            if code not in _NO_ANSWER:
                self._reply(device, unique, self._answers.get(code), (self._paths[node], request[40:]))

    @staticmethod
    def _reply(
        device: int, unique: int, answer: Callable[[str, bytes], bytes] | None, asked: tuple[str, bytes]
    ) -> None:
        failed, data = errno.ENOSYS, b""
        if answer:
            try:
                failed, data = 0, answer(*asked)
            except OSError as error:
                failed = error.errno or errno.EIO
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(data), -failed, unique) + data)
        except OSError:  # it was interrupted
            return

    def _lookup(self, path: str, body: bytes) -> bytes:
        lie = posixpath.basename(path)
        like = f"{path}/{os.fsdecode(body.rstrip(bytes(1)))}"
        if lie in _NAMES:
            like = path if lie == "inside" else self._file
        attributes = _packed(like)
        node = len(self._paths) + 1
        self._paths[node] = like
        return struct.pack("<4Q2I", node, 0, 1, 1, 0, 0) + attributes

    @staticmethod
    def _read(path: str, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return b"" if posixpath.basename(path) == "short" else os.pread(handle, size, offset)

    @staticmethod
    def _release(_path: str, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    @staticmethod
    def _readdir(path: str, body: bytes) -> bytes:
        lie = posixpath.basename(path)
        _, offset, size = struct.unpack_from("<2QI", body)
        names = None if lie in _NAMES else sorted(os.listdir(path))
        answer = b""
        for number in range(offset, min(_NAMES.get(lie, len(names or ())), offset + size // 64)):
            name = b"%032d" % (number if lie == "endless" else 0)
            kind = _DIRECTORY if lie == "inside" else _FILE
            if names is not None:
                name, kind = os.fsencode(names[number]), os.lstat(f"{path}/{names[number]}").st_mode >> 12
            entry = struct.pack("<2Q2I", number + 1, number + 1, len(name), kind) + name
            answer += entry + bytes(-len(entry) % 8)
        return answer


def _packed(path: str) -> bytes:
    status = os.lstat(path)
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    links = 1 if stat.S_ISREG(status.st_mode) else status.st_nlink
    return _ATTRIBUTES.pack(
        *(status.st_ino, status.st_size, status.st_blocks, *(time // 10**9 for time in times)),
        *(time % 10**9 for time in times),
        status.st_mode, links, status.st_uid, status.st_gid, 0, 4096, 0,
    )  # fmt: skip


@contextmanager
def lying(source: Path, target: Path) -> Iterator[None]:
    """Mount the file system that lies."""
    argv = [sys.executable, "-m", "tests.lib.odd_files", str(source), str(target)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert server.stdout
        assert server.stdout.readline() == b"mounted\n"
        yield
    finally:
        unmount(str(target))
        server.kill()
        server.communicate()


@contextmanager
def hanging(target: Path, uid: int) -> Iterator[None]:
    """Mount a file system of a user's that answers nothing, on a directory or a file."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        mode = "40000" if target.is_dir() else "100000"
        options = f"fd={device},rootmode={mode},user_id={uid},group_id={uid}"
        linux.mount("hanging", str(target), "fuse", linux.RESTRICTED, options)
        yield
    finally:
        os.close(device)  # whoever waits for it gets an error
        unmount(str(target))


def main() -> NoReturn:
    """Serve until somebody kills it."""
    source, target = sys.argv[1:]
    OddFiles(source).mount(target)
    print("mounted", flush=True)  # noqa: T201 - for who waits for it
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
