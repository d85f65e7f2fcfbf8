"""Imports of images that the store lacks, by and for the user of a step. Runs as that user.

The pyxis importer uses this module. Nothing here runs as root, root never reads the result, and none of it reaches the
store. The images are in

    <workspace>/<jobid>.<restarts>/tmp/warmstart-images/   removed with the job; its later steps find them
    /var/tmp/warmstart-images-<uid>-<job>.<step>-<random>/   for a job without a workspace; `release` removes it
    /var/tmp/warmstart-step-<uid>-<step>-<random>/           a plain import: removed by `release`

Anybody can take a name in /var/tmp, so the directories there have one that nobody can guess. Their user finds them
again by looking for directories that only the user can enter (docs/threats.md, row 34).

enroot may use the user's own credentials. It gets a copy in a directory of its own, because concurrent imports would
race in ~/.config/enroot. It evaluates the copy as the user who wrote it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.host import files, process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, REGULAR, opened_dir, read_small, write_all
from warmstart.host.remove import remove_tree
from warmstart.images.importers.base import Importer, ImportFailed
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.notes import FOLDER, NOTE
from warmstart.images.reference import Reference
from warmstart.images.scratch import Caps, Scratch, ScratchUnusable, disk_errors
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store.layout import IMAGE, key_of, superblock_problem

FALLBACK = "/var/tmp"
LONGEST_CREDENTIALS = 1 << 16  # bytes
REMOVAL_S = 60.0
PAUSE_S = 0.2
PLAIN = "image.sqsh"
STEPS = ".steps"
COLD = ".cold"


class Directory(NamedTuple):
    """The directory of a user's own images."""

    path: str
    caps: Caps  # of one import


class Made(NamedTuple):
    """An image that somebody has made for a step, and the caches that its container has."""

    path: str
    caches: str | None = None  # their key (`state.Caches`); None: none of the job's
    text: str = ""  # what the step is told
    more: bool = False  # root may have more for the step than that


def directory_of(job_tmp: str, step: str, caps: Caps) -> Directory:
    """Return the directory of a job's own images, created if missing: in its workspace, or else in /var/tmp.

    `job_tmp` is `tmp/` in the job's workspace, "" if there is none. In /var/tmp each `step` (`JOB.STEP`) has its own.
    Raises `ScratchUnusable`.
    """
    if job_tmp and _is_own_directory(job_tmp):
        return Directory(_ensure_own_directory(f"{job_tmp}/{FOLDER}"), caps)
    prefix = _fallback_prefix(step)
    with disk_errors(FALLBACK):
        path = min(_own_directories(prefix), default="") or tempfile.mkdtemp(prefix=prefix, dir=FALLBACK)
    return Directory(path, caps)


def note_use(job_tmp: str, name: str) -> None:
    """Leave a note that this job uses an image of the store (`images.notes`). Raises `OSError`."""
    _leave(f"{job_tmp}/{FOLDER}", NOTE + name)


def _leave(folder: str, note: str, text: str = "") -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    with opened_dir(folder) as fd:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(note, flags, 0o600, dir_fd=fd)
        try:
            write_all(file, f"{text}\n".encode() if text else b"")
        finally:
            os.close(file)


def note_other(cache: str, step: str, caches: str | None) -> None:
    """Leave a note that the container of a step is not of the image that the job's first caches belong to.

    `cache` is that of the job's run: scripts empty TMPDIR, and then a container that is used again would have the job's
    first caches. `step` is the step's number, `caches` the key of those that it has, if any; enroot's hook
    (packaging/enroot) reads the note. Raises `OSError`.
    """
    _leave(f"{cache}/{STEPS}", step if step.isascii() and step.isdecimal() else "none", caches or "")


def note_cold(job_tmp: str, text: str) -> None:
    """Leave what the SPANK plugin tells the job (packaging/spank), unless an earlier step has. Raises `OSError`."""
    path = f"{job_tmp}/{FOLDER}/{COLD}"
    if not os.path.lexists(path):
        _leave(f"{job_tmp}/{FOLDER}", f"{COLD}-{os.getpid()}", text)
        os.rename(f"{path}-{os.getpid()}", path)  # whole at once: a task of another step may read it


def obtain(reference: Reference, directory: Directory, importer: Importer, login: str, deadline: Deadline) -> str:
    """Return the path of the user's own image; import it unless another step of the job has done so.

    `login` is the user name of a `docker://USER@…` reference, "" if it has none. Raises `ImageWaitExpired`,
    `ImageInvalid`, `ScratchUnusable`, `FileSystemBroken`, and the errors of importers.
    """
    name = key_of(reference.canonical())
    path = f"{directory.path}/{name}{IMAGE}"
    with disk_errors(directory.path), opened_dir(directory.path) as folder:
        if _is_whole(folder, name + IMAGE):
            return path
        with image_lock(folder, name, reference, deadline):
            if not _is_whole(folder, name + IMAGE):
                with _scratch(directory, folder) as work:
                    _offer_credentials(work, login)
                    # enroot resolves the tag itself, with the user's credentials; skopeo needs a digest.
                    digest = reference.digest
                    if not digest and importer.name != "enroot":
                        digest = importer.resolve(reference, work, deadline)
                    result = importer.import_image(reference, digest, work, deadline)
                    _install(work, result, folder, name + IMAGE)
    return path


def copied(reference: Reference, directory: Directory, source: str, deadline: Deadline) -> str:
    """Copy an image that the store may evict; return the path of the user's copy, "" if copying fails."""
    name = f"{key_of(reference.canonical())}{IMAGE}"
    try:
        with opened_dir(directory.path) as folder, image_lock(folder, name, reference, deadline):
            if not _is_whole(folder, name):
                with _scratch(directory, folder) as work:
                    shutil.copyfile(source, f"{work.path}/{name}")
                    _install(work, name, folder, name)
    except (OSError, ImageInvalid):  # evicted during the copy, or no space here: the import that follows reports it
        return ""
    return f"{directory.path}/{name}"


def handed_over(job_tmp: str, reference: Reference) -> str:
    """Return the path of the job's copy of a private image that the prolog made (private.py); "" if there is none."""
    path = f"{os.path.dirname(job_tmp)}/{key_of(reference.canonical())}{IMAGE}"  # the user cannot list that directory
    try:
        return path if job_tmp and _is_whole(None, path) else ""
    except OSError:
        return ""


def plain(uri: str, step: str, deadline: Deadline) -> str:
    """Import as pyxis does without an importer: `enroot import`, with the user's own settings. Return the path.

    Raises `ImportFailed` with enroot's last words, `ScratchUnusable`, `ProgramMissing` and `ProgramTooSlow`.
    """
    from warmstart.images.importers import enroot

    with disk_errors(FALLBACK):
        directory = tempfile.mkdtemp(prefix=_plain_prefix(step), dir=FALLBACK)
    path = f"{directory}/{PLAIN}"
    argv = [enroot.PROGRAM, "import", "--output", path, uri]
    completed = process.run(argv, deadline=deadline, env=os.environ)
    if completed.status != 0:
        raise ImportFailed(image=uri, program="enroot", problem=completed.complaint())
    return path


def release(step: str) -> None:
    """Remove a step's images from /var/tmp, if any; a second call does nothing."""
    with opened_dir(FALLBACK) as parent:
        for path in (*_own_directories(_fallback_prefix(step)), *_own_directories(_plain_prefix(step))):
            with suppress(FileNotFoundError):
                remove_tree(parent, os.path.basename(path), after(REMOVAL_S))


def _own_directories(prefix: str) -> Iterator[str]:
    """Yield the directories below /var/tmp that are the user's alone; two nodes of one host may make two for a step."""
    with os.scandir(FALLBACK) as listing:  # others make as many names there as they like
        for entry in listing:
            if entry.name.startswith(prefix) and _is_own_private(entry.path):
                yield entry.path


def _fallback_prefix(step: str) -> str:
    return f"{FOLDER}-{os.getuid()}-{step}-"


def _plain_prefix(step: str) -> str:
    return f"warmstart-step-{os.getuid()}-{step}-"


def _is_own_private(path: str) -> bool:
    try:
        with opened_dir(path) as fd:
            return _is_private(os.fstat(fd))
    except OSError:  # another user's, or no directory
        return False


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _is_own_directory(path: str) -> bool:
    try:
        with opened_dir(path) as fd:
            return os.fstat(fd).st_uid == os.getuid()
    except OSError:
        return False


def _ensure_own_directory(path: str) -> str:
    with disk_errors(path), suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        with opened_dir(path) as fd:
            status = os.fstat(fd)
    except OSError as error:
        raise ScratchUnusable(path=path, problem=f"it is no directory, remove it ({error.strerror})") from error
    if not _is_private(status):
        raise ScratchUnusable(path=path, problem="it is not yours alone, remove it")
    return path


@contextmanager
def image_lock(folder: int, name: str, reference: Reference, deadline: Deadline) -> Iterator[None]:
    """Hold the lock of one image, which only saves work; `ImageWaitExpired` at the deadline.

    The kernel releases it when the process ends.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(f"{name}.lock", flags, 0o600, dir_fd=folder)
    try:
        began = time.monotonic()
        if not files.wait_flock(fd, deadline, PAUSE_S):
            waited_s, producer = round(time.monotonic() - began), "another step of yours imports it on this node"
            raise ImageWaitExpired(image=reference.canonical(), waited_s=waited_s, producer=producer)
        yield
    finally:
        os.close(fd)


@contextmanager
def _scratch(directory: Directory, folder: int) -> Iterator[Scratch]:
    made = tempfile.mkdtemp(prefix=".import-", dir=directory.path)
    fd = os.open(made, DIRECTORY)
    try:
        yield Scratch(made, fd, directory.caps)
    finally:
        os.close(fd)
        # An unpacked image has directories that their owner may not write.
        process.run(["/bin/chmod", "-R", "u+rwX", "--", made], deadline=after(REMOVAL_S))
        with suppress(OSError):
            remove_tree(folder, os.path.basename(made), after(REMOVAL_S))


def credentials() -> bytes:
    """Return the user's credentials of enroot's, b"" if there are none."""
    import pwd

    try:
        own = os.environ.get("ENROOT_CONFIG_PATH") or f"{pwd.getpwuid(os.getuid()).pw_dir}/.config/enroot"
        with opened_dir(own) as folder:
            return read_small(".credentials", LONGEST_CREDENTIALS, folder)
    except (OSError, KeyError):
        return b""


def _offer_credentials(work: Scratch, login: str) -> None:
    """Copy the user's enroot credentials to this import's directory, with those of `login` first: enroot uses these."""
    text = credentials()
    if not text:
        return
    lines = text.splitlines(keepends=True)
    lines.sort(key=lambda line: not (login and login.encode() in line.split()))
    os.mkdir("config", 0o700, dir_fd=work.fd)
    with opened_dir("config", work.fd) as config:
        fd = os.open(".credentials", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=config)
        try:
            write_all(fd, b"".join(lines))
        finally:
            os.close(fd)


def _install(work: Scratch, result: str, folder: int, name: str) -> None:
    _check(work.fd, result)
    os.chmod(result, 0o600, dir_fd=work.fd)
    os.rename(result, name, src_dir_fd=work.fd, dst_dir_fd=folder)


def _is_whole(folder: int | None, name: str) -> bool:
    try:
        _check(folder, name)
    except (ImageInvalid, FileNotFoundError):
        return False
    return True


def _check(folder: int | None, name: str) -> None:
    fd = os.open(name, REGULAR, dir_fd=folder)
    try:
        problem = superblock_problem(fd, os.fstat(fd))
    finally:
        os.close(fd)
    if problem:
        raise ImageInvalid(problem=problem)
