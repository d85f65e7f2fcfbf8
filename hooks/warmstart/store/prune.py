"""Keep this node's copies of bundles within `seed.keep`: what was not used for longest goes (docs/maintenance.md).

A copy's mtime is its last use (`copies`). One that was used within the hour stays whatever the limit says: a prolog
may have it in hand. What is removed while it is open, or below a job's overlay, stays for those who have it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from warmstart.host import files
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, read_small, unlink_if_there
from warmstart.store import layers
from warmstart.store.maintenance import Use

IN_HAND_SECONDS = 3600.0
UNMOUNTING_SECONDS = 5.0
_BUNDLE = ".sqsh"
_COMPANIONS = (".files.json", ".origin.json")
_FETCHING = ".fetching"
_LARGEST_ORIGIN = 64 << 10


class _Copy(NamedTuple):
    used: float
    size: int
    stem: str


def prune(directory: str, mounted: str, keep: int, now: float) -> int:
    """Remove copies until the rest has `keep` bytes at most, and what dead fetches left; return the bytes removed.

    `mounted` is the directory where copies are mounted: what is gone, or in nobody's hand, is unmounted there. What a
    job still has below its overlay is freed by the kernel when that job ends, mount and bytes.
    """
    try:
        with opened_dir(directory) as fd:
            copies = _copies(fd)
            excess = sum(copy.size for copy in copies) - keep
            removed = 0
            for copy in sorted(copies):
                if removed >= excess or copy.used > now - IN_HAND_SECONDS:
                    break
                for suffix in (_BUNDLE, *_COMPANIONS):  # the bundle first: without it nothing else counts
                    unlink_if_there(copy.stem + suffix, fd)
                removed += copy.size
            _remove_abandoned(fd, now)
            _unmount_unused(fd, mounted, now)
            return removed
    except FileNotFoundError:
        return 0


def _unmount_unused(fd: int, mounted: str, now: float) -> None:
    """Unmount what is mounted of copies that are gone, or were not used within the hour.

    A mount takes a megabyte or more of the kernel's memory, however small the bundle: `keep` does not bound that.
    """
    for sha256 in layers.left(mounted):
        in_hand = partial(_is_in_hand, fd, sha256, now)
        layers.unmount(mounted, sha256, after(UNMOUNTING_SECONDS), unless=in_hand)


def _is_in_hand(fd: int, stem: str, now: float) -> bool:
    try:
        return os.stat(stem + _BUNDLE, dir_fd=fd, follow_symlinks=False).st_mtime > now - IN_HAND_SECONDS
    except FileNotFoundError:
        return False


def uses(directory: str) -> list[Use]:
    """Return when each copy was last used, of those that say where they are from."""
    found = []
    try:
        with opened_dir(directory) as fd:
            for copy in _copies(fd):
                with suppress(OSError, ValueError, TypeError):
                    raw = read_small(copy.stem + ".origin.json", _LARGEST_ORIGIN, fd)
                    scope, profile, namespace, bundle = json.loads(raw)
                    found.append(Use(scope, profile, namespace, bundle, copy.used))
    except FileNotFoundError:
        return []
    return found


def _copies(fd: int) -> list[_Copy]:
    copies = []
    for name in os.listdir(fd):
        if name.endswith(_BUNDLE):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                copies.append(_Copy(status.st_mtime, status.st_size, name.removesuffix(_BUNDLE)))
    return copies


def _remove_abandoned(fd: int, now: float) -> None:
    """Remove what fetches left that have died: nobody holds its lock, and it is old."""
    for name in os.listdir(fd):
        if not name.endswith((_FETCHING, *_COMPANIONS)):
            continue
        with suppress(OSError):
            if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime > now - IN_HAND_SECONDS:
                continue
            if not name.endswith(_FETCHING):
                _remove_widow(fd, name)
                continue
            file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                if files.try_take(file):
                    unlink_if_there(name, fd)
            finally:
                os.close(file)


def _remove_widow(fd: int, name: str) -> None:
    """Remove a list that belongs to no copy any more."""
    stem = name.partition(".")[0]
    try:
        os.stat(stem + _BUNDLE, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        unlink_if_there(name, fd)
