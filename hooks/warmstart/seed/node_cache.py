"""This node's copies of bundles: fetched once, whoever of its jobs needs them first (design, Seed).

`<node>/bundles/` is root's, 0700; a copy is named by its SHA-256, so one that is there is the one that is
meant. Its mode is 0444: a process that was handed the open file may open it again, whatever the directory.

A fetch writes into `<sha256>.fetching`, which is its own lock: whoever holds a `flock` on it is at work, and
the kernel drops the lock with the process. What a dead one left is overwritten by the next. Hot path.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.host.files import ensure_dir, is_at, open_regular, opened_dir, read_small, replace_file
from warmstart.host.worker import WorkerSilent
from warmstart.store import bundles
from warmstart.store.bundles import Offer
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace

_FILES = ".files.json"
_ORIGIN = ".origin.json"  # where in the store it is from: scope, profile, namespace, bundle
_LARGEST_FILES = 64 << 20


class FetchOverBudget(ResourceError):
    """A bundle is not on the node yet and would take more bytes or time than a prolog may spend."""

    code = "fetch-over-budget"
    template = "bundle {bundle}: {problem}"
    hint = "raise seed.max_fetch or seed.fetch_budget in the policy if this is usual"


class Copy(NamedTuple):
    """A bundle on this node."""

    directory: str
    sha256: str
    fetched: int  # bytes that came from the store for it just now; 0 when it was there

    @property
    def path(self) -> str:
        """The squashfs file."""
        return os.path.join(self.directory, _name(self.sha256))

    def files(self, offer: Offer) -> dict[str, dict[str, int]]:
        """Return what the bundle holds: entry → path → mtime in nanoseconds.

        `BundleDamaged` where the offer, made of the index, names an entry that the bundle's manifest does not.
        """
        with opened_dir(self.directory) as fd:
            files: dict[str, dict[str, int]] = json.loads(read_small(self.sha256 + _FILES, _LARGEST_FILES, fd))
        if not files.keys() >= set(offer.entries):
            raise bundles.BundleDamaged(bundle=offer.bundle, problem="index and manifest disagree")
        return files


def local_copy(
    directory: str, where: Namespace, offer: Offer, *, store: StoreClient, most_bytes: int, deadline: Deadline
) -> Copy:
    """Return this node's copy of an offered bundle, fetched from the store where it lacks.

    `where` has the scope of the offer. `FetchOverBudget` where the fetch would take more than `most_bytes` or
    is not done at the deadline; the errors of `bundles.fetch`; `OSError` is the node's disk.
    """
    ensure_dir(directory, 0o700)
    with opened_dir(directory) as dir_fd:
        if _is_there(dir_fd, offer):
            return Copy(directory, offer.sha256, 0)
        if offer.size > most_bytes:
            problem = f"it has {offer.size} bytes, {most_bytes} are left of the budget"
            raise FetchOverBudget(bundle=offer.bundle, problem=problem)
        fd = _claim(dir_fd, offer, deadline)
        try:
            if _is_there(dir_fd, offer):
                return Copy(directory, offer.sha256, 0)
            files = _fetch(fd, where, offer, store, deadline)
            replace_file(dir_fd, offer.sha256 + _ORIGIN, json.dumps([*where[1:], offer.bundle]).encode(), 0o600)
            _finish(dir_fd, fd, offer.sha256, files)
        finally:
            os.close(fd)
    return Copy(directory, offer.sha256, offer.size)


def _name(sha256: str) -> str:
    return f"{sha256}.sqsh"


def _is_there(dir_fd: int, offer: Offer) -> bool:
    try:
        fd = open_regular(_name(offer.sha256), dir_fd)
    except FileNotFoundError:
        return False
    try:
        os.utime(fd)  # its last use, for `prune`
        return os.fstat(fd).st_size == offer.size
    finally:
        os.close(fd)


def _claim(dir_fd: int, offer: Offer, deadline: Deadline) -> int:
    """Return the locked, empty file to fetch into; another's fetch is waited for."""
    temp = f"{offer.sha256}.fetching"
    while True:
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        try:
            if not files.take(fd, deadline):
                problem = "another job of this node was still fetching it at the deadline"
                raise FetchOverBudget(bundle=offer.bundle, problem=problem)
            if is_at(fd, temp, dir_fd):
                os.ftruncate(fd, 0)
                return fd
            if _is_there(dir_fd, offer):  # whoever had the lock has finished
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _fetch(
    fd: int, where: Namespace, offer: Offer, store: StoreClient, deadline: Deadline
) -> dict[str, dict[str, int]]:
    """Fill `fd` from the store; return the files of the bundle's entries."""
    try:
        return store.fetch(where, offer.bundle, offer.sha256, offer.size, deadline, into=fd)
    except WorkerSilent as error:
        if not deadline.expired():
            raise
        raise FetchOverBudget(bundle=offer.bundle, problem="it was not fetched at the deadline") from error


def _finish(dir_fd: int, fd: int, sha256: str, files: dict[str, dict[str, int]]) -> None:
    """Give what was fetched its name, the list of its files first."""
    replace_file(dir_fd, sha256 + _FILES, json.dumps(files).encode(), 0o600)
    os.fchmod(fd, 0o444)
    os.fsync(fd)
    os.rename(f"{sha256}.fetching", _name(sha256), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.fsync(dir_fd)
