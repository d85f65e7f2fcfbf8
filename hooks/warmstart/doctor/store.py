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

from warmstart.doctor import probe
from warmstart.doctor.finding import (
    ADVICE,
    AS_ROOT,
    CRITICAL,
    OK,
    OVERDUE_INTERVALS,
    UNKNOWN,
    WRONG,
    Finding,
)
from warmstart.doctor.units import scheduled
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import ROOT
from warmstart.host.namespaces import Mount, mount_of
from warmstart.host.worker import Worker
from warmstart.images.store import eviction
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.units import format_duration
from warmstart.session import STORE_INTERVAL_S, known_store_id
from warmstart.store import maintenance
from warmstart.store.client import rooms_of

DEADLINE = 10.0  # seconds for each probe; a healthy file system needs milliseconds
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs", "ramfs")
NOBODY = (65534, 4294967294)
SILENT_S = 1800.0  # a copy of a large image into the store reports nothing meanwhile
MOST_NAMED = 3  # places in a finding
MOST_AHEAD = 5.0  # seconds; a tag's time to live and leases compare clocks

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RunAs(NamedTuple):
    """Runs functions of `probe` in a worker of some identity, each with a deadline."""

    worker: Worker

    def __call__(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Return the function's result. Raises `WorkerSilent` if the deadline passes."""
        return self.worker.run(after(DEADLINE), function, *args, **kwargs)


class Store(NamedTuple):
    """The store, the workers that probe it, and the probe's directory in it."""

    policy: Policy
    run: RunAs  # as the store's owner
    run_second: RunAs  # as the store's owner, in a second process
    run_root: RunAs | None  # as root; None if this process is not root
    directory: str  # "" if it could not be made
    no_directory: str  # why it could not be made
    code: int = 0  # the errno of that
    mount: Mount = Mount("unknown", "")
    known_id: str = ""  # the store's id that this node remembers; "" if it remembers none
    installation: Installation = Installation("/usr")

    @property
    def path(self) -> str:
        """The policy's `paths.store`."""
        return self.policy.paths.store


@contextmanager
def opened(policy: Policy, installation: Installation) -> Iterator[Store]:
    """Open the store for a `with` block, with a probe's directory that is removed at the end.

    Raises `WorkerSilent` if the store hangs.
    """
    with two_processes(policy) as (run, run_second), Worker(ROOT, _subject(policy), rooms=(probe.__name__,)) as root:
        directory, problem, code = "", "", 0
        try:
            directory = run(probe.make_directory, policy.paths.store, f"{os.uname().nodename}-{os.getpid()}")
        except OSError as error:
            problem, code = error.strerror or str(error), error.errno or 0
        try:
            run_root = RunAs(root) if os.geteuid() == 0 else None
            mount = mount_of(policy.paths.store)
            known_id = known_store_id(installation.store_id)
            yield Store(policy, run, run_second, run_root, directory, problem, code, mount, known_id, installation)
        finally:
            if directory:
                with suppress(OSError, WarmstartError):
                    run_second(probe.remove_directory, directory)


@contextmanager
def two_processes(policy: Policy) -> Iterator[tuple[RunAs, RunAs]]:
    """Start two processes as the store's owner for a `with` block."""
    owner, what = policy.store_user, _subject(policy)
    with Worker(owner, what, rooms=(*rooms_of(policy), probe.__name__)) as first, first.another() as second:
        yield RunAs(first), RunAs(second)


def _subject(policy: Policy) -> str:
    return f"the store {policy.paths.store}"


def reachable(store: Store) -> Iterator[Finding]:
    """Check that the store can be reached: if it is missing or hangs, every job starts cold, after a deadline."""
    try:
        store.run(probe.look, store.path)
    except OSError as error:
        user = store.policy.store_user
        change = f"mount it; on its file server, for a new one: `install -d -o {user.uid} -m 755 {store.path}`"
        if error.errno == errno.EACCES:
            change = f"let {user.name} into the directories above it (chmod o+x), and into it (the check store.owner)"
        yield Finding(CRITICAL, f"{store.path}: {error.strerror}, as {user.name}", change)
        return
    yield Finding(OK, f"{store.policy.store_user.name} can read {store.path}")


def mounted(store: Store) -> Iterator[Finding]:
    """Check that a shared file system is mounted there: into a local directory hooks would publish for nobody."""
    kind, point = store.mount
    if _is_unmounted(store):
        found = f"{store.path} is an empty directory on {kind} ({point}): the store is not mounted"
        yield Finding(CRITICAL, found, f"mount it (findmnt --fstab {store.path}; in a pod, its volumes)")
    elif kind in LOCAL:
        found = f"{store.path} is on {kind} ({point}), a local file system: no other node sees what jobs publish"
        yield Finding(ADVICE, found, "mount a shared file system there, unless this is the only node")
    else:
        yield Finding(OK, f"the store is on {kind} ({point})")


def identity(store: Store) -> Iterator[Finding]:
    """Compare the store's id with the one that this node remembers: another directory may be in its place."""
    store_id = store.run(maintenance.identity, store.path)
    forget = f"mount the right file system; if the store was made anew: `rm {store.installation.store_id}`"
    if store.known_id and not store_id:
        words = f"{store.path} has no id, but the store that this node has used has ({store.known_id[:8]})"
        yield Finding(CRITICAL, f"{words}: something else is in its place", forget)
    elif store.known_id and store_id != store.known_id:
        words = f"the store in {store.path} is {store_id[:8]}, not {store.known_id[:8]} that this node has used"
        yield Finding(CRITICAL, words, forget)
    elif not store_id and not store.run(probe.look, store.path).inside:
        yield Finding(OK, "the store is new; its first maintenance gives it an id")
    elif not store_id:
        yield Finding(ADVICE, "the store has no id yet", "run `warmstart maintain --store` once")
    else:
        yield Finding(
            OK, f"the store is {store_id[:8]}" + ("" if store.known_id else "; `warmstart maintain` remembers it")
        )


def writable(store: Store) -> Iterator[Finding]:
    """Make a directory in the store: in a store that takes no files nothing is imported, and harvests pile up."""
    found = f"{store.policy.store_user.name} cannot make files in {store.path}: {store.no_directory}"
    if store.directory:
        yield Finding(OK, f"{store.policy.store_user.name} can make files in the store")
    elif store.code == errno.EROFS:
        yield Finding(CRITICAL, found, "see why it is read-only (dmesg, the file server); mount -o remount,rw")
    elif store.code in (errno.ENOSPC, errno.EDQUOT):
        yield Finding(CRITICAL, found, "free space or inodes, or raise the quota of its owner")
    elif not _is_unmounted(store):
        yield Finding(CRITICAL, found, "check owner and mode, and that the export is writable for this node")


def owner(store: Store) -> Iterator[Finding]:
    """Check that `store_user` owns the store."""
    user = store.policy.store_user
    seen = store.run(probe.look, store.path)
    if _is_unmounted(store):
        return  # whose directory is below the mount point does not matter
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
    else:
        yield Finding(OK, f"{user.name} owns {store.path}")


def writers(store: Store) -> Iterator[Finding]:
    """Check who can write the store: they can run code in every job that reads it."""
    owner = store.policy.store_user
    if store.run(probe.look, store.path).uid != owner.uid:
        return  # `owner` says what to do; all that is in it would be named here, to be removed
    weak = store.run(probe.writable_by_others, store.path, owner.uid)
    if weak.places:
        first = "; ".join(map(str, weak.places[:MOST_NAMED]))
        found = f"others than {owner.name} can put code into every job that reads {store.path}: {first}"
        more = len(weak.places) - MOST_NAMED
        found += f"; and {more} more" if more > 0 else ""
        change = (
            f"on the file server: remove what is not its owner's (find {store.path} ! -uid {owner.uid} ! -uid 0), then "
            f"`chmod -R go-w {store.path}`, and check what was written there meanwhile"
        )
        yield Finding(CRITICAL, found, change)
    elif not weak.is_all:
        yield Finding(OK, f"only its owner can write the first {weak.directories} directories of {store.path}")
    else:
        yield Finding(OK, f"only its owner can write {store.path}")


def parents(store: Store) -> Iterator[Finding]:
    """Check what the path of the store leads through: who can rename a directory there can put another store there."""
    owners = (0, store.policy.store_user.uid)
    bad = probe.unsafe(store.run(probe.above, store.path), owners)
    if bad:
        found = f"others can put another store in its place: {', '.join(map(str, bad))}"
        yield Finding(CRITICAL, found, probe.closing(bad, owners))
    else:
        yield Finding(OK, "nobody else can move the store")


def locks(store: Store) -> Iterator[Finding]:
    """Try flock(2) between two processes. Without it several nodes may import one image; the result is still valid."""
    if not store.directory:
        return  # `writable` says why
    try:
        store.run(probe.hold_lock, store.directory)
        excluded = not store.run_second(probe.lock_is_free, store.directory)
    except OSError as error:
        change = "mount the file system with locks (NFS: local_lock=none, no nolock; Lustre: flock)"
        yield Finding(WRONG, f"flock(2) in the store fails: {error.strerror}", change)
        return
    if excluded:
        yield Finding(OK, "flock(2) excludes another process of this node (not tested between nodes)")
    else:
        change = "mount the file system with locks; until then images may be imported more than once"
        yield Finding(WRONG, "two processes held one flock(2) lock in the store at the same time", change)


def links(store: Store) -> Iterator[Finding]:
    """Try link(2), which publishing uses because it never replaces a file."""
    if not store.directory:
        return  # `writable` says why
    try:
        count = store.run(probe.link, store.directory)
    except OSError as error:
        yield Finding(WRONG, f"link(2) in the store fails: {error.strerror}", "use a file system with hard links")
        return
    if count == 2:
        yield Finding(OK, "link(2) works in the store")
    else:
        found = f"a file in the store with two names has a link count of {count}"
        yield Finding(WRONG, found, "use a file system with hard links")


def reports(store: Store) -> Iterator[Finding]:
    """Try an access control list, by which a user alone reads what the store has of that user's jobs (decision 62)."""
    if not store.directory or store.policy.maintenance.reports is None:
        return
    try:
        store.run(probe.show_a_user, store.directory)
    except OSError as error:
        found = f"the store keeps no access control lists ({error.strerror}): users learn nothing of jobs that are over"
        change = "mount it with POSIX ACLs, which NFSv4 does not have; or set maintenance.reports: null"
        yield Finding(ADVICE, found, change)
        return
    yield Finding(OK, "the store keeps access control lists")


def clock(store: Store) -> Iterator[Finding]:
    """Compare this node's clock with the store's: times to live, leases and grace periods depend on both."""
    if not store.directory:
        return  # `writable` says why
    ahead = store.run(probe.clock_ahead, store.directory)
    words = f"the store's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this node's"
    if abs(ahead) > MOST_AHEAD:
        yield Finding(WRONG, words, "synchronise both clocks (chrony, ntp)")
    else:
        yield Finding(OK, words if ahead else "the store's clock agrees with this node's")


def maintained(store: Store) -> Iterator[Finding]:
    """Check when the store's maintenance last succeeded, on any host: three intervals ago is overdue."""
    age = store.run(maintenance.last_maintained, store.path)
    since = "has never succeeded" if age is None else f"last succeeded {format_duration(age)} ago"
    nightly = scheduled(store.installation, "warmstart-store.target", "run `warmstart maintain --store` each night")
    nightly = f"on one host of the cluster: {nightly}"
    if (store.run(probe.in_use_for, store.path) if age is None else age) > OVERDUE_INTERVALS * STORE_INTERVAL_S:
        fails = "`warmstart audit --outcome failed` says what fails"
        change = f"{nightly}; {fails}; `warmstart maintain --store` does it now"
        yield Finding(WRONG, f"the store's maintenance {since}", change)
    elif age is None:
        yield Finding(ADVICE, "the store's maintenance has not succeeded yet", nightly)
    else:
        yield Finding(OK, f"the store's maintenance {since}")


def root(store: Store) -> Iterator[Finding]:
    """Check for root squash: without it, root on any node can put code into all jobs of the cluster."""
    if not store.directory:
        return  # `writable` says why
    if store.run_root is None:
        yield Finding(UNKNOWN, "only root can test root's access to the store", AS_ROOT)
    elif store.run_root(probe.can_list, store.directory):
        found = "root on this node has root access to the store, so root on any node can write what all jobs read"
        yield Finding(ADVICE, found, "export it with root_squash; warmstart needs no root access there")
    else:
        yield Finding(OK, "the store refuses root, and warmstart needs no root access there")


def space(store: Store) -> Iterator[Finding]:
    """Compare free space with what images leave, and with what no import may use."""
    seen, keep = store.run(probe.look, store.path), store.policy.images.keep
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
    else:
        yield Finding(OK, f"{free:.1f}% of the store's file system is free")


def _is_unmounted(store: Store) -> bool:
    """Return whether the store is an empty local directory of another user: a mount point, as it seems."""
    seen = store.run(probe.look, store.path)
    return store.mount.kind in LOCAL and seen.uid != store.policy.store_user.uid and not seen.inside


CHECKS = {
    "store.reachable": reachable,
    "store.mount": mounted,
    "store.identity": identity,
    "store.writable": writable,
    "store.owner": owner,
    "store.writers": writers,
    "store.parents": parents,
    "store.locks": locks,
    "store.links": links,
    "store.reports": reports,
    "store.clock": clock,
    "store.maintenance": maintained,
    "store.root": root,
    "store.space": space,
}
