"""Checks of the store: owner, writers, and features of its file system (docs/threats.md, row 6).

Every access runs as the store's owner, in a worker, with a deadline of its own. Locks are tried between two processes
of this node; testing them between nodes would take two nodes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from warmstart.entry.doctor import probe
from warmstart.entry.doctor.finding import (
    ADVICE,
    AS_ROOT,
    CRITICAL,
    OK,
    OVERDUE_INTERVALS,
    UNKNOWN,
    WRONG,
    Finding,
)
from warmstart.entry.maintenance.session import STORE_INTERVAL_S
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import ROOT
from warmstart.host.worker import Worker
from warmstart.policy.compiled import Policy
from warmstart.store import maintenance

DEADLINE = 10.0  # seconds for each probe; a healthy file system needs milliseconds
NOBODY = (65534, 4294967294)
MOST_AHEAD = 5.0  # seconds; a tag's time to live and leases compare clocks

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Run(Protocol):
    """Runs a function of `probe` in a worker of some identity, with a deadline."""

    def __call__(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Return the function's result. Raises `WorkerSilent` if the deadline passes."""


class Store(NamedTuple):
    """The store, the workers that probe it, and the probe's directory in it."""

    policy: Policy
    run: Run  # as the store's owner
    run_second: Run  # as the store's owner, in a second process
    run_root: Run | None  # as root; None if this process is not root
    directory: str  # "" if it could not be made
    no_directory: str  # why it could not be made

    @property
    def path(self) -> str:
        """The policy's `paths.store`."""
        return self.policy.paths.store


@contextmanager
def opened(policy: Policy) -> Iterator[Store]:
    """Open the store for a `with` block, with a probe's directory that is removed at the end.

    Raises `WorkerSilent` if the store hangs.
    """
    owner = policy.store_user
    with Worker(owner) as first, Worker(owner) as second, Worker(ROOT) as root:
        run = _runner(first)
        directory, problem = "", ""
        try:
            directory = run(probe.make_directory, policy.paths.store, f"{os.uname().nodename}-{os.getpid()}")
        except OSError as error:
            problem = error.strerror or str(error)
        try:
            run_root = _runner(root) if os.geteuid() == 0 else None
            yield Store(policy, run, _runner(second), run_root, directory, problem)
        finally:
            if directory:
                with suppress(OSError, WarmstartError):
                    _runner(second)(probe.remove_directory, directory)


def _runner(worker: Worker) -> Run:
    def run(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return worker.run(after(DEADLINE), function, *args, **kwargs)

    return run


def reachable(store: Store) -> Iterator[Finding]:
    """Check that the store can be reached: if it is missing or hangs, every job starts cold, after a deadline."""
    try:
        store.run(probe.look, store.path)
    except OSError as error:
        change = f"mount it, or create it: install -d -o {store.policy.store_user.name} -m 755 {store.path}"
        yield Finding(WRONG, f"{store.path}: {error.strerror}, as {store.policy.store_user.name}", change)
        return
    yield Finding(OK, f"{store.policy.store_user.name} can read {store.path}")


def owner(store: Store) -> Iterator[Finding]:
    """Check that `store_user` owns the store."""
    user = store.policy.store_user
    seen = store.run(probe.look, store.path)
    change = f"chown {user.name} {store.path} on the file server; give {user.name} the same uid on every node"
    if seen.uid in NOBODY:
        found = f"{store.path} is owned by nobody (uid {seen.uid}): root made it and was squashed"
        yield Finding(CRITICAL, found, change)
    elif seen.uid != user.uid:
        yield Finding(WRONG, f"{store.path} is owned by uid {seen.uid}, not by {user.name} ({user.uid})", change)
    else:
        yield Finding(OK, f"{user.name} owns {store.path}")


def writers(store: Store) -> Iterator[Finding]:
    """Check who can write the store: they can run code in every job that reads it."""
    mode = store.run(probe.look, store.path).mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"{store.path} has mode {mode:04o}: others than its owner can put code into every job that reads it"
        yield Finding(CRITICAL, found, f"chmod go-w {store.path}, and check what was written there meanwhile")
    else:
        yield Finding(OK, f"only its owner can write {store.path}")


def parents(store: Store) -> Iterator[Finding]:
    """Check the directories above the store: who can rename one can put another store in its place."""
    bad = []
    path = os.path.dirname(store.path)
    while path != "/":
        seen = store.run(probe.whose, path)
        if seen.uid not in (0, store.policy.store_user.uid):
            bad.append(f"{path} is owned by uid {seen.uid}")
        elif seen.mode & (stat.S_IWGRP | stat.S_IWOTH) and not seen.mode & stat.S_ISVTX:
            bad.append(f"{path} has mode {seen.mode:04o}")
        path = os.path.dirname(path)
    if bad:
        change = (
            "make root the owner of the directories above the store, and let only root write (or set the sticky bit)"
        )
        yield Finding(CRITICAL, f"others can put another store in its place: {', '.join(bad)}", change)
    else:
        yield Finding(OK, "nobody else can move the store")


def locks(store: Store) -> Iterator[Finding]:
    """Try flock(2) between two processes. Without it several nodes may import one image; the result is still valid."""
    if not store.directory:
        yield _untried(store)
        return
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
        yield _untried(store)
        return
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


def clock(store: Store) -> Iterator[Finding]:
    """Compare this node's clock with the store's: times to live, leases and grace periods depend on both."""
    if not store.directory:
        yield _untried(store)
        return
    ahead = store.run(probe.clock_ahead, store.directory)
    words = f"the store's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this node's"
    if abs(ahead) > MOST_AHEAD:
        yield Finding(WRONG, words, "synchronise both clocks (chrony, ntp)")
    else:
        yield Finding(OK, words if ahead else "the store's clock agrees with this node's")


def maintained(store: Store) -> Iterator[Finding]:
    """Check when the store's maintenance last succeeded, on any host: three intervals ago is overdue."""
    age = store.run(maintenance.last_maintained, store.path)
    since = "has never succeeded" if age is None else f"last succeeded {age / 3600:.1f} h ago"
    if age is None or age > OVERDUE_INTERVALS * STORE_INTERVAL_S:
        change = (
            "enable warmstart-maintain-store.timer on one host of the cluster and see its unit and its `step.failed`"
            " events; run `warmstart maintain --store`"
        )
        yield Finding(WRONG, f"the store's maintenance {since}", change)
    else:
        yield Finding(OK, f"the store's maintenance {since}")


def root(store: Store) -> Iterator[Finding]:
    """Check for root squash: without it, root on any node can put code into all jobs of the cluster."""
    if not store.directory:
        yield _untried(store)
    elif store.run_root is None:
        yield Finding(UNKNOWN, "only root can test root's access to the store", AS_ROOT)
    elif store.run_root(probe.can_list, store.directory):
        found = "root on this node has root access to the store, so root on any node can write what all jobs read"
        yield Finding(ADVICE, found, "export it with root_squash; warmstart needs no root access there")
    else:
        yield Finding(OK, "the store refuses root, and warmstart needs no root access there")


def space(store: Store) -> Iterator[Finding]:
    """Compare free space with `images.keep.floor`, below which imports fail with `store-full`."""
    seen, keep = store.run(probe.look, store.path), store.policy.images.keep
    free = 100 * seen.free / max(seen.size, 1)
    change = "run `warmstart images evict` and `warmstart cache gc`, or enlarge the file system"
    if free <= keep.floor:
        found = (
            f"{free:.1f}% of the store's file system is free; images.keep.floor is {keep.floor}%: nothing is imported"
        )
        yield Finding(WRONG, found, change)
    elif free < 100 - keep.high:
        found = (
            f"{free:.1f}% of the store's file system is free: above images.keep.high ({keep.high}%) images are evicted"
        )
        yield Finding(ADVICE, found, change)
    else:
        yield Finding(OK, f"{free:.1f}% of the store's file system is free")


def _untried(store: Store) -> Finding:
    return Finding(UNKNOWN, f"not tried: cannot make a directory in the store: {store.no_directory}")


CHECKS = {
    "store.reachable": reachable,
    "store.owner": owner,
    "store.writers": writers,
    "store.parents": parents,
    "store.locks": locks,
    "store.links": links,
    "store.clock": clock,
    "store.maintenance": maintained,
    "store.root": root,
    "store.space": space,
}
