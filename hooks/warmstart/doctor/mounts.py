"""Which file system a path is on, from /proc: asks no file system, so that one that hangs is no obstacle."""

from __future__ import annotations

from typing import NamedTuple

SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "afs", "9p", "glusterfs", "wekafs")
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs", "ramfs")


class Mount(NamedTuple):
    """A mounted file system: its type and where it is mounted."""

    kind: str
    point: str


def mount_of(path: str) -> Mount:
    """Return the mount of a path without links (proc(5), mounts)."""
    best = Mount("unknown", "")
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, written, kind, *_ = line.split(" ")
            point = written.encode("latin-1", "replace").decode("unicode_escape")
            if f"{path}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(best.point):
                best = Mount(kind, point)
    return best
