"""What goes from a node's cache of bundles (`node_cache`), and what of it was used when. Runs as root.

Maintenance keeps the copies of each kind of wholes within what their wing has said, and all others within `seed.keep`.
It removes the least recently used ones of the scope that has most, but never one used in the last hour, which a prolog
may be about to mount, and none that a job has mounted: that would free nothing before the job ends. A beginning counts
as a copy. A prolog that mounts one copy more unmounts others in that order, beyond `MOST_MOUNTED`, and `MOST_OF_SCOPE`.
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store.layout import Namespace
from warmstart.host import files, linux, wire
from warmstart.host.deadline import after
from warmstart.host.files import closing, is_at, names_in, open_regular, opened_dir, unlink_if_there
from warmstart.host.space import Held, fair_order
from warmstart.lean import TYPE_CHECKING, Mapping, NamedTuple, suppress
from warmstart.profiles.contract import WHOLE, is_whole
from warmstart.seed.copies import ABOUT, BUNDLE, FETCHING, exclusive

if TYPE_CHECKING:
    from warmstart.policy.keys import Policy

IN_USE_S = 3600.0  # a copy that was used within this time may be about to be mounted
ABANDONED_S = 86400.0  # a beginning with which nobody went on for so long
UNMOUNTING_S = 5.0
# A mounted copy has a loop device, and takes 0.7 MiB of kernel memory or more. One job needs at most 15 for a profile.
MOST_MOUNTED, MOST_OF_SCOPE = 256, 64
_LONGEST_PLACE = 4096


def keep_of(policy: Policy) -> dict[str, int]:
    """Return how many bytes of copies stay: "" of profiles, else of wholes with that name in place of a profile's."""
    return {"": policy.seed.keep, **{f"{WHOLE}{known.name}": known.keep for known in policy.wings if known.keep}}


class _Kept(NamedTuple):
    """A copy or the beginning of one."""

    used: float
    size: int  # bytes, with what is known about it
    sha256: str
    is_mounted: bool  # by a job
    where: Namespace  # where it is from


def prune(bundles: str, layers: str, keep: Mapping[str, int], now: float) -> int:
    """Evict copies beyond what is to stay (`keep_of`), and remove abandoned fetches; return the bytes removed.

    Copies used since `now` minus `IN_USE_S` stay, and so do those that jobs have mounted. Copies that are gone or were
    not used since then are unmounted first: each mount takes a megabyte of kernel memory, however small its bundle.
    """
    before, removed = now - IN_USE_S, 0
    with suppress(FileNotFoundError), opened_dir(bundles) as fd:
        for sha256 in names_in(layers):
            with suppress(FileNotFoundError), exclusive(layers, after(UNMOUNTING_S)) as dir_fd:
                if _last_use(fd, sha256) <= before:
                    unmount(dir_fd, sha256)
        kinds: dict[str, list[_Kept]] = {}
        for copy in sorted([*_copies(fd, BUNDLE), *_copies(fd, FETCHING)]):
            kinds.setdefault(copy.where.profile if is_whole(copy.where.profile) else "", []).append(copy)
        for kind, copies in kinds.items():
            removed += _evict(fd, copies, keep.get(kind, 0), before)
        for name in os.listdir(fd):
            with suppress(OSError):
                _remove_useless(fd, name, now)
    return removed


def _evict(fd: int, copies: list[_Kept], keep: int, before: float) -> int:
    """Evict copies until at most `keep` bytes are left; return the bytes removed."""
    excess, removed = sum(copy.size for copy in copies) - keep, 0
    held = [Held(copy.where.scope, copy.size, copy.used <= before and not copy.is_mounted) for copy in copies]
    for number in fair_order(held):
        if removed >= excess:
            break
        for suffix in (BUNDLE, FETCHING, ABOUT):  # the bundle first: without it the rest means nothing
            unlink_if_there(copies[number].sha256 + suffix, fd)
        removed += copies[number].size
    return removed


def _remove_useless(fd: int, name: str, now: float) -> None:
    """Remove a beginning that nobody has locked, if it is old or nothing has come; and what is about no copy."""
    stem, _, kind = name.partition(".")
    if f".{kind}" == ABOUT and os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime <= now - IN_USE_S:
        if not any(
            os.access(stem + suffix, os.F_OK, dir_fd=fd, follow_symlinks=False) for suffix in (BUNDLE, FETCHING)
        ):
            unlink_if_there(name, fd)
    elif f".{kind}" == FETCHING:
        with closing(os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)) as file:
            status = os.fstat(file)
            is_useless = status.st_size == 0 or status.st_mtime <= now - ABANDONED_S
            if is_useless and files.try_flock(file) and is_at(file, name, fd):
                unlink_if_there(name, fd)


def uses(bundles: str, store: str) -> list[tuple[Namespace, str, float]]:
    """Return the last use of each copy whose place in the store is known, as `gc.record_uses` takes it.

    It is now, of a copy that a job has mounted.
    """
    now = time.time()
    with suppress(FileNotFoundError), opened_dir(bundles) as fd:
        return [
            (copy.where._replace(store=store), copy.sha256, now if copy.is_mounted else copy.used)
            for copy in _copies(fd, BUNDLE)
            if copy.where.scope
        ]
    return []


def _copies(fd: int, suffix: str) -> list[_Kept]:
    from warmstart.host import loops

    mounted: frozenset[tuple[int, int]] = frozenset()
    with suppress(OSError):  # no /sys
        mounted = loops.backing_files()  # mounted anywhere: of a copy that was unmounted here, jobs have it
    found = []
    for name in os.listdir(fd):
        if name.endswith(suffix):
            with suppress(FileNotFoundError):
                status, sha256 = os.stat(name, dir_fd=fd, follow_symlinks=False), name.removesuffix(suffix)
                # Of a beginning all is allocated that the bundle will need.
                size = max(status.st_size, status.st_blocks * 512 * (suffix == FETCHING)) + _size(fd, sha256 + ABOUT)
                is_mounted = (status.st_dev, status.st_ino) in mounted
                found.append(_Kept(status.st_mtime, size, sha256, is_mounted, _place(fd, sha256)))
    return found


def _size(fd: int, name: str) -> int:
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
    return 0


def _last_use(fd: int, sha256: str) -> float:
    """Return when a copy was used, 0.0 if it is gone."""
    with suppress(FileNotFoundError):
        return os.stat(sha256 + BUNDLE, dir_fd=fd, follow_symlinks=False).st_mtime
    return 0.0


def _place(fd: int, sha256: str) -> Namespace:
    """Return where in a store, whose path is left out, a copy is from; all is "" if that is not known."""
    with suppress(OSError, ValueError, TypeError), closing(open_regular(sha256 + ABOUT, fd)) as about:
        scope, profile, namespace = wire.parse(os.read(about, _LONGEST_PLACE).partition(b"\n")[0])
        return Namespace("", str(scope), str(profile), str(namespace))
    return Namespace("", "", "", "")


def bound_mounts(dir_fd: int, bundles: str, most: int) -> None:
    """Unmount up to `most` copies beyond the bounds; those stay that a prolog has open, to show them to its job."""
    names = os.listdir(dir_fd)
    if len(names) <= MOST_OF_SCOPE:
        return
    with suppress(OSError), opened_dir(bundles) as fd:  # maintenance unmounts, too
        copies = sorted((_last_use(fd, sha256), sha256) for sha256 in names)
        scopes = [_place(fd, sha256).scope for _, sha256 in copies]
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
