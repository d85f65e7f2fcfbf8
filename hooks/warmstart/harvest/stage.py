"""Root's stage: where the entries of one harvest are copied to, judged and packed.

It is a directory that only root can enter, with `entries/` in it, which the validator gets open. A file there keeps its
mtime, but not its mode, owner or xattrs. Every byte is reserved before it is written, because several epilogs may share
the disk.
"""

from __future__ import annotations

import os
import posixpath

from warmstart.caches.store.layout import LATEST_NS, File
from warmstart.errors import WarmstartError
from warmstart.harvest.scan import OUT_OF_TIME
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import FULL, DiskFailed, closing, ensure_dir, opened_dir
from warmstart.host.remove import remove_tree
from warmstart.host.space import Reservation
from warmstart.host.untrusted import UNREADABLE, TurnedAway
from warmstart.lean import Collection, Iterator, contextmanager

CHANGED = "changed while it was read"
STAGE_FULL = "the stage is full"

CLEANING_SECONDS = 10.0
_ENTRIES, _BUNDLE = "entries", "bundle.sqsh"
_BLOCK = 4096  # bytes; what a small file takes on a disk


class LimitReached(Exception):  # never leaves the harvest
    """A limit is reached: the harvest copies no more, and keeps what it has. The argument says which."""

    @property
    def reason(self) -> str:
        """The limit, in a fixed vocabulary."""
        return str(self.args[0])


class Stage:
    """One harvest's stage; `made` makes it."""

    def __init__(self, path: str, fd: int, space: Reservation) -> None:
        """`fd` is a descriptor of `entries/` in the directory `path`; `space` is what is reserved for it."""
        self.fd = fd
        self._path = path
        self._made: set[str] = {""}
        self._space = space
        self._copied = 0  # bytes; as many more are reserved, for a bundle of the files

    def copy_in(self, source: int, path: str, deadline: Deadline) -> File:
        """Copy an open file to `path`; return its size, hash and mtime. Holes stay holes.

        Raises `TurnedAway` if it is unreadable or changes, `LimitReached` at the deadline or if there is no room, and
        `OSError` if the stage fails.
        """
        try:
            self._make_parents(posixpath.dirname(path))
            # 0644 regardless of the umask: the validator reads the files as "others". The stage is in a 0700 directory.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            out = os.open(path, flags, 0o600, dir_fd=self.fd)
            try:
                return self._written(source, out, deadline)
            except BaseException:
                self.discard([path])
                raise
            finally:
                os.close(out)
        except OSError as error:
            if error.errno in FULL:
                raise LimitReached(STAGE_FULL) from None
            raise

    def _written(self, source: int, out: int, deadline: Deadline) -> File:
        from warmstart.host.copying import ReadFailed, copy_data  # most epilogs find nothing new

        def watch(more: int) -> None:
            if deadline.expired():
                raise LimitReached(OUT_OF_TIME)
            self._reserve(more)

        before = os.fstat(source)
        try:
            copied = copy_data(source, out, before.st_size, watch)
        except ReadFailed as error:
            raise TurnedAway(UNREADABLE) from error
        if copied.size != before.st_size or _state(os.fstat(source)) != _state(before):
            raise TurnedAway(CHANGED)
        mtime_ns = min(max(before.st_mtime_ns, 0), LATEST_NS)
        os.fchmod(out, 0o644)
        os.utime(out, ns=(mtime_ns, mtime_ns))
        return File(before.st_size, copied.sha256, mtime_ns)

    def _reserve(self, more: int) -> None:
        """Reserve space for `more` bytes that are about to be written, and for the bundle."""
        more = -(-more // _BLOCK) * _BLOCK
        self._space.hold(max(self._space.size, self._copied + 2 * more))
        self._space.hold(self._space.size - more)
        self._copied += more

    def discard(self, paths: Collection[str]) -> None:
        """Remove copied files, and directories that are then empty."""
        for path in paths:
            os.unlink(path, dir_fd=self.fd)
        for folder in {posixpath.dirname(path) for path in paths}:
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a directory and its parents as long as they are empty."""
        while folder:
            try:
                os.rmdir(folder, dir_fd=self.fd)
            except OSError:  # it has files of other entries, or is already gone
                return
            self._made.discard(folder)
            folder = posixpath.dirname(folder)

    def _make_parents(self, folder: str) -> None:
        if folder in self._made:
            return
        self._make_parents(posixpath.dirname(folder))
        os.mkdir(folder, 0o755, dir_fd=self.fd)
        os.chmod(folder, 0o755, dir_fd=self.fd)  # whatever the umask is
        self._made.add(folder)

    @contextmanager
    def packed(self, deadline: Deadline) -> Iterator[int]:
        """Yield, for a `with`, a descriptor of a bundle of all that is staged.

        Raises `DiskFailed`, and `LimitReached` at the deadline.
        """
        from warmstart.harvest.pack import pack
        from warmstart.host.process import ProgramTooSlow

        bundle = f"{self._path}/{_BUNDLE}"
        try:
            squashfs = pack(f"{self._path}/{_ENTRIES}", bundle, deadline, self._space.while_written(bundle))
        except ProgramTooSlow:
            raise LimitReached(OUT_OF_TIME) from None
        self._space.hold(0)
        with closing(squashfs):
            yield squashfs


def _state(status: os.stat_result) -> tuple[int, ...]:
    # ctime is compared, too, because the owner can set mtime back.
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink, status.st_uid)


@contextmanager
def made(directory: str, name: str, failures: list[WarmstartError]) -> Iterator[Stage]:
    """Make a stage for a `with`, in place of what a killed process left of that name; it is removed then.

    Raises `OSError`, with `ETIME` if removing what was left takes too long. If the stage cannot be removed, `failures`
    get that.
    """
    path = f"{directory}/{name}"
    ensure_dir(directory, 0o700)
    with opened_dir(directory) as parent:
        remove_tree(parent, name, after(CLEANING_SECONDS))
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            os.mkdir(f"{name}/{_ENTRIES}", 0o755, dir_fd=parent)
            with opened_dir(f"{name}/{_ENTRIES}", parent) as fd, Reservation(fd) as space:
                os.fchmod(fd, 0o755)  # whatever the umask is
                yield Stage(path, fd, space)
        finally:
            try:
                remove_tree(parent, name, after(CLEANING_SECONDS))
            except OSError as error:
                problem = f"could not be removed: {error.strerror or error}"
                failures.append(DiskFailed(what=path, problem=problem))
