"""Finish a tree that umoci has unpacked: owners can read it, and it has what comes on top of the layers.

A program of the importer `oci`. It runs as the import account, without network, in a tree that a registry chose. No
other process of the import is alive, so nothing is replaced while it looks; links are never followed.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from warmstart.host.deadline import after
from warmstart.host.files import write_all
from warmstart.host.remove import remove_tree
from warmstart.images.importers import flatten, image_config, oci_layout
from warmstart.images.importers.image_config import Additions
from warmstart.images.importers.layer_reader import InvalidImage

FOREVER_S = 1e9  # `prlimit --cpu` and the import's deadline end this program
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def command(layout: str, tag: str, tree: str, mount_point: str) -> list[str]:
    """Return the command line that finishes `tree`, of the image `tag` in a layout, all in the current directory."""
    return flatten.program(__name__, layout, tag, tree, mount_point)


def main(arguments: list[str]) -> int:
    """Run with the arguments LAYOUT TAG TREE MOUNT-POINT. Return the exit status."""
    layout, tag, tree, mount_point = arguments
    try:
        finish(tree, image_config.additions(oci_layout.read(layout, tag).config, mount_point))
    except (InvalidImage, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the importer reads it
        return 1
    return 0


def finish(tree: str, added: Additions) -> None:
    """Make a tree what `flatten` would have made of its layers. Raises `OSError`."""
    os.chmod(tree, flatten.PLAIN_DIRECTORY)
    for _, directories, files, fd in os.fwalk(tree):
        for name in (*directories, *files):
            _make_readable(name, fd)
            if os.fsencode(name).startswith(flatten.AUFS):
                remove_tree(fd, name, after(FOREVER_S))
        directories[:] = [name for name in directories if not os.fsencode(name).startswith(flatten.AUFS)]
    root = os.open(tree, DIRECTORY)
    try:
        with _opened(root, image_config.EMPTIED) as emptied:
            if emptied is not None:
                for name in os.listdir(emptied):
                    remove_tree(emptied, name, after(FOREVER_S))
        for path, content in added.files.items():
            _write(root, path, content)
        for path in added.directories:
            with _opened(root, path, create=True):
                pass
    finally:
        os.close(root)


def _make_readable(name: str, fd: int) -> None:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    mode = stat.S_IMODE(found.st_mode)
    wanted = flatten.readable(mode, is_directory=stat.S_ISDIR(found.st_mode))
    if not stat.S_ISLNK(found.st_mode) and mode != wanted:
        os.chmod(name, wanted, dir_fd=fd)


@contextmanager
def _opened(root: int, path: bytes, *, create: bool = False, replace: bool = False) -> Iterator[int | None]:
    """Open a directory of the tree, None if something else is in its way.

    `create` makes what is missing; `replace` removes what is in the way, too.
    """
    fd: int | None = os.dup(root)
    try:
        for name in path.split(b"/"):
            assert fd is not None
            above, fd = fd, None
            try:
                fd = _enter(os.fsdecode(name), above, create=create or replace, replace=replace)
            finally:
                os.close(above)
            if fd is None:
                break
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _enter(name: str, above: int, *, create: bool, replace: bool) -> int | None:
    try:
        is_directory = stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        if not create:
            return None
    else:
        if is_directory:
            return os.open(name, DIRECTORY, dir_fd=above)
        if not replace:
            return None
        os.unlink(name, dir_fd=above)
    os.mkdir(name, image_config.DIRECTORY_MODE, dir_fd=above)
    os.chmod(name, image_config.DIRECTORY_MODE, dir_fd=above)  # whatever the umask
    return os.open(name, DIRECTORY, dir_fd=above)


def _write(root: int, path: bytes, content: bytes) -> None:
    parent, _, name = path.rpartition(b"/")
    with _opened(root, parent, replace=True) as directory:
        assert directory is not None
        remove_tree(directory, os.fsdecode(name), after(FOREVER_S))
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            write_all(fd, content)
            os.fchmod(fd, image_config.FILE_MODE)
            os.utime(fd, (0, 0))
        finally:
            os.close(fd)
