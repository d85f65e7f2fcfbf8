"""Checks of the store: owner, writers, and features of its file system (docs/threats.md, row 6).

Every access runs as the store's owner, in a worker, with a deadline of its own. Locks are tried between two processes
of this node; testing them between nodes would take two nodes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, ParamSpec, TypeVar

from warmstart.caches.store import gc
from warmstart.doctor import permissions, probe
from warmstart.doctor.finding import (
    ADVICE,
    AS_ROOT,
    CRITICAL,
    OVERDUE_INTERVALS,
    UNKNOWN,
    WRONG,
    Check,
    Finding,
    check,
)
from warmstart.doctor.permissions import Place
from warmstart.doctor.units import scheduled
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import ROOT
from warmstart.host.namespaces import Mount, mount_of
from warmstart.host.worker import Worker
from warmstart.images.store import eviction
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.policy.units import format_duration
from warmstart.session import STORE_INTERVAL_S

DEADLINE = 10.0  # seconds for each probe; a healthy file system needs milliseconds
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs", "ramfs")
NOBODY = (65534, 4294967294)
FILES_OF_EACH = 20  # looked at in each directory of the store
MOST_AHEAD = 5.0  # seconds; a tag's time to live and leases compare clocks

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RunAs(NamedTuple):
    """Runs functions of `probe` as some identity, each with a deadline."""

    worker: Worker

    def __call__(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Return the function's result. Raises `WorkerSilent` if the deadline passes."""
        return self.worker.run(after(DEADLINE), function, *args, **kwargs)

    @contextmanager
    def holding(self, function: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[None]:
        """Have for a `with` what a function holds until its process ends."""
        with self.worker.begin(after(DEADLINE), function, *args, **kwargs) as answer:
            answer(after(DEADLINE))
            yield


class Store(NamedTuple):
    """The store, who probes it, and the probe's directory in it."""

    policy: Policy
    installation: Installation
    run: RunAs  # as the store's owner
    run_root: RunAs | None  # as root; None if this process is not root
    mount: Mount
    seen: probe.Look | None  # None if the owner cannot read it
    directory: str  # "" if it could not be made
    code: int = 0  # the errno of what failed of that

    @property
    def path(self) -> str:
        """The policy's `paths.store`."""
        return self.policy.paths.store

    @property
    def is_unmounted(self) -> bool:
        """Whether it is an empty local directory of another user: a mount point, as it seems."""
        seen = self.seen
        return bool(seen and self.mount.kind in LOCAL and seen.uid != self.policy.store_user.uid and not seen.inside)


@contextmanager
def opened(policy: Policy, installation: Installation) -> Iterator[Store]:
    """Open the store for a `with` block, with a probe's directory that is removed at the end.

    Raises `WorkerSilent` if the store hangs.
    """
    path = policy.paths.store
    what = f"the store {path}"
    run, seen, directory, code = RunAs(Worker(policy.store_user, what)), None, "", 0
    try:
        seen = run(probe.look, path)
        directory = run(probe.make_directory, path, f"{os.uname().nodename}-{os.getpid()}")
    except OSError as error:
        code = error.errno or 0
    try:
        run_root = RunAs(Worker(ROOT, what)) if os.geteuid() == 0 else None
        yield Store(policy, installation, run, run_root, mount_of(path), seen, directory, code)
    finally:
        if directory:
            with suppress(OSError, WarmstartError):
                run(probe.remove_directory, directory)


@check("store.mount", critical=True)
def mounted(store: Store) -> Iterator[Finding]:
    """Check that a shared file system is mounted there which its owner can read and write: else jobs start cold."""
    user, problem, (kind, point) = store.policy.store_user, os.strerror(store.code), store.mount
    if store.seen is None:
        change = f"mount it; on its file server, for a new one: `install -d -o {user.uid} -m 755 {store.path}`"
        if store.code == errno.EACCES:
            change = f"let {user.name} into the directories above it (chmod o+x), and into it (ls -ld {store.path})"
        yield Finding(CRITICAL, f"{store.path}: {problem}, as {user.name}", change)
        return
    if store.is_unmounted:
        # Into a local directory hooks would publish for nobody.
        found = f"{store.path} is an empty directory on {kind} ({point}): the store is not mounted"
        yield Finding(CRITICAL, found, f"mount it (findmnt --fstab {store.path}; in a pod, its volumes)")
        return
    if kind in LOCAL:
        found = f"{store.path} is on {kind} ({point}), a local file system: no other node sees what jobs publish"
        yield Finding(ADVICE, found, "mount a shared file system there, unless this is the only node")
    if not store.directory:
        change = "check owner and mode, and that the export is writable for this node"
        if store.code == errno.EROFS:
            change = "see why it is read-only (dmesg, the file server); mount -o remount,rw"
        elif store.code in (errno.ENOSPC, errno.EDQUOT):
            change = "free space or inodes, or raise the quota of its owner"
        yield Finding(CRITICAL, f"{user.name} cannot make files in {store.path}: {problem}", change)


@check("store.owner", critical=True)
def owner(store: Store) -> Iterator[Finding]:
    """Check that `store_user` owns the store."""
    user, seen = store.policy.store_user, _seen(store)
    change = f"on the file server: `chown {user.uid} {store.path}`"
    if seen.uid in NOBODY:
        found = f"{store.path} is owned by nobody (uid {seen.uid}): root made it and was squashed"
        yield Finding(CRITICAL, found, change)
    elif seen.uid != user.uid:
        if seen.inside and user.uid not in seen.inside:
            change = (
                f"if other nodes use it so, give {user.name} the uid {seen.uid} here, too, and touch "
                f"{store.installation.policy}; else, on the file server: `chown -R {user.uid} {store.path}`"
            )
        found = f"{store.path} is owned by uid {seen.uid}, not by {user.name} ({user.uid})"
        yield Finding(CRITICAL, found, change)


@check("store.permissions", critical=True)
def writers(store: Store) -> Iterator[Finding]:
    """Check who can write the store, or put another one in its place: they can run code in every job that reads it."""
    user, path = store.policy.store_user, store.path
    is_owned = _seen(store).uid == user.uid  # else store.owner says what to do
    mend = (
        f"on the file server: remove what is not its owner's (find {path} ! -uid {user.uid} ! -uid 0), then "
        f"`chmod -R go-w {path}`, and check what was written there meanwhile"
    )
    place = Place(
        f"put code into every job that reads {path}",
        CRITICAL,
        [path] if is_owned else [os.path.dirname(path)],
        owners=(0, user.uid),
        below=FILES_OF_EACH if is_owned else 0,
        sticky=not is_owned,
        mend=mend,
    )
    yield from permissions.told(place, store.run(permissions.look, place), user.name)


@check("store.features")
def features(store: Store) -> Iterator[Finding]:
    """Try what hooks ask of the store's file system: flock(2), link(2), access control lists."""
    yield from _locks(store)
    yield from _links(store)
    if store.policy.maintenance.reports is not None:
        yield from _lists(store)


def _locks(store: Store) -> Iterator[Finding]:
    """Try locks between two processes of this node: without them several nodes may import one image."""
    try:
        with store.run.holding(probe.hold_lock, store.directory):
            excluded = not store.run(probe.lock_is_free, store.directory)
    except OSError as error:
        change = "mount the file system with locks (NFS: local_lock=none, no nolock; Lustre: flock)"
        yield Finding(WRONG, f"flock(2) in the store fails: {error.strerror}", change)
        return
    if not excluded:
        change = "mount the file system with locks; until then images may be imported more than once"
        yield Finding(WRONG, "two processes held one flock(2) lock in the store at the same time", change)


def _links(store: Store) -> Iterator[Finding]:
    """Try link(2), by which hooks publish, because it never replaces a file."""
    change = "use a file system with hard links"
    try:
        count = store.run(probe.link, store.directory)
    except OSError as error:
        yield Finding(WRONG, f"link(2) in the store fails: {error.strerror}", change)
        return
    if count != 2:
        yield Finding(WRONG, f"a file in the store with two names has a link count of {count}", change)


def _lists(store: Store) -> Iterator[Finding]:
    """Try an access control list, by which a user alone reads what the store has of that user's jobs (decision 62)."""
    try:
        store.run(probe.show_a_user, store.directory)
    except OSError as error:
        found = f"the store keeps no access control lists ({error.strerror}): users learn nothing of jobs that are over"
        change = "mount it with POSIX ACLs, which NFSv4 does not have; or set maintenance.reports: null"
        yield Finding(ADVICE, found, change)


@check("store.clock")
def clock(store: Store) -> Iterator[Finding]:
    """Compare this node's clock with the store's: times to live, leases and grace periods depend on both."""
    ahead = store.run(probe.clock_ahead, store.directory)
    words = f"the store's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this node's"
    if abs(ahead) > MOST_AHEAD:
        yield Finding(WRONG, words, "synchronise both clocks (chrony, ntp)")


@check("store.maintenance")
def maintained(store: Store) -> Iterator[Finding]:
    """Check when the store's maintenance last succeeded, on any host: three intervals ago is overdue."""
    age = store.run(gc.last_maintained, store.path)
    since = "has never succeeded" if age is None else f"last succeeded {format_duration(age)} ago"
    nightly = scheduled(store.installation, "warmstart-store.target", "run `warmstart maintain --store` each night")
    nightly = f"on one host of the cluster: {nightly}"
    if (store.run(probe.in_use_for, store.path) if age is None else age) > OVERDUE_INTERVALS * STORE_INTERVAL_S:
        fails = "`warmstart audit --outcome failed` says what fails"
        change = f"{nightly}; {fails}; `warmstart maintain --store` does it now"
        yield Finding(WRONG, f"the store's maintenance {since}", change)
    elif age is None:
        yield Finding(ADVICE, "the store's maintenance has not succeeded yet", nightly)


@check("store.root")
def root(store: Store) -> Iterator[Finding]:
    """Check for root squash: without it, root on any node can put code into all jobs of the cluster."""
    if store.run_root is None:
        yield Finding(UNKNOWN, "only root can test root's access to the store", AS_ROOT)
    elif store.run_root(probe.can_list, store.directory):
        found = "root on this node has root access to the store, so root on any node can write what all jobs read"
        yield Finding(ADVICE, found, "export it with root_squash; warmstart needs no root access there")


@check("store.space")
def space(store: Store) -> Iterator[Finding]:
    """Compare free space with what images leave, and with what no import may use."""
    seen, keep = _seen(store), store.policy.images.keep
    free = 100 * seen.free / max(seen.size, 1)
    change = "run `warmstart maintain --store`, or enlarge the file system"
    if free <= eviction.FLOOR_PERCENT:
        found = (
            f"{free:.1f}% of the store's file system is free, {eviction.FLOOR_PERCENT}% or less: nothing is imported"
        )
        yield Finding(WRONG, found, change)
    elif free < 100 - keep.high:
        found = (
            f"{free:.1f}% of the store's file system is free: above images.keep.high ({keep.high}%) images are evicted"
        )
        yield Finding(ADVICE, found, change)


def _seen(store: Store) -> probe.Look:
    assert store.seen is not None
    return store.seen


CHECKS = (mounted, owner, writers, features, clock, maintained, root, space)


def possible(store: Store) -> tuple[Check[Store], ...]:
    """Return the checks that can be made of a store. The first one says why there are no others, or no trials in it."""
    if store.seen is None or store.is_unmounted:
        return CHECKS[:1]
    return CHECKS if store.directory else tuple(each for each in CHECKS if each not in (features, clock, root))
