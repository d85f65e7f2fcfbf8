"""Operations on a model with the rights of the user who names it; and root's copying, in a child that may hang.

The user's own processes can stop and kill the first ones, but not trace them. Whatever they say, root copies only what
is open at the path that they name, below the policy's prefixes. Root itself may not even look at it (`root_squash`).
"""

from __future__ import annotations

import os
import time

from warmstart.caches.store.layout import is_sha256
from warmstart.host.copying import seek
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import write_all
from warmstart.host.identity import ROOT, Identity, surrender
from warmstart.host.space import give_back
from warmstart.host.worker import Worker
from warmstart.lean import TYPE_CHECKING, partial, sha256
from warmstart.policy.shared import is_below
from warmstart.wings.models import look as looking
from warmstart.wings.models.look import MOST_FILES, Look, ModelFile, ModelUnusable

if TYPE_CHECKING:
    from socket import socket

RECEIVE_S = 5.0  # what was sent is there
LONGEST_S = 3600.0  # for one file: others wait meanwhile
PACE_S = 60.0  # after which a file's pace tells whether that is enough
_BLOCK = 8 << 20  # bytes; after so many they go to the disk, and out of the page cache
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class ModelClient:
    """A model as its user sees it."""

    def __init__(self, user: Identity, model: str, channel: int = -1) -> None:
        """Work with a user's rights on the model at a path; `opened` needs a `channel`, one end of a socketpair."""
        self._model = model
        self._channel = channel
        groups = os.getgrouplist(user.name, user.gid)
        keep = (channel,) if channel >= 0 else ()
        self._worker = Worker(user, f"the file system of {model}", keep, partial(surrender, groups=groups))

    def look(self, prefixes: tuple[str, ...], deadline: Deadline) -> Look:
        """Return the model as it is now. Raises `ModelUnusable`, or `WorkerSilent` where its file system hangs."""
        seen = self._worker.run(deadline, looking.look, self._model, list(prefixes))
        paths = [seen.path, *(file.path for file in seen.files)]
        is_whole = 0 < len(seen.files) <= MOST_FILES and all(file.size >= 0 for file in seen.files)
        is_named = all(not file.sha256 or is_sha256(file.sha256) for file in seen.files)
        is_known = all(file.identity.replace(" ", "").isdecimal() for file in seen.files)
        if not all(is_below(path, prefixes) for path in paths):
            raise ModelUnusable(model=self._model, problem="it leads to what may be no model")
        if not (is_whole and is_named and is_known and all(map(_is_plain, (*paths, *seen.left_out)))):
            raise ModelUnusable(model=self._model, problem="it is said to have other files than a model can have")
        return seen

    def opened(self, file: ModelFile, other_end: socket, deadline: Deadline) -> int:
        """Return a descriptor of a file that the user has opened for reading. `other_end` is that of the channel.

        Raises `ModelUnusable` if it has changed, `OSError`, and `WorkerSilent`.
        """
        from socket import recv_fds

        self._worker.run(deadline, _send_opened, self._channel, self._model, file)
        other_end.settimeout(RECEIVE_S)
        _, fds, _, _ = recv_fds(other_end, 1, 1)
        fd = fds[0] if fds else -1
        if fd < 0 or os.readlink(f"/proc/self/fd/{fd}") != file.path:
            if fds:
                os.close(fd)
            raise ModelUnusable(model=self._model, problem=f"{file.path} is not what was opened there")
        return fd

    def check(self, file: ModelFile, deadline: Deadline) -> None:
        """Raise `ModelUnusable` if a file has changed. Raises `OSError`, too, and `WorkerSilent`."""
        self._worker.run(deadline, _check, self._model, file)


def copy_in_child(source: int, target: int, size: int, rate: int) -> str:
    """Copy so many bytes of an open file, at most `rate` a second; return their SHA-256. Target -1: only read them.

    They go past the page cache; holes stay holes. Raises `OSError`, also for a file that is too slow or mostly holes,
    and `WorkerSilent`.
    """
    worker = Worker(ROOT, "the file system of a model", tuple(fd for fd in (source, target) if fd >= 0))
    return worker.run(after(LONGEST_S), _copy, source, target, size, rate)


def _is_plain(path: str) -> bool:
    return os.path.normpath(path) == path and path.isprintable()


def _send_opened(channel: int, model: str, file: ModelFile) -> None:
    from socket import send_fds, socket

    fd = os.open(file.path, _READ)
    try:
        _compare(os.fstat(fd), model, file)
        with socket(fileno=os.dup(channel)) as sender:
            send_fds(sender, [b"."], [fd])
    finally:
        os.close(fd)


def _check(model: str, file: ModelFile) -> None:
    _compare(os.stat(file.path, follow_symlinks=False), model, file)


def _compare(found: os.stat_result, model: str, file: ModelFile) -> None:
    if (found.st_size, found.st_mtime_ns, found.st_ino) != (file.size, file.mtime_ns, file.inode):
        raise ModelUnusable(model=model, problem=f"{file.path} has changed")


def _copy(source: int, target: int, size: int, rate: int) -> str:
    digest, began, done, holes = sha256(), time.monotonic(), 0, 0
    while done < size:
        took = time.monotonic() - began
        if took > PACE_S and done / took * LONGEST_S < size:
            raise OSError(None, "too slow to be copied, an hour is not enough for it")
        begin = min(seek(source, done, os.SEEK_DATA, size), size)
        if begin > done:
            holes += begin - done
            if holes > size // 2:
                raise OSError(None, "it consists mostly of holes")
            for offset in range(done, begin, _BLOCK):
                digest.update(bytes(min(_BLOCK, begin - offset)))
            if target >= 0:
                give_back(target, done, begin - done)
                os.lseek(target, begin, os.SEEK_SET)
            done = begin
            continue
        end = min(seek(source, done, os.SEEK_HOLE, size), done + _BLOCK, size)
        data = os.pread(source, end - done, done)
        if not data:
            raise OSError(None, "it has become shorter")
        digest.update(data)
        os.posix_fadvise(source, done, len(data), os.POSIX_FADV_DONTNEED)
        if target >= 0:
            write_all(target, data)
            os.fdatasync(target)
            os.posix_fadvise(target, done, len(data), os.POSIX_FADV_DONTNEED)
        done += len(data)
        time.sleep(max(0.0, began + (done - holes) / rate - time.monotonic()))
    found: str = digest.hexdigest()
    return found
