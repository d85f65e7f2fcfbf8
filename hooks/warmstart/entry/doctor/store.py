"""The store: whose it is, who else can write it, and what its file system can do (docs/threats.md, row 6).

Everything is read as the store's owner, in a worker, with a deadline for each question. Locks are tried
between two processes of this node; whether they hold between nodes only two nodes can tell.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from warmstart.entry.doctor import probe
from warmstart.entry.doctor.finding import ADVICE, AS_ROOT, CRITICAL, OK, UNKNOWN, WRONG, Finding
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import ROOT
from warmstart.host.worker import Worker
from warmstart.policy.compiled import Policy

DEADLINE = 10.0  # seconds for each question; a healthy file system needs milliseconds
NOBODY = (65534, 4294967294)
MOST_AHEAD = 5.0  # seconds; tags' times to live and leases compare clocks

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Ask(Protocol):
    """Runs a function of `probe` in a process with another identity, with a deadline."""

    def __call__(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Return what it returns."""


class Store(NamedTuple):
    """The store, the processes that look at it, and the probe's directory in it or why there is none."""

    policy: Policy
    ask: Ask  # as the store's owner
    ask_other: Ask  # as the owner, in another process
    ask_root: Ask | None  # None: we are not root
    directory: str
    no_directory: str

    @property
    def path(self) -> str:
        """The policy's `paths.store`."""
        return self.policy.paths.store


@contextmanager
def opened(policy: Policy) -> Iterator[Store]:
    """Give the store with a probe's directory, which is removed at the end; raises `WorkerSilent` if it hangs."""
    owner = policy.store_user
    with Worker(owner) as first, Worker(owner) as second, Worker(ROOT) as root:
        ask = _asker(first)
        directory, problem = "", ""
        try:
            directory = ask(probe.make_directory, policy.paths.store, f"{os.uname().nodename}-{os.getpid()}")
        except OSError as error:
            problem = error.strerror or str(error)
        try:
            asks_root = _asker(root) if os.geteuid() == 0 else None
            yield Store(policy, ask, _asker(second), asks_root, directory, problem)
        finally:
            if directory:
                with suppress(OSError, WarmstartError):
                    _asker(second)(probe.remove_directory, directory)


def _asker(worker: Worker) -> Ask:
    def ask(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return worker.run(after(DEADLINE), function, *args, **kwargs)

    return ask


def reachable(store: Store) -> Iterator[Finding]:
    """Ask the store: one that is missing or hangs makes every job start cold, each after a deadline."""
    try:
        store.ask(probe.look, store.path)
    except OSError as error:
        change = f"mount it, or make it: install -d -o {store.policy.store_user.name} -m 755 {store.path}"
        yield Finding(WRONG, f"{store.path}: {error.strerror} for {store.policy.store_user.name}", change)
        return
    yield Finding(OK, f"{store.path} answers {store.policy.store_user.name}")


def owner(store: Store) -> Iterator[Finding]:
    """Compare the store's owner with the account that it should belong to."""
    user = store.policy.store_user
    seen = store.ask(probe.look, store.path)
    change = f"chown {user.name} {store.path} on the file server; give {user.name} the same uid on every node"
    if seen.uid in NOBODY:
        yield Finding(CRITICAL, f"{store.path} is owned by nobody (uid {seen.uid}): who made it was squashed", change)
    elif seen.uid != user.uid:
        yield Finding(WRONG, f"{store.path} is owned by uid {seen.uid}, not by {user.name} ({user.uid})", change)
    else:
        yield Finding(OK, f"{user.name} owns {store.path}")


def writers(store: Store) -> Iterator[Finding]:
    """Whoever writes the store owns all jobs that read it."""
    mode = store.ask(probe.look, store.path).mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"{store.path} has mode {mode:04o}: others than its owner can write it, and own every job that reads it"
        yield Finding(CRITICAL, found, f"chmod go-w {store.path}, and see what was put there meanwhile")
    else:
        yield Finding(OK, f"only its owner can write {store.path}")


def parents(store: Store) -> Iterator[Finding]:
    """Who can rename a directory above the store can put another store in its place."""
    bad = []
    path = os.path.dirname(store.path)
    while path != "/":
        seen = store.ask(probe.whose, path)
        if seen.uid not in (0, store.policy.store_user.uid):
            bad.append(f"{path} is owned by uid {seen.uid}")
        elif seen.mode & (stat.S_IWGRP | stat.S_IWOTH) and not seen.mode & stat.S_ISVTX:
            bad.append(f"{path} has mode {seen.mode:04o}")
        path = os.path.dirname(path)
    if bad:
        change = "let directories above the store be root's, writable for root alone (or sticky)"
        yield Finding(CRITICAL, f"others can put another store in its place: {', '.join(bad)}", change)
    else:
        yield Finding(OK, "nobody else can move the store")


def locks(store: Store) -> Iterator[Finding]:
    """flock(2) between two processes; without it several nodes may import one image (never a broken one)."""
    if not store.directory:
        yield _untried(store)
        return
    try:
        store.ask(probe.hold_lock, store.directory)
        excluded = not store.ask_other(probe.lock_is_free, store.directory)
    except OSError as error:
        change = "mount the file system with locks (NFS: local_lock=none, no nolock; Lustre: flock)"
        yield Finding(WRONG, f"flock(2) in the store fails: {error.strerror}", change)
        return
    if excluded:
        yield Finding(OK, "flock(2) excludes another process of this node (between nodes only two nodes can tell)")
    else:
        change = "mount the file system with locks; until then images may be imported more than once"
        yield Finding(WRONG, "two processes hold one flock(2) lock in the store", change)


def links(store: Store) -> Iterator[Finding]:
    """Try link(2): what is published gets its name by it, and never replaces another's."""
    if not store.directory:
        yield _untried(store)
        return
    try:
        count = store.ask(probe.link, store.directory)
    except OSError as error:
        yield Finding(WRONG, f"link(2) in the store fails: {error.strerror}", "use a file system with hard links")
        return
    if count == 2:
        yield Finding(OK, "link(2) works in the store")
    else:
        found = f"a file in the store with two names says that it has {count}"
        yield Finding(WRONG, found, "use a file system with hard links")


def clock(store: Store) -> Iterator[Finding]:
    """Compare this node's clock with the store's, as times to live, leases and graces do."""
    if not store.directory:
        yield _untried(store)
        return
    ahead = store.ask(probe.clock_ahead, store.directory)
    words = f"the store's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this node's"
    if abs(ahead) > MOST_AHEAD:
        yield Finding(WRONG, words, "synchronise both (chrony, ntp)")
    else:
        yield Finding(OK, words if ahead else "the store's clock is this node's")


def root(store: Store) -> Iterator[Finding]:
    """Try what root may do: where the store takes its word, every node's root has all jobs of the cluster."""
    if not store.directory:
        yield _untried(store)
    elif store.ask_root is None:
        yield Finding(UNKNOWN, "only root can try what root may do in the store", AS_ROOT)
    elif store.ask_root(probe.can_list, store.directory):
        found = "the store takes this node's root for root: who is root on one node can write it for all jobs"
        yield Finding(ADVICE, found, "export it with root_squash; warmstart needs no root there")
    else:
        yield Finding(OK, "the store refuses root; warmstart does not need it")


def space(store: Store) -> Iterator[Finding]:
    """Compare free space with the floor, below which imports fail with `store-full`."""
    seen, keep = store.ask(probe.look, store.path), store.policy.images.keep
    free = 100 * seen.free / max(seen.size, 1)
    change = "warmstart images evict, warmstart cache gc, or a larger file system"
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
    return Finding(UNKNOWN, f"no directory could be made in the store to try it: {store.no_directory}")


CHECKS = {
    "store.reachable": reachable,
    "store.owner": owner,
    "store.writers": writers,
    "store.parents": parents,
    "store.locks": locks,
    "store.links": links,
    "store.clock": clock,
    "store.root": root,
    "store.space": space,
}
