"""Unpack an image on this node, and evict what was unpacked. Runs as root, for no job (decision 58).

    copy from the store ─▶ make and reserve room ─▶ unpack ─▶ compare its hash ─▶ say so ─▶ syncfs ─▶ rename
                        └─▶ hash the copy ──────────────────────────────────┘

Whoever waits has the tree once that is said. So a child hashes meanwhile, and the whole tree is measured afterwards,
and goes to the disk a moment later: what a container that starts has written would be queued behind it, and enroot's
hooks, which replace files, wait until such a file is written. How much room it takes is known since its import, or it
is listed first. Root copies, counts and renames. unsquashfs lists and unpacks, as the import account, without network,
in a mount namespace that holds its own directory and the system's programs. Nobody but root can enter what is above
that directory, so when that namespace ends nobody can reach what is in it. The kernel parses nothing of the image.

What is unpacked has one owner and one group, and no extended attributes: `user.overlay.*` would have a meaning for an
overlay above it. Set-id bits and device files, which an account without rights cannot make, are left out.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart import shelf as shelves
from warmstart.host import files, namespaces, process, wire
from warmstart.host.client import hashed_in_child, remove_in_child, sync_in_child
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, open_regular, opened_dir, read_small, replace_file, unlink_if_there
from warmstart.host.space import Held, Reservation, allocate, fair_order, inodes, no_room, room
from warmstart.images.imports.verify import ENVIRONMENT, MOST_MEMORY, PRLIMIT, UNSQUASHFS, Listing, listed, listing
from warmstart.images.scratch import Caps, Exceeded, Watch
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import PRIVATE_STORES
from warmstart.images.unpacked import ABOUT, FOLDER, TREE, UNPACKING, ImageKey, find, shelf_of
from warmstart.images.unpacks import WAITING, ImageNotUnpacked, UnpackRequest, is_awaited
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy

GONE = ".gone"
COPY = "image"
STORE_S = 60.0
HASHING_S = 1800.0
LISTING_S = 600.0
SLOWEST = 4 << 20  # bytes per second, below which unpacking is given up
AT_LEAST_S = 1800.0
SYNC_S = 1800.0
START_S = 2.0  # in which containers that waited start, before the disk is busy
REMOVAL_S = 600.0
MOST_PROCESSORS = 8  # each has caches and a stack, and memory is limited
PER_FILE = 8192  # bytes that a file takes beside its own: its last block, its names
SLACK = 16 << 20
AHEAD = 1 << 30  # bytes that are written, at most, before the reservation gives up as many
_LONGEST_ABOUT = 16384
# What only root may make; `create_inode` of unsquashfs.c.
_NO_DEVICE = re.compile(r"create_inode: could not create .*, because you're not superuser!")


class About(NamedTuple):
    """What is known of a tree."""

    reference: str  # canonical, of the job that asked first
    image: str  # its name in the store
    private: str  # the name of the private store, "" for the shared one
    user: str  # whose job asked first
    uid: int
    files: int
    bytes: int  # that it takes on the disk, about
    made: float  # seconds since the epoch
    packed: int  # bytes of the image's file


class Tree(NamedTuple):
    """A tree on a shelf."""

    name: str
    about: About
    used: float  # seconds since the epoch
    jobs: list[int]  # that have it

    def as_audit(self) -> dict[str, object]:
        """Return the fields of events about it."""
        return {"image": self.about.reference, "tree": self.name, "bytes": self.about.bytes, "files": self.about.files}


def unpack(
    request: UnpackRequest,
    *,
    policy: Policy,
    paths: NodePaths,
    store: ImageStoreClient,
    evicted: Callable[[Tree], object],
    hasten: Callable[[bool], None],
) -> About | None:
    """Unpack an image; None if it is there already. `evicted` is told what went for it.

    `hasten` is called about once a second with whether anybody waits. Raises `ImageNotUnpacked`, `OSError`, and what
    `ImageStoreClient` raises; nothing is left then.
    """
    node = paths.node
    shelves.make(policy, node, FOLDER)
    with opened_dir(shelf_of(policy, node)) as shelf:
        name = ImageKey(request.image, request.private).tree
        hasten(is_awaited(shelf, name))
        work = _Unpacking(request, policy=policy, paths=paths, store=store, shelf=shelf, evicted=evicted)
        if find(shelf, work.name) == work.name:
            return None
        with _claimed(shelf, work.name, paths, request.reference) as making:
            about = work.run(making, lambda: hasten(is_awaited(shelf, work.name)))
            was_awaited = is_awaited(shelf, work.name)
            replace_file(making, ABOUT, json.dumps(about._asdict()).encode(), 0o600, durable=False)
            if was_awaited:
                time.sleep(START_S)
            hasten(is_awaited(shelf, work.name))
            work.measure(making, about)
            sync_in_child(making, after(SYNC_S))
            with shelves.locked(shelf):
                os.rename(work.name + UNPACKING, work.name, src_dir_fd=shelf, dst_dir_fd=shelf)
            os.fsync(shelf)
        unlink_if_there(work.name + WAITING, shelf)
    return about


class _Unpacking:
    """One attempt at an image."""

    def __init__(
        self,
        request: UnpackRequest,
        *,
        policy: Policy,
        paths: NodePaths,
        store: ImageStoreClient,
        shelf: int,
        evicted: Callable[[Tree], object],
    ) -> None:
        self.name = ImageKey(request.image, request.private).tree
        self._request = request
        self._policy = policy
        self._paths = paths
        self._store = store.at(f"{store.path}/{PRIVATE_STORES}/{request.private}") if request.private else store
        self._shelf = shelf
        self._evicted = evicted

    def run(self, making: int, hasten: Callable[[], None]) -> About:
        """Fill the directory `making`; return what its `ABOUT`, which the caller writes, is to say."""
        image, known = self._copied(making)
        try:
            packed = os.fstat(image).st_size
            with hashed_in_child(image, after(max(HASHING_S, packed / SLOWEST))) as sha256:
                try:
                    files, size = self._filled(making, image, Listing(known.files, known.unpacked), hasten)
                finally:  # whatever is wrong with a damaged one is no other problem
                    if (found := sha256()) != known.sha256:
                        raise self._failed(f"its SHA-256 is {found} and not {known.sha256}")
        finally:
            os.close(image)
        os.unlink(COPY, dir_fd=making)
        return About(
            *self._request[:3],
            self._request.job.user,
            self._request.job.uid,
            files,
            size + files * PER_FILE,
            time.time(),
            packed,
        )

    def _filled(self, making: int, image: int, known: Listing, hasten: Callable[[], None]) -> Listing:
        """Unpack the image; return how much it has, as is `known` since its import, or else as it is listed."""
        self._make_place(making)
        files, size = found = known if known.files else self._listed(making, image, hasten)
        needed = size + files * PER_FILE + SLACK
        keep = self._policy.images.unpack.keep
        if needed > keep:
            raise self._failed(f"it takes about {needed} bytes, more than images.unpack.keep, {keep}")
        self._evict(keep - needed, needed)
        if files > inodes(self._shelf):
            raise self._failed(f"it has {files} files, and the disk no inodes for them")
        self._unpack(making, image, Caps(needed, files + 1), hasten)
        return found

    def _copied(self, making: int) -> tuple[int, published.Recorded]:
        """Copy the image from the store; return it open for reading, and what was recorded of it."""
        name, kind = self._request.image, self._request.image.partition(".")[2]
        found = self._store.run(after(STORE_S), layout.find, "", layout.digest_of(name), kind, 0.0)
        if found is None or found.invalid:
            raise self._failed(f"in the store {found.invalid if found else 'there is no such image'}")
        known = self._store.run(after(STORE_S), published.recorded, name)
        if not known.sha256:
            problem = "its SHA-256 is not recorded yet: `warmstart images verify` and maintenance of the store do so"
            raise self._failed(problem)
        fd = os.open(COPY, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400, dir_fd=making)
        try:
            keep = self._policy.images.unpack.keep
            self._evict(keep - found.size, found.size)
            is_held = allocate(fd, found.size, keep_length=True)
            if room(fd) <= (0 if is_held else found.size):
                raise self._failed(no_room(fd, found.size))
            deadline = after(max(AT_LEAST_S, found.size / SLOWEST))
            if problem := self._store.run_with(fd, deadline, published.copy_out, found.path, fd):
                raise self._failed(problem)
            os.fchmod(fd, 0o444)
        finally:
            os.close(fd)
        return open_regular(COPY, making), known

    def _evict(self, keep: int, needed: int) -> None:
        for tree in evict(self._shelf, self._paths, keep, needed):
            self._evicted(tree)

    def _listed(self, making: int, image: int, hasten: Callable[[], None]) -> Listing:
        """Return how much the image has: its import did not say, or an earlier version of warmstart made it."""
        done = self._alone(making, listing(image), deadline=after(LISTING_S), keep=[image], watch=hasten)
        try:
            found = listed(done)
        except ImageInvalid as error:
            raise self._failed(str(error.fields["problem"])) from error
        if not found.files:
            raise self._failed("its files cannot be counted: neither mawk nor gawk is installed")
        return found

    def _make_place(self, making: int) -> None:
        account = self._policy.import_user
        os.mkdir(TREE, 0o700, dir_fd=making)
        os.chown(TREE, account.uid, account.gid, dir_fd=making, follow_symlinks=False)

    def _unpack(self, making: int, image: int, caps: Caps, hasten: Callable[[], None]) -> None:
        processors = min(len(os.sched_getaffinity(0)), MOST_PROCESSORS)
        with opened_dir(TREE, making) as tree, Reservation(making) as reserved:
            reserved.hold(caps.size)
            reserved.hold(max(0, caps.size - AHEAD))
            watch = Watch(tree, caps)

            def look() -> None:
                watch()
                reserved.hold(max(0, watch.left.size - AHEAD))
                hasten()

            with self._exceeded_is_failure():
                done = self._alone(
                    making,
                    [
                        UNSQUASHFS, "-no-progress", "-quiet", "-no-xattrs", "-processors", str(processors),
                        "-force", "-dest", f"/{namespaces.SHOWN}", f"/proc/self/fd/{image}",
                    ],
                    deadline=after(max(AT_LEAST_S, caps.size / SLOWEST)),
                    keep=[image],
                    largest=caps.size,
                    watch=look,
                )  # fmt: skip
        complaints = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        if done.status and not (done.status == 2 and all(map(_NO_DEVICE.fullmatch, complaints))):
            raise self._failed(f"unsquashfs: {done.complaint()}")

    def _alone(
        self,
        making: int,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        keep: Sequence[int],
        largest: int = 0,
        watch: Callable[[], None] | None = None,
    ) -> process.CompletedProgram:
        """Run a program as the account, which sees its own directory and nothing else of this node."""
        path = os.readlink(f"/proc/self/fd/{making}")
        mounts = namespaces.new_root(path, f"{path}/{TREE}")
        limits = [PRLIMIT, f"--as={MOST_MEMORY}", f"--fsize={largest}", "--core=0", "--"]
        try:
            return process.run_alone(
                [*limits, *argv],
                deadline=deadline,
                identity=self._policy.import_user,
                env={"MALLOC_ARENA_MAX": "2", **ENVIRONMENT},
                cwd="/",
                mounts=mounts,
                keep=keep,
                watch=watch,
            )
        finally:
            os.close(mounts)

    def measure(self, making: int, about: About) -> None:
        """Raise `ImageNotUnpacked` if a tree is larger than what is known of it."""
        with opened_dir(TREE, making) as tree, self._exceeded_is_failure():
            Watch(tree, Caps(about.bytes + SLACK, about.files + 1)).look()

    @contextmanager
    def _exceeded_is_failure(self) -> Iterator[None]:
        try:
            yield
        except Exceeded as error:
            raise self._failed("it has more than its listing says") from error

    def _failed(self, problem: str) -> ImageNotUnpacked:
        return ImageNotUnpacked(image=self._request.reference, problem=problem)


@contextmanager
def _claimed(shelf: int, name: str, paths: NodePaths, reference: str) -> Iterator[int]:
    """Make the directory to unpack in, and hold its lock; it goes if anything fails, unless a run has it by then."""
    making = name + UNPACKING
    _remove_abandoned(shelf, paths)
    with shelves.locked(shelf):
        try:
            os.mkdir(making, 0o700, dir_fd=shelf)
        except FileExistsError:
            problem = "another process is still at it, or has died, and a job has what it left"
            raise ImageNotUnpacked(image=reference, problem=problem) from None
        fd = os.open(making, DIRECTORY, dir_fd=shelf)
        files.try_flock(fd)
    try:
        yield fd
    except BaseException:
        files.unlock(fd)
        with suppress(OSError):
            _remove_abandoned(shelf, paths)
        raise
    finally:
        os.close(fd)


def trees(shelf: int, paths: NodePaths) -> list[Tree]:
    """Return the trees of a shelf, the least recently used first. Raises `OSError`."""
    jobs, found = shelves.held(paths.state), []
    for name in os.listdir(shelf):
        if "." not in name:
            with suppress(OSError, ValueError, TypeError):
                about = wire.from_object(About, wire.parse(read_small(f"{name}/{ABOUT}", _LONGEST_ABOUT, shelf)))
                used = os.stat(name, dir_fd=shelf, follow_symlinks=False).st_mtime
                found.append(Tree(name, about, used, jobs.get(name, [])))
    return sorted(found, key=lambda tree: tree.used)


def on_node(policy: Policy, paths: NodePaths) -> list[Tree]:
    """Return the trees of a node, the least recently used first. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(shelf_of(policy, paths.node)) as shelf:
        return trees(shelf, paths)
    return []


def evict(shelf: int, paths: NodePaths, keep: int, needed: int = 0) -> list[Tree]:
    """Evict trees until `keep` bytes are left, and `needed` ones free; those that a run has stay. Raises `OSError`.

    The least recently used of the user who has most go first. They are renamed, and then removed.
    """
    gone = []
    with shelves.locked(shelf):
        found = trees(shelf, paths)
        excess = max(sum(tree.about.bytes for tree in found) - keep, needed - room(shelf) if needed else 0)
        held = [Held(tree.about.uid, tree.about.bytes, may_go=not tree.jobs) for tree in found]
        for number in fair_order(held):
            if excess <= 0:
                break
            tree = found[number]
            _set_aside(shelf, tree.name)
            excess -= tree.about.bytes
            gone.append(tree)
    _remove_gone(shelf)
    return gone


def prune(policy: Policy, paths: NodePaths) -> list[Tree]:
    """Evict what is beyond the policy's bound, and remove what nobody is at work on; return what was evicted.

    Raises `OSError`.
    """
    with suppress(FileNotFoundError), opened_dir(shelf_of(policy, paths.node)) as shelf:
        gone = evict(shelf, paths, policy.images.unpack.keep)
        _remove_abandoned(shelf, paths)
        for name in os.listdir(shelf):
            if name.endswith(WAITING) and not is_awaited(shelf, name.removesuffix(WAITING)):
                unlink_if_there(name, shelf)
        return gone
    return []


def _remove_abandoned(shelf: int, paths: NodePaths) -> None:
    """Remove what dead processes left, and no run has."""
    with shelves.locked(shelf):
        had = shelves.held(paths.state)
        for name in os.listdir(shelf):
            if name.endswith(UNPACKING) and name.removesuffix(UNPACKING) not in had:
                with opened_dir(name, shelf) as fd:
                    if files.try_flock(fd):
                        _set_aside(shelf, name)
    _remove_gone(shelf)


def _set_aside(shelf: int, name: str) -> None:
    os.rename(name, f"{name}.{os.urandom(4).hex()}{GONE}", src_dir_fd=shelf, dst_dir_fd=shelf)


def _remove_gone(shelf: int) -> None:
    for name in os.listdir(shelf):
        if name.endswith(GONE):
            remove_in_child(shelf, name, after(REMOVAL_S))
