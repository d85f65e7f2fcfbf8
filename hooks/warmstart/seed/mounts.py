"""The mounts of a node's copies of bundles: each is mounted once, and shown to jobs as clones.

    <node>/layers/<sha256>/       root, 0700; the bundle, mounted `ro,nosuid,nodev`

Jobs get clones, so a bundle can be unmounted here at any time: the kernel keeps its file system, loop device and bytes
until the last overlay above it is unmounted. After a reboot the next job mounts it again. Here at most `MOST_MOUNTED`
stay mounted, of one scope `MOST_OF_SCOPE`: whoever mounts one more unmounts the least recently used of the scope that
has most. ctypes is imported only to mount.
"""

from __future__ import annotations

import errno
import os

from warmstart.host import files, linux
from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, closing, ensure_dir, mount_id, open_regular, opened_dir
from warmstart.lean import Iterator, Sequence, contextmanager, suppress

# A mounted copy has a loop device, and takes 0.7 MiB of kernel memory or more. One job needs at most 15 for a profile.
MOST_MOUNTED, MOST_OF_SCOPE = 256, 64
_LOCK_PAUSE_S = 0.005


def mounted(directory: str, paths: Sequence[str], deadline: Deadline) -> list[int]:
    """Return descriptors (O_PATH) of the roots of copies' mounts; mount the copies that are not mounted.

    Raises `OSError` if the kernel has no squashfs or no free loop device, if a copy is damaged, or (`ETIME`) if another
    prolog held the lock until the deadline; then no descriptor stays open.
    """
    roots: list[int] = []
    made = 0
    try:
        with exclusive(directory, deadline) as dir_fd:
            below = mount_id(dir_fd)
            for path in paths:
                name = os.path.basename(path).partition(".")[0]
                roots.append(_root(dir_fd, name))
                if mount_id(roots[-1]) == below:
                    os.close(roots.pop())
                    _mount(path, f"{directory}/{name}")
                    roots.append(os.open(name, PATH, dir_fd=dir_fd))
                    made += 1
            if made and len(os.listdir(dir_fd)) > MOST_OF_SCOPE:
                with suppress(OSError):  # maintenance unmounts, too
                    _unmount_most(dir_fd, os.path.dirname(paths[0]), 2 * made)
    except BaseException:
        for root in roots:
            os.close(root)
        raise
    return roots


@contextmanager
def exclusive(directory: str, deadline: Deadline) -> Iterator[int]:
    """Hold the lock for mounting and unmounting, a flock on the directory; yields a descriptor of it."""
    try:
        fd = os.open(directory, files.DIRECTORY)
    except FileNotFoundError:
        ensure_dir(directory, 0o700)
        fd = os.open(directory, files.DIRECTORY)
    with closing(fd):
        if not files.wait_flock(fd, deadline, _LOCK_PAUSE_S):
            raise OSError(errno.ETIME, "another job of this node is still mounting", directory)
        yield fd


def _root(dir_fd: int, name: str) -> int:
    """Open the mount point of a copy; make it if it is missing."""
    try:
        return os.open(name, PATH, dir_fd=dir_fd)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=dir_fd)
        return os.open(name, PATH, dir_fd=dir_fd)


def _mount(path: str, target: str) -> None:
    from warmstart.host import loops

    with closing(open_regular(path)) as file:
        device, source = loops.attach(file, path)
    try:
        linux.mount(source, target, "squashfs", linux.MS_RDONLY | linux.RESTRICTED)
    finally:
        os.close(device)  # the mount keeps the device; if mounting failed, this frees it


def _unmount_most(dir_fd: int, bundles: str, most: int) -> None:
    """Unmount up to `most` copies beyond the bounds; those stay that a prolog has open, to show them to its job."""
    from warmstart.host.space import Held, fair_order
    from warmstart.seed.node_cache import last_use, place_of

    with opened_dir(bundles) as fd:
        copies = sorted((last_use(fd, sha256), sha256) for sha256 in os.listdir(dir_fd))
        scopes = [place_of(fd, sha256).scope for _, sha256 in copies]
    left, done = {scope: scopes.count(scope) for scope in {*scopes}}, 0
    for number in fair_order(Held(scope, 1) for scope in scopes):
        if done == most or (len(copies) - done <= MOST_MOUNTED and left[scopes[number]] <= MOST_OF_SCOPE):
            return
        left[scopes[number]] -= 1
        with suppress(OSError):
            linux.unmount_idle(copies[number][1], dir_fd)
            os.rmdir(copies[number][1], dir_fd=dir_fd)
            done += 1


def unmount(dir_fd: int, sha256: str) -> None:
    """Unmount a copy, in the directory that is locked, and remove its mount point. Raises `OSError`.

    Removing the mount point also detaches the mount in the mount namespaces of jobs.
    """
    with suppress(OSError):  # EINVAL: nothing is mounted
        linux.unmount(sha256, dir_fd)
    os.rmdir(sha256, dir_fd=dir_fd)
