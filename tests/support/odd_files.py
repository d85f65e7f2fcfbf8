"""FUSE file systems that nobody wants in a tree: one that lies, and one that never answers.

    python -m tests.support.odd_files SOURCE TARGET

shows SOURCE read-only, but for what has one of these names:

    endless     a directory that lists names without end
    twice       a directory that lists one name twice
    inside      a directory whose only name leads to itself
    short       a file that ends before its size

SOURCE has to have a file `file`, which is what the first two list.
"""

from __future__ import annotations

import os
import posixpath
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tools.bench.slow_files import SlowFiles, _packed

from tests.cluster.teardown import unmount
from warmstart.host import linux

_DIRECTORY, _FILE = 4, 8  # readdir(3), DT_DIR and DT_REG
_NAMES = {"endless": 1 << 60, "twice": 2, "inside": 1}  # how many


class OddFiles(SlowFiles):
    """The file system that lies."""

    def __init__(self, source: str) -> None:
        super().__init__(source, 0.0)
        self._file = f"{source}/file"
        self._next = 1 << 40
        self._answers.update({1: self._odd_lookup, 15: self._odd_read, 28: self._odd_readdir})

    def _odd_lookup(self, path: str, body: bytes) -> bytes:
        lie = posixpath.basename(path)
        if lie not in _NAMES:
            return self._lookup(path, body)
        self._next += 1
        self._paths[self._next] = path if lie == "inside" else self._file
        return struct.pack("<4Q2I", self._next, 0, 1, 1, 0, 0) + _packed(os.lstat(self._paths[self._next]))

    def _odd_read(self, path: str, body: bytes) -> bytes:
        return b"" if posixpath.basename(path) == "short" else self._read(path, body)

    def _odd_readdir(self, path: str, body: bytes) -> bytes:
        lie = posixpath.basename(path)
        if lie not in _NAMES:
            return self._readdir(path, body)
        _, offset, size = struct.unpack_from("<2QI", body)
        answer = b""
        for number in range(offset, min(_NAMES[lie], offset + size // 64)):
            name = b"%032d" % (number if lie == "endless" else 0)
            kind = _DIRECTORY if lie == "inside" else _FILE
            answer += struct.pack("<2Q2I", number + 1, number + 1, len(name), kind) + name
        return answer


@contextmanager
def lying(source: Path, target: Path) -> Iterator[None]:
    """Mount the file system that lies."""
    argv = [sys.executable, "-m", "tests.support.odd_files", str(source), str(target)]
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
