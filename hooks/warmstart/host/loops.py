"""Loop devices: attach a file as a block device for as long as it is mounted; tell which file one has. Runs as root.

Constants, `struct loop_config` (Linux 5.8) and `struct loop_info64` are from linux/loop.h.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress

from warmstart.host.files import read_small

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
_DELETED = " (deleted)"  # what the kernel says of a file without a name
_LONGEST = 8192


def attach(file_fd: int, name: str) -> tuple[int, str]:
    """Attach a file read-only to a free loop device; return the device's descriptor and path.

    The kernel frees the device when it is neither open nor mounted, so a killed process leaves nothing behind. `name`
    is what `losetup` shows. Raises `OSError` if there are no loop devices or none is free.
    """
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, _config(file_fd, name))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # another process took it first
                    raise
            except BaseException:
                os.close(device)
                raise
            else:
                return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free", CONTROL)


def is_attached(device: int, file_fd: int) -> bool:
    """Return whether a device (`st_dev` of what is mounted from it) is a loop device with this very file.

    Raises `OSError` if the device's node is missing.
    """
    if os.major(device) != _LOOP_MAJOR:
        return False
    fd = os.open(f"/dev/loop{os.minor(device)}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = bytearray(struct.calcsize(_STATUS))
        if os.fstat(fd).st_rdev != device:  # numbered in another way: the parameter max_part of loop
            return False
        fcntl.ioctl(fd, _LOOP_GET_STATUS64, status)
    finally:
        os.close(fd)
    file = os.fstat(file_fd)
    return struct.unpack(_STATUS, status)[:2] == (file.st_dev, file.st_ino)


def backing_files() -> list[str]:
    """Return the paths of the files of all attached loop devices, as they were when they were attached."""
    found = []
    for name in os.listdir(_BLOCK):
        if name.startswith("loop"):
            with suppress(OSError):  # not attached, or freed just now
                path = read_small(f"{_BLOCK}/{name}/loop/backing_file", _LONGEST)
                found.append(os.fsdecode(path).strip().removesuffix(_DELETED))
    return found


def _config(file_fd: int, name: str) -> bytes:
    shown = name.encode()[: _NAME_LENGTH - 1]
    flags = _READ_ONLY | _AUTOCLEAR
    return struct.pack(_CONFIG, file_fd, 0, *(0,) * 5, 0, 0, 0, flags, shown, b"", b"", *(0,) * 10)
