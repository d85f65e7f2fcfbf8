"""A read-only FUSE file system that shows a directory as a distant server would: each request takes a round trip.

    python -m tools.bench.slow_files SOURCE TARGET MILLISECONDS

On SIGTERM it unmounts and prints how many requests of each kind it has answered. It speaks the kernel's protocol
(linux/fuse.h, version 7.31) itself, so it needs no library. Needs root.

Names and attributes are believed for a second and misses not at all, as mount.glusterfs(8) does by default; pages stay
cached, and files are read ahead a megabyte at a time, as Lustre's clients do. Requests wait side by side and cost the
server nothing but the wait, so a real server that is busy is slower.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from warmstart.host import linux
from warmstart.lean import libc

THREADS = 48
CACHED_S = 1
MEGABYTE = 1 << 20
_HEADER = struct.Struct("<IIQQIIIHH")
_ATTRIBUTES = struct.Struct("<6Q10I")
_KEEP_CACHE = 2
_ASYNC_READ, _PARALLEL_DIROPS, _MAX_PAGES = 1, 1 << 18, 1 << 22
_NO_ANSWER = frozenset({2, 36, 42})  # FORGET, INTERRUPT, BATCH_FORGET
_ROOT = 1
_NAMES = {
    1: "lookup",
    3: "getattr",
    5: "readlink",
    14: "open",
    15: "read",
    17: "statfs",
    18: "release",
    22: "getxattr",
    25: "flush",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    39: "ioctl",
}


class SlowFiles:
    """One mount, served by threads of this process."""

    def __init__(self, source: str, delay_s: float) -> None:
        self._paths = {_ROOT: source}
        self._ids = {source: _ROOT}
        self._lock = threading.Lock()
        self._delay = delay_s
        self.counts: Counter[str] = Counter()
        self._answers: dict[int, Callable[[str, bytes], bytes]] = {
            1: self._lookup,
            3: self._getattr,
            5: self._readlink,
            14: self._open,
            15: self._read,
            17: self._statfs,
            18: self._release,
            27: self._opendir,
            28: self._readdir,
            29: lambda _path, _body: b"",
        }

    def mount(self, target: str) -> int:
        """Mount the file system; return its device."""
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={MEGABYTE}"
        linux.mount("slow", target, "fuse", linux.MS_RDONLY | linux.RESTRICTED, options)
        self._answer_init(device)
        for _ in range(THREADS):
            threading.Thread(target=self._serve, args=(device,), daemon=True).start()
        number = os.stat(target).st_dev
        with open(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb", "w") as file:
            file.write(str(MEGABYTE >> 10))
        return device

    def _answer_init(self, device: int) -> None:
        _, _, unique, *_ = _HEADER.unpack_from(os.read(device, 2 * MEGABYTE))
        flags = _ASYNC_READ | _PARALLEL_DIROPS | _MAX_PAGES
        answer = struct.pack("<4I2H2I2HI7I", 7, 31, MEGABYTE, flags, 64, 48, 4096, 1, MEGABYTE >> 12, 0, 0, *([0] * 7))
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)

    def _serve(self, device: int) -> None:
        while True:
            try:
                request = os.read(device, 2 * MEGABYTE)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue
            _, code, unique, node, *_ = _HEADER.unpack_from(request)
            if code not in _NO_ANSWER:
                self._reply(device, code, unique, node, request[40:])

    def _reply(self, device: int, code: int, unique: int, node: int, body: bytes) -> None:
        self.counts[_NAMES.get(code, str(code))] += 1
        failed, data = 0, b""
        answer = self._answers.get(code)
        try:
            data = answer(self._paths[node], body) if answer else b""
            failed = 0 if answer else errno.ENOSYS
        except OSError as error:
            failed = error.errno or errno.EIO
        if self._delay and failed != errno.ENOSYS and code not in (18, 29):  # nobody waits for a release
            time.sleep(self._delay)
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(data), -failed, unique) + data)
        except OSError:  # it was interrupted
            return

    def _lookup(self, path: str, body: bytes) -> bytes:
        below = f"{path}/{os.fsdecode(body.rstrip(bytes(1)))}"
        attributes = _packed(os.lstat(below))
        with self._lock:
            node = self._ids.setdefault(below, len(self._ids) + _ROOT)
            self._paths[node] = below
        return struct.pack("<4Q2I", node, 0, CACHED_S, CACHED_S, 0, 0) + attributes

    def _getattr(self, path: str, _body: bytes) -> bytes:
        return struct.pack("<Q2I", CACHED_S, 0, 0) + _packed(os.lstat(path))

    def _readlink(self, path: str, _body: bytes) -> bytes:
        return os.fsencode(os.readlink(path))

    def _open(self, path: str, _body: bytes) -> bytes:
        return struct.pack("<Q2I", os.open(path, os.O_RDONLY | os.O_CLOEXEC), _KEEP_CACHE, 0)

    def _opendir(self, _path: str, _body: bytes) -> bytes:
        return struct.pack("<Q2I", 0, 0, 0)

    def _release(self, _path: str, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _read(self, _path: str, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return os.pread(handle, size, offset)

    def _readdir(self, path: str, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        answer = bytearray()
        for number, name in enumerate(sorted(os.listdir(path))[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<2Q2I", number, number, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return bytes(answer)

    def _statfs(self, path: str, _body: bytes) -> bytes:
        found = os.statvfs(path)
        numbers = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q10I", *numbers, found.f_bsize, 255, found.f_frsize, *([0] * 7))


def _packed(status: os.stat_result) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    return _ATTRIBUTES.pack(
        *(status.st_ino, status.st_size, status.st_blocks, *(time // 10**9 for time in times)),
        *(time % 10**9 for time in times),
        *(status.st_mode, 1 if stat.S_ISREG(status.st_mode) else status.st_nlink, status.st_uid, status.st_gid),
        *(0, 4096, 0),
    )


def main() -> NoReturn:
    """Serve until SIGTERM."""
    source, target, milliseconds = sys.argv[1:]
    files = SlowFiles(source, float(milliseconds) / 1000)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    device = files.mount(target)
    print("mounted", flush=True)  # noqa: T201 - for who waits for it
    signal.sigwait([signal.SIGTERM])
    libc("umount2", os.fsencode(target), 2)
    os.close(device)
    print(dict(files.counts.most_common()), flush=True)  # noqa: T201 - the result
    os._exit(0)


if __name__ == "__main__":
    main()
