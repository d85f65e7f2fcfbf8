"""Loop devices: attach a file as a block device for as long as it is mounted; tell which file one has. Runs as root.

/dev may lack a device that the kernel has: in a container it is a copy made at its start. A node is made then for as
long as it takes to open it. /sys/block shows the devices of all containers of a machine.

Constants, `struct loop_config` (Linux 5.8) and `struct loop_info64` are from linux/loop.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress

from warmstart.host.files import closing, read_small
from warmstart.host.linux import proc_path

CONTROL = "/dev/loop-control"
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_MAJOR = 7  # the kernel's devices.txt
_READ_ONLY, _AUTOCLEAR = 1, 4
_CONFIG = "=II5Q4I64s64s32s2Q8Q"  # fd, block size; loop_info64; reserved
_STATUS = "=5Q4I64s64s32s2Q"  # device and inode of the file first
_NAME_LENGTH = 64
_TRIES = 64
_BLOCK = "/sys/block"
_LONGEST = 4096  # the size that a file of sysfs says to have


def attach(file_fd: int, name: str, *, writable: bool = False) -> tuple[int, str]:
    """Attach a file to a free loop device; return the device's descriptor, and the path to mount it from while open.

    The kernel frees the device when it is neither open nor mounted, so a killed process leaves nothing behind. `name`
    is what `losetup` shows. Raises `OSError` if there are no loop devices or none is free.
    """
    with closing(os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)) as control:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device, path = _open(f"loop{number}", os.O_RDWR if writable else os.O_RDONLY)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _config(file_fd, name, 0 if writable else _READ_ONLY))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # another process took it first
                    raise
            except BaseException:
                os.close(device)
                raise
            else:
                return device, path
    raise OSError(errno.EBUSY, "no loop device is free", CONTROL)


def is_attached(device: int, file_fd: int) -> bool:
    """Return whether a device (`st_dev` of what is mounted from it) is a loop device with this very file.

    Raises `OSError` if the device cannot be opened.
    """
    if os.major(device) != _LOOP_MAJOR:
        return False
    fd, _ = _open(f"loop{os.minor(device)}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        if os.fstat(fd).st_rdev != device:  # numbered in another way: the parameter max_part of loop
            return False
        file = os.fstat(file_fd)
        return _file_of(fd) == (file.st_dev, file.st_ino)
    finally:
        os.close(fd)


def backing_files() -> frozenset[tuple[int, int]]:
    """Return device and inode of the files of all attached loop devices that this process may open."""
    found = set()
    for name in os.listdir(_BLOCK):
        if name.startswith("loop") and os.path.exists(f"{_BLOCK}/{name}/loop"):
            with suppress(OSError):  # freed just now, or not for this container
                fd, _ = _open(name, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    found.add(_file_of(fd))
                finally:
                    os.close(fd)
    return frozenset(found)


def _file_of(device: int) -> tuple[int, int]:
    """Return device and inode of the file of an open loop device."""
    status = bytearray(struct.calcsize(_STATUS))
    fcntl.ioctl(device, _LOOP_GET_STATUS64, status)
    number, inode, *_ = struct.unpack(_STATUS, status)
    return number, inode


def _open(name: str, flags: int) -> tuple[int, str]:
    """Open a loop device that the kernel has; return its descriptor, and a path to it while that is open."""
    path = f"/dev/{name}"
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        return os.open(path, flags), path
    major, minor = read_small(f"{_BLOCK}/{name}/dev", _LONGEST).split(b":")
    made = f"/dev/.{name}.{os.urandom(8).hex()}"
    os.mknod(made, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
    try:
        fd = os.open(made, flags)
    finally:
        os.unlink(made)
    return fd, proc_path(fd)


def _config(file_fd: int, name: str, flags: int) -> bytes:
    shown = name.encode()[: _NAME_LENGTH - 1]
    return struct.pack(_CONFIG, file_fd, 0, *(0,) * 5, 0, 0, 0, flags | _AUTOCLEAR, shown, b"", b"", *(0,) * 10)
