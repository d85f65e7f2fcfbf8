"""File systems that behave as a real site's do: root squash, full, read-only. Context managers.

All are mounted below the cluster's directory, where its teardown finds the mounts of a killed test.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.lib import host, processes
from tests.lib.teardown import mounts_below, unmount
from warmstart.host import linux

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lib.accounts import Account

_FUSE = "/dev/fuse"
_COHERENT = "attr_timeout=0,entry_timeout=0,negative_timeout=0"


@contextmanager
def squashed(base: Path, source: Path, target: Path, owner: Account, *, coherent: bool = False) -> Iterator[Path]:
    """Show `source` at `target` through a FUSE mount by `owner` that refuses everyone else.

    Without allow_other the kernel answers EACCES to every uid but the owner's, root's included
    (real, effective and saved uid are compared, fuse(4)), as root squash does, on one host.
    `source` must be the owner's; `target` is made. `base` is the cluster's directory. What is changed in `source`
    may be seen up to a second late, as on other clients of a real site's store; `coherent` asks at every look.
    """
    options = ("-o", _COHERENT) if coherent else ()
    target.mkdir(mode=0o755)
    os.chown(target, owner.uid, owner.gid)
    with fuse_for_all():
        server = processes.start(
            base, f"bindfs.{target.name}",
            ["/usr/bin/bindfs", "-f", "--no-allow-other", *options, str(source), str(target)],
            account=owner,
        )  # fmt: skip
        processes.wait_until(f"bindfs at {target}", lambda: _mounted(target, server), 10)
    try:
        yield target
    finally:
        unmount(str(target))
        processes.stop(server)


@contextmanager
def served(base: Path, source: Path, target: Path) -> Iterator[Path]:
    """Show `source` at `target` through a FUSE mount by root for all users, as clients of network file systems do."""
    target.mkdir(mode=0o755)
    argv = ["/usr/bin/bindfs", "-f", "-o", "allow_other", str(source), str(target)]
    server = processes.start(base, f"bindfs.{target.name}", argv)
    processes.wait_until(f"bindfs at {target}", lambda: _mounted(target, server), 10)
    try:
        yield target
    finally:
        unmount(str(target))
        processes.stop(server)


@contextmanager
def tmpfs(target: Path, size: str = "8m", inodes: int = 1000) -> Iterator[Path]:
    """Mount a tmpfs of `size` bytes (k, m, g) and at most `inodes` inodes on `target`."""
    target.mkdir(exist_ok=True)
    options = f"size={size},nr_inodes={inodes},mode=0755,nosuid,nodev"
    _mount("-t", "tmpfs", "-o", options, "warmstart-test", str(target))
    try:
        yield target
    finally:
        unmount(str(target))


@contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """Show a directory at the place of another, too."""
    _mount("--bind", str(source), str(target))
    try:
        yield
    finally:
        unmount(str(target))


@contextmanager
def read_only(target: Path) -> Iterator[Path]:
    """Make everything below a directory read-only (EROFS, also for root) by a bind mount on it.

    It is so when it is attached: a change of it later would not appear in other mount namespaces.
    """
    below = os.open(target, os.O_PATH)
    mount = linux.clone(below)
    try:
        linux.restrict(mount)
        linux.attach(mount, str(target))
    finally:
        os.close(mount)
        os.close(below)
    try:
        yield target
    finally:
        unmount(str(target))


@contextmanager
def hidden(target: Path) -> Iterator[None]:
    """Show an empty, read-only directory in the place of another, as where a file system is not mounted."""
    _mount("-t", "tmpfs", "-o", "ro,size=4k,mode=0755", "warmstart-test", str(target))
    try:
        yield
    finally:
        unmount(str(target))


@contextmanager
def not_connected(target: Path) -> Iterator[None]:
    """Answer ENOTCONN to every look below a directory, as a FUSE client does whose server has died."""
    device = os.open(_FUSE, os.O_RDWR)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
        linux.mount("warmstart-test", str(target), "fuse", linux.RESTRICTED, options)
    finally:
        os.close(device)
    try:
        yield
    finally:
        unmount(str(target))


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Take all space that is free on the small file system of a directory."""
    with (directory / "full").open("wb") as file:
        try:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
            yield
        finally:
            os.unlink(file.name)


@contextmanager
def slow(base: Path, target: Path, rate: int) -> Iterator[None]:
    """Let at most `rate` bytes a second be written below a directory of root's, on any machine.

    bindfs 1.18 waits for itself where it is mounted on its own source.
    """
    with tempfile.TemporaryDirectory(dir=base) as source:
        _mount("--bind", str(target), source)
        try:
            subprocess.run(["/usr/bin/bindfs", f"--write-rate={rate}", source, str(target)], check=True, timeout=30)
            try:
                yield
            finally:
                unmount(str(target))
        finally:
            unmount(source)


@contextmanager
def broken(base: Path, target: Path, *names: str, at: Literal["read", "look"] = "read") -> Iterator[None]:
    """Let every read, or already every look, at these files of a directory fail with EIO, as on a damaged disk.

    The directory can be written meanwhile; a file that fails only when it is read can be replaced. Afterwards it is as
    it was before. `base` is a directory for what is mounted.
    """
    with tempfile.TemporaryDirectory(dir=base) as place:
        image, source = f"{place}/image", f"{place}/source"
        for folder in ("source", "lower", "upper", "work"):
            os.mkdir(f"{place}/{folder}")
        for name in names:
            shutil.copy(target / name, source)
        for path, like in ((source, target), *((f"{source}/{name}", target / name) for name in names)):
            status = os.stat(like)
            os.chown(path, status.st_uid, status.st_gid)
            os.chmod(path, stat.S_IMODE(status.st_mode))
        shutil.copystat(source, f"{place}/upper")
        os.chown(f"{place}/upper", os.stat(source).st_uid, os.stat(source).st_gid)
        options = ["-noI", "-no-fragments", "-no-xattrs", "-no-progress", "-quiet"]
        subprocess.run(["/usr/bin/mksquashfs", source, image, *options], check=True, timeout=30)
        Path(image).write_bytes(_broken_image(Path(image).read_bytes(), at))
        _mount("-o", "loop,ro", image, f"{place}/lower")
        try:
            layers = f"lowerdir={place}/lower:{target},upperdir={place}/upper,workdir={place}/work"
            _mount("-t", "overlay", "-o", layers, "warmstart-test", str(target))
            try:
                yield
            finally:
                unmount(str(target))
        finally:
            unmount(f"{place}/lower")


def _broken_image(image: bytes, at: str) -> bytes:
    """Return a squashfs whose data cannot be unpacked, or whose names lead to no inode."""
    data = bytearray(image)
    inodes, names = struct.unpack_from("<2Q", data, 64)
    if at == "read":
        data[96:inodes] = bytes(byte ^ 0xFF for byte in data[96:inodes])
    else:  # a table begins with its length, the names of a directory with their number and where their inodes are
        struct.pack_into("<I", data, names + 6, 0x7FFF0000)
    return bytes(data)


@contextmanager
def fuse_for_all() -> Iterator[None]:
    """Let any account open /dev/fuse, as udev's default rules do; a bare host has it 0600."""
    with host.changing():
        mode = stat.S_IMODE(os.stat(_FUSE).st_mode)
        os.chmod(_FUSE, mode | 0o666)
        try:
            yield
        finally:
            os.chmod(_FUSE, mode)


def _mounted(target: Path, server: subprocess.Popen[bytes]) -> bool:
    """Look in the mount table, because access to the target itself may be refused."""
    if server.poll() is not None:
        raise RuntimeError(f"bindfs at {target} ended with status {server.returncode}")
    return str(target) in mounts_below(target.parent)


def _mount(*arguments: str) -> None:
    subprocess.run(["/bin/mount", *arguments], check=True, timeout=30)
