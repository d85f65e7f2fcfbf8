"""The node's cache of bundles: fetched once, mounted once, evicted by last use.

    <node>/bundles/                     root, 0700
        <sha256>.sqsh                   0444; mtime is the last use
        <sha256>.files.json             its entries with their files, as in the manifest
        <sha256>.origin.json            its place in the store, and the hash of its manifest if a listing says it
        <sha256>.fetching               its beginning; being fetched while a process holds a flock on it
    <node>/layers/<sha256>/             root, 0700; the bundle, mounted `ro,nosuid,nodev`

A copy is named by its hash, so an existing copy is always the right one. Its mode is 0444 because a process that gets
it as an open descriptor opens it again. What has come when a
prolog's time is over stays: the next job's fetch goes on there, and all bytes are hashed.

Jobs get clones of the mounts, so a bundle can be unmounted here at any time: the kernel keeps its file system, loop
device and bytes until the last overlay above it is unmounted. After a reboot the next job mounts it again. ctypes is
imported only to mount. Here at most `MOST_MOUNTED` stay mounted, of one scope `MOST_OF_SCOPE`: whoever mounts one more
unmounts the least recently used of the scope that has most.

Eviction keeps the wholes of each kind within what their wing has said, and all else within `seed.keep`. It removes the
least recently used copies of the scope that has most, but never one used in the last hour, which a prolog may be about
to mount, and none that a job has mounted: that would free nothing before the job ends. A beginning counts as a copy.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.host import files, linux, wire
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import (
    PATH,
    DiskFailed,
    closing,
    ensure_dir,
    is_at,
    mount_id,
    names_in,
    open_regular,
    opened_dir,
    read_small,
    replace_file,
    unlink_if_there,
)
from warmstart.host.identity import WorkerSilent
from warmstart.lean import (
    TYPE_CHECKING,
    Callable,
    Container,
    Iterator,
    NamedTuple,
    Sequence,
    contextmanager,
    dumps,
    partial,
    suppress,
)
from warmstart.profiles.contract import WHOLE, is_whole
from warmstart.store import bundles
from warmstart.store.bundles import FetchOverBudget, Offer
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace, StoreFailed
from warmstart.store.manifest import Entries, File

if TYPE_CHECKING:
    from warmstart.policy.keys import Policy
    from warmstart.store.maintenance import Use

IN_USE_SECONDS = 3600.0  # a copy that was used within this time may be about to be mounted
ABANDONED_SECONDS = 86400.0  # a beginning with which nobody went on for so long
UNMOUNTING_SECONDS = 5.0
# A mounted copy has a loop device, and takes 0.7 MiB of kernel memory or more. One job needs at most 15 for a profile.
MOST_MOUNTED, MOST_OF_SCOPE = 256, 64

_BUNDLE = ".sqsh"
_FILES = ".files.json"  # entry → path → size, SHA-256, mtime in nanoseconds
_ORIGIN = ".origin.json"  # [scope, profile, namespace, bundle]
_COMPANIONS = (_FILES, _ORIGIN)
_FETCHING = ".fetching"
_LARGEST_FILES = 64 << 20
_LARGEST_ORIGIN = 64 << 10
_LOCK_PAUSE = 0.005


_PASSING = (FetchOverBudget, StoreFailed, WorkerSilent)  # what has come stays of use


class Copy(NamedTuple):
    """The copy of an offered bundle on this node."""

    offer: Offer
    directory: str
    fetched: int = 0  # bytes fetched from the store by this call; 0 if the copy existed

    @property
    def path(self) -> str:
        """Path of the squashfs file."""
        return os.path.join(self.directory, self.offer.sha256 + _BUNDLE)

    def files(self) -> Entries:
        """Return all entries of the bundle with their files.

        Raises `BundleDamaged` if the offer, which comes from the index, names an entry that the manifest lacks.
        """
        files = entries_of(self.directory, self.offer.sha256)
        if not files.keys() >= set(self.offer.entries):
            raise bundles.BundleDamaged(bundle=self.offer.bundle, problem="index and manifest disagree")
        return files

    def named(self) -> Copy:
        """Return it with the names of entries that its offer leaves out."""
        offer = self.offer
        if offer.entries:
            return self
        return self._replace(offer=offer._replace(entries=[*entries_of(self.directory, offer.sha256)], number=0))


def entries_of(directory: str, sha256: str) -> Entries:
    """Return all entries of a copy with their files; raises `FileNotFoundError` if this node has no such copy."""
    with opened_dir(directory) as fd:
        raw = wire.parse(read_small(sha256 + _FILES, _LARGEST_FILES, fd))
    return {entry: {path: File(*file) for path, file in files.items()} for entry, files in raw.items()}


class Keep(NamedTuple):
    """Bytes of copies that stay on a node."""

    caches: int
    wholes: dict[str, int] = {}  # noqa: RUF012 - by the name that they have in place of a profile's; never mutated

    @classmethod
    def of(cls, policy: Policy) -> Keep:
        """Return what the policy says."""
        return cls(policy.seed.keep, {f"{WHOLE}{known.name}": known.keep for known in policy.wings if known.keep})


class _Kept(NamedTuple):
    """A copy or the beginning of one, for eviction."""

    used: float
    size: int  # bytes, with the list of its files
    sha256: str
    file: tuple[int, int] = (0, 0)  # device and inode


def local_copy(
    directory: str,
    namespace: Namespace,
    offer: Offer,
    *,
    store: StoreClient,
    most_bytes: int,
    deadline: Deadline,
) -> Copy:
    """Return the node's copy of an offered bundle; fetch it from the store if there is none.

    `namespace` has the scope of the offer. Space for the bundle is reserved first. Raises `FetchOverBudget` if the
    fetch would take more than `most_bytes`, is not complete at the deadline, or another job is still at it, `OSError`
    if the node's disk fails, and the errors of `bundles.fetch`.
    """
    ensure_dir(directory, 0o700)
    with opened_dir(directory) as dir_fd:
        if _is_there(offer.sha256 + _BUNDLE, offer, dir_fd):
            return Copy(offer, directory)
        if offer.size > most_bytes:
            problem = f"it has {offer.size} bytes, but only {most_bytes} may still be fetched"
            raise FetchOverBudget(bundle=offer.bundle, problem=problem)
        with _claimed(dir_fd, offer, deadline) as fd:
            if _is_there(offer.sha256 + _BUNDLE, offer, dir_fd):
                return Copy(offer, directory)
            origin = [*namespace[1:], offer.bundle]
            replace_file(dir_fd, offer.sha256 + _ORIGIN, dumps(origin).encode(), 0o600)  # first: of what stays, too
            entries = _fetch(fd, namespace, offer, store, deadline)
            _finish(dir_fd, fd, offer, entries)
    return Copy(offer, directory, offer.size)


def copy_here(directory: str, offer: Offer) -> Copy | None:
    """Return the node's copy of an offered bundle, None if there is none: `local_copy` fetches it."""
    path = f"{directory}/{offer.sha256}{_BUNDLE}"
    return Copy(offer, directory) if _is_there(path, offer) else None


def may_come(directory: str, offer: Offer, most_bytes: int) -> int | None:
    """Return the bytes that a copy of an offered bundle still takes; None if it is larger than `most_bytes`."""
    ensure_dir(directory, 0o700)
    with opened_dir(directory) as dir_fd:
        if _is_there(offer.sha256 + _BUNDLE, offer, dir_fd):
            return 0
        return None if offer.size > most_bytes else offer.size


def _is_there(path: str, offer: Offer, dir_fd: int | None = None) -> bool:
    """Return whether the node has the whole copy at `path`, and record its use."""
    try:  # by name, in a directory of root's alone: ten bundles are thirty calls less
        os.utime(path, dir_fd=dir_fd, follow_symlinks=False)  # mtime is the last use, for `prune`
        size = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_size
    except FileNotFoundError:
        return False
    return size == offer.size


@contextmanager
def _claimed(dir_fd: int, offer: Offer, deadline: Deadline) -> Iterator[int]:
    """Hold the locked file to fetch into; wait until another fetch of the bundle ends. It may have its beginning.

    After an error what has come stays, if the error is no reason against it.
    """
    fd = _claim(dir_fd, offer, deadline)
    try:
        yield fd
    except BaseException as error:
        if not (isinstance(error, _PASSING) and os.fstat(fd).st_size):
            _abandon(dir_fd, fd, offer)
        raise
    finally:
        os.close(fd)


def _claim(dir_fd: int, offer: Offer, deadline: Deadline) -> int:
    """Return the locked file to fetch into."""
    temp = offer.sha256 + _FETCHING
    while True:
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        try:
            if not files.wait_flock(fd, deadline):
                problem = "another job of this node was still fetching it at the deadline"
                raise FetchOverBudget(bundle=offer.bundle, problem=problem)
            # If it has another name, the other fetch is complete.
            if is_at(fd, temp, dir_fd) or _is_there(offer.sha256 + _BUNDLE, offer, dir_fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _reserve(fd: int, offer: Offer) -> None:
    """Allocate the disk space of a bundle; raises `DiskFailed` if the disk would be at its floor with it.

    The file stays as long as it is: its length says how much has come.
    """
    from warmstart.host import space

    try:
        is_held = space.allocate(fd, offer.size, keep_length=True)
        left = space.room(fd) - (0 if is_held else offer.size)
    except OSError as error:
        raise DiskFailed(what=f"bundle {offer.bundle}", problem=error.strerror) from error
    if left <= 0:
        raise DiskFailed(what=f"bundle {offer.bundle}", problem=space.no_room(fd, offer.size))


def _abandon(dir_fd: int, fd: int, offer: Offer) -> None:
    """Remove what a failed fetch wrote. Whoever waits for its lock starts anew."""
    with suppress(OSError):
        if is_at(fd, offer.sha256 + _FETCHING, dir_fd):
            for suffix in (_ORIGIN, _FETCHING):
                unlink_if_there(offer.sha256 + suffix, dir_fd)
            os.ftruncate(fd, 0)  # a process that hangs may still have it open


def _fetch(fd: int, namespace: Namespace, offer: Offer, store: StoreClient, deadline: Deadline) -> Entries:
    """Fill `fd` from the store; return the bundle's entries with their files.

    What an earlier fetch left in it is used if all together has the right hash; otherwise it starts anew.
    """
    is_resumed = os.fstat(fd).st_size > 0
    _reserve(fd, offer)
    try:
        return store.fetch(namespace, offer, deadline, into=fd)
    except bundles.BundleDamaged:
        if not is_resumed:
            raise
    except WorkerSilent as error:
        if not deadline.expired():
            raise
        problem = f"{os.fstat(fd).st_size} of {offer.size} bytes came in time; the next job goes on there"
        raise FetchOverBudget(bundle=offer.bundle, problem=problem) from error
    os.ftruncate(fd, 0)
    return _fetch(fd, namespace, offer, store, deadline)


def _finish(dir_fd: int, fd: int, offer: Offer, entries: Entries) -> None:
    """Rename the fetched file to its final name, after the list of its files is written."""
    replace_file(dir_fd, offer.sha256 + _FILES, dumps(entries).encode(), 0o600)
    os.fchmod(fd, 0o444)
    os.fsync(fd)
    os.rename(offer.sha256 + _FETCHING, offer.sha256 + _BUNDLE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.fsync(dir_fd)


def mounted(directory: str, paths: Sequence[str], deadline: Deadline) -> list[int]:
    """Return descriptors (O_PATH) of the roots of copies' mounts; mount the copies that are not mounted.

    Raises `OSError` if the kernel has no squashfs or no free loop device, if a copy is damaged, or (`ETIME`) if another
    prolog held the lock until the deadline; then no descriptor stays open.
    """
    ensure_dir(directory, 0o700)
    roots: list[int] = []
    made = 0
    try:
        with _exclusive(directory, deadline) as dir_fd:
            below = mount_id(dir_fd)
            for path in paths:
                name = os.path.basename(path).removesuffix(_BUNDLE)
                roots.append(_root(dir_fd, name))
                if mount_id(roots[-1]) == below:
                    os.close(roots.pop())
                    _mount(path, os.path.join(directory, name))
                    roots.append(os.open(name, PATH, dir_fd=dir_fd))
                    made += 1
            if made:
                with suppress(OSError):  # maintenance unmounts, too
                    _unmount_most(dir_fd, os.path.dirname(paths[0]), 2 * made)
    except BaseException:
        for root in roots:
            os.close(root)
        raise
    return roots


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


def _unmount_most(layers: int, directory: str, most: int) -> None:
    """Unmount up to `most` copies beyond the bounds; those stay that a prolog has open, to show them to its job."""
    mounted = os.listdir(layers)
    if len(mounted) <= MOST_OF_SCOPE:
        return
    from warmstart.host.space import Held, fair_order

    with opened_dir(directory) as fd:
        copies = sorted(_Kept(_last_use(fd, sha256), 1, sha256) for sha256 in mounted)
        scopes = [_whose(fd, copy)[0] for copy in copies]
    left, done = {scope: scopes.count(scope) for scope in {*scopes}}, 0
    for number in fair_order(Held(scope, 1) for scope in scopes):
        if done == most or (len(mounted) - done <= MOST_MOUNTED and left[scopes[number]] <= MOST_OF_SCOPE):
            return
        left[scopes[number]] -= 1
        with suppress(OSError):
            linux.unmount_idle(copies[number].sha256, layers)
            os.rmdir(copies[number].sha256, dir_fd=layers)
            done += 1


def unmount(directory: str, sha256: str, deadline: Deadline, *, unless: Callable[[], bool] = lambda: False) -> None:
    """Unmount a copy and remove its mount point; does nothing if there is none.

    Removing the mount point also detaches the mount in the mount namespaces of jobs. `unless` is called under the
    lock; if it returns True, the mount stays. Raises `OSError` with `ETIME` if the lock is not free at the deadline.
    """
    with suppress(FileNotFoundError), _exclusive(directory, deadline) as dir_fd:
        if unless():
            return
        with suppress(OSError):  # EINVAL: nothing is mounted
            linux.unmount(sha256, dir_fd)
        os.rmdir(sha256, dir_fd=dir_fd)


def mount_points(directory: str) -> list[str]:
    """Return the SHA-256 of each copy that has a mount point here."""
    return names_in(directory)


@contextmanager
def _exclusive(directory: str, deadline: Deadline) -> Iterator[int]:
    """Hold the lock for mounting and unmounting, a flock on the directory; yields a descriptor of it."""
    with opened_dir(directory) as fd:
        if not files.wait_flock(fd, deadline, _LOCK_PAUSE):
            raise OSError(errno.ETIME, "another job of this node is still mounting", directory)
        yield fd


def prune(directory: str, layers: str, keep: Keep, now: float) -> int:
    """Evict copies beyond what is to stay, and remove abandoned fetches; return the bytes removed.

    Copies used since `now` minus `IN_USE_SECONDS` stay, and so do those that jobs have mounted. `layers` is the
    directory where copies are mounted; copies that are gone or were not used since then are unmounted there first.
    """
    try:
        with opened_dir(directory) as fd:
            _unmount_unused(fd, layers, now)
            kinds: dict[str, list[tuple[_Kept, str]]] = {}  # of each name of wholes, and of all profiles: ""
            for copy in sorted([*_copies(fd), *_copies(fd, _FETCHING)]):
                scope, profile = _whose(fd, copy)
                kinds.setdefault(profile if is_whole(profile) else "", []).append((copy, scope))
            held = _mounted_by_jobs()
            most = {"": keep.caches, **keep.wholes}
            removed = sum(_evict(fd, copies, most.get(kind, 0), held, now) for kind, copies in kinds.items())
            _remove_abandoned(fd, now)
            return removed
    except FileNotFoundError:
        return 0


def _evict(fd: int, copies: list[tuple[_Kept, str]], keep: int, mounted: Container[tuple[int, int]], now: float) -> int:
    """Evict copies, given with their scopes, until at most `keep` bytes are left; return the bytes removed."""
    from warmstart.host.space import Held, fair_order

    excess = sum(copy.size for copy, _ in copies) - keep
    removed = 0
    held = [
        Held(scope, copy.size, may_go=copy.used <= now - IN_USE_SECONDS and copy.file not in mounted)
        for copy, scope in copies
    ]
    for number in fair_order(held):
        copy, _ = copies[number]
        if removed >= excess:
            break
        for suffix in (_BUNDLE, _FETCHING, *_COMPANIONS):  # the bundle first: the others mean nothing without it
            unlink_if_there(copy.sha256 + suffix, fd)
        removed += copy.size
    return removed


def _mounted_by_jobs() -> frozenset[tuple[int, int]]:
    """Return device and inode of what is mounted anywhere: of a copy that was unmounted here, jobs have it."""
    from warmstart.host import loops

    with suppress(OSError):  # no /sys
        return loops.backing_files()
    return frozenset()


def _unmount_unused(fd: int, layers: str, now: float) -> None:
    """Unmount copies that are gone or were not used in the last hour.

    Each mount takes a megabyte or more of kernel memory, however small the bundle, and `keep` does not bound that.
    """
    for sha256 in mount_points(layers):
        in_use = partial(_is_in_use, fd, sha256, now)
        unmount(layers, sha256, after(UNMOUNTING_SECONDS), unless=in_use)


def _is_in_use(fd: int, sha256: str, now: float) -> bool:
    return _last_use(fd, sha256) > now - IN_USE_SECONDS


def _last_use(fd: int, sha256: str) -> float:
    """Return when a copy was used, 0.0 if it is gone."""
    try:
        return os.stat(sha256 + _BUNDLE, dir_fd=fd, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _copies(fd: int, suffix: str = _BUNDLE) -> list[_Kept]:
    copies = []
    for name in os.listdir(fd):
        if name.endswith(suffix):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                sha256 = name.removesuffix(suffix)
                # Of a beginning all is allocated that the bundle will need.
                size = max(status.st_size, status.st_blocks * 512 * (suffix == _FETCHING)) + _size(fd, sha256 + _FILES)
                copies.append(_Kept(status.st_mtime, size, sha256, (status.st_dev, status.st_ino)))
    return copies


def _size(fd: int, name: str) -> int:
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
    return 0


def _remove_abandoned(fd: int, now: float) -> None:
    """Remove beginnings with which nobody goes on, and old descriptions of copies that are gone."""
    for name in os.listdir(fd):
        if not name.endswith((_FETCHING, *_COMPANIONS)):
            continue
        with suppress(OSError):
            if name.endswith(_FETCHING):
                _remove_beginning(fd, name, now)
            elif os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime <= now - IN_USE_SECONDS:
                _remove_companion(fd, name)


def _remove_beginning(fd: int, name: str, now: float) -> None:
    """Remove the file of a fetch that nobody has locked, if it is old or nothing has come."""
    with closing(os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)) as file:
        status = os.fstat(file)
        is_useless = status.st_size == 0 or status.st_mtime <= now - ABANDONED_SECONDS
        if is_useless and files.try_flock(file) and is_at(file, name, fd):
            unlink_if_there(name, fd)


def _remove_companion(fd: int, name: str) -> None:
    """Remove a description if its copy is gone, and there is no beginning of one."""
    stem = name.partition(".")[0]
    if not any(os.access(stem + suffix, os.F_OK, dir_fd=fd, follow_symlinks=False) for suffix in (_BUNDLE, _FETCHING)):
        unlink_if_there(name, fd)


def uses(directory: str) -> list[Use]:
    """Return the last use of each copy whose place in the store is known: now, of one that a job has mounted."""
    return [use for _, use in placed(directory)]


def placed(directory: str) -> list[tuple[str, Use]]:
    """Return the paths of copies whose place in the store is known, each with its last use there, as in `uses`."""
    found = []
    mounted, now = _mounted_by_jobs(), time.time()
    try:
        with opened_dir(directory) as fd:
            for copy in _copies(fd):
                with suppress(OSError, ValueError, TypeError):
                    use = _use(fd, copy._replace(used=now) if copy.file in mounted else copy)
                    found.append((os.path.join(directory, copy.sha256 + _BUNDLE), use))
    except FileNotFoundError:
        return []
    return found


def _use(fd: int, copy: _Kept) -> Use:
    """Return the last use of a copy; raises `OSError`, `ValueError` or `TypeError` if its place is not known."""
    from warmstart.store.maintenance import Use  # a hook reports no uses

    return Use(*_origin(fd, copy.sha256), copy.used)


def _origin(fd: int, sha256: str) -> tuple[str, str, str, str]:
    """Return scope, profile, namespace and name of a copy; raises as `_use`."""
    scope, profile, namespace, bundle = wire.parse(read_small(sha256 + _ORIGIN, _LARGEST_ORIGIN, fd))
    return str(scope), str(profile), str(namespace), str(bundle)


def _whose(fd: int, copy: _Kept) -> tuple[str, str]:
    """Return the scope and profile of a copy, "" if they are not known."""
    with suppress(OSError, ValueError, TypeError):
        return _origin(fd, copy.sha256)[:2]
    return "", ""
