"""An image that a step's user imports for himself: as himself, for that job, on that node.

The pyxis importer does this with what the store does not have. Nothing here runs as root, root never reads it, and
nothing of it gets into the store: user bytes are never promoted (threats, rows 1 and 2). Where images go:

    <workspace>/<node>/<jobid>.<run>/tmp/warmstart-images/   gone with the job; its later steps find them
    /var/tmp/warmstart-images-<uid>/                         for a job without a workspace; `release` removes them

enroot may use the user's own credentials: it gets them as a copy in a directory of this import (a shared
~/.config/enroot races), and evaluates what they say as the user whose text it is.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import ResourceError, StoreError
from warmstart.host import files, process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, REGULAR, opened_dir, read_small, remove_tree, write_all
from warmstart.images.importers.base import Importer
from warmstart.images.layout import IMAGE, key_of, what_is_wrong
from warmstart.images.reference import Reference
from warmstart.images.scratch import Scratch, disk_errors
from warmstart.images.served import FOLDER
from warmstart.images.sized import Caps
from warmstart.images.squashfs import ImageInvalid

FALLBACK = "/var/tmp"
LONGEST_CREDENTIALS = 1 << 16
REMOVAL_S = 60.0
PAUSE_S = 0.2


class UserImportUnusable(ResourceError):
    """There is no place on this node that is the user's alone."""

    code = "user-import-unusable"
    template = "no place for an image of your own: {path} {problem}"
    hint = "remove it, or submit the job where warmstart gives it a workspace"


class UserImportBusy(StoreError):
    """Another step of the same user imports the same image, and is not done yet."""

    code = "user-import-busy"
    template = "image {image}: another step of yours still imports it on this node"
    hint = "submit the job again when that is done"


class UserImportDirectory(NamedTuple):
    """A directory of the user's, and what his files in it begin with ("" where the directory is the job's own)."""

    directory: str
    prefix: str
    caps: Caps  # of one import


def user_import_directory(job_tmp: str, step: str, caps: Caps) -> UserImportDirectory:
    """Return where a job's own images go: below `job_tmp`, its workspace's, or if that is "", below /var/tmp.

    `step` (`JOB.STEP`) tells one step's files from another's there. Raises `OwnScopeUnusable`.
    """
    if job_tmp and _is_mine(job_tmp):
        return UserImportDirectory(_made(f"{job_tmp}/{FOLDER}"), "", caps)
    return UserImportDirectory(_made(f"{FALLBACK}/{FOLDER}-{os.getuid()}"), f"{step}.", caps)


def obtain(reference: Reference, where: UserImportDirectory, importer: Importer, login: str, deadline: Deadline) -> str:
    """Return the path of the user's own image, imported now unless another step of the job has done that.

    `login`: the user name in a `docker://USER@…` reference, "" if there was none. Raises what importers raise.
    """
    name = f"{where.prefix}{key_of(reference.canonical())}"
    path = f"{where.directory}/{name}{IMAGE}"
    with disk_errors(where.directory), opened_dir(where.directory) as directory:
        if _is_whole(directory, name + IMAGE):
            return path
        with alone(directory, name, reference, deadline):
            if not _is_whole(directory, name + IMAGE):
                with _scratch(where, directory) as work:
                    _offer_credentials(work, login)
                    # enroot resolves by itself, with the user's credentials; skopeo is given a digest.
                    digest = reference.digest
                    if not digest and importer.name != "enroot":
                        digest = importer.resolve(reference, work, deadline)
                    result = importer.import_image(reference, digest, work, deadline)
                    _check(work.fd, result)
                    os.chmod(result, 0o600, dir_fd=work.fd)
                    os.rename(result, name + IMAGE, src_dir_fd=work.fd, dst_dir_fd=directory)
    return path


def copied(reference: Reference, where: UserImportDirectory, source: str, deadline: Deadline) -> str:
    """Return the path of the user's own copy of an image that the store may lose; "" if that can't be had."""
    name = f"{where.prefix}{key_of(reference.canonical())}{IMAGE}"
    try:
        with opened_dir(where.directory) as directory, alone(directory, name, reference, deadline):
            if not _is_whole(directory, name):
                with _scratch(where, directory) as work:
                    shutil.copyfile(source, f"{work.path}/{name}")
                    _check(work.fd, name)
                    os.chmod(name, 0o600, dir_fd=work.fd)
                    os.rename(name, name, src_dir_fd=work.fd, dst_dir_fd=directory)
    except (OSError, ImageInvalid):  # evicted in mid-copy, or no space here: the import says which
        return ""
    return f"{where.directory}/{name}"


def handed_over(job_tmp: str, reference: Reference) -> str:
    """Return the job's own copy of a private image that the prolog has fetched for it (private.py), or ""."""
    path = f"{os.path.dirname(job_tmp)}/{key_of(reference.canonical())}{IMAGE}"  # in a directory that he can't list
    try:
        return path if job_tmp and _is_whole(None, path) else ""
    except OSError:
        return ""


def release(step: str) -> None:
    """Remove what a step has in /var/tmp; nothing there is fine, and so is a second time."""
    try:
        with opened_dir(f"{FALLBACK}/{FOLDER}-{os.getuid()}") as directory:
            for name in os.listdir(directory):
                if name.startswith(f"{step}."):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


def _is_mine(path: str) -> bool:
    try:
        with opened_dir(path) as fd:
            return os.fstat(fd).st_uid == os.getuid()
    except OSError:
        return False


def _made(path: str) -> str:
    with disk_errors(path), suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        with opened_dir(path) as fd:
            status = os.fstat(fd)
    except OSError as error:
        raise UserImportUnusable(path=path, problem=f"is no directory ({error.strerror})") from error
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserImportUnusable(path=path, problem="is not yours alone")
    return path


@contextmanager
def alone(directory: int, name: str, reference: Reference, deadline: Deadline) -> Iterator[None]:
    """Hold the lock of one image; it saves work, and is released with its process."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(f"{name}.lock", flags, 0o600, dir_fd=directory)
    try:
        if not files.take(fd, deadline, PAUSE_S):
            raise UserImportBusy(image=reference.canonical())
        yield
    finally:
        os.close(fd)


@contextmanager
def _scratch(where: UserImportDirectory, directory: int) -> Iterator[Scratch]:
    made = tempfile.mkdtemp(prefix=".import-", dir=where.directory)
    fd = os.open(made, DIRECTORY)
    try:
        yield Scratch(made, fd, where.caps)
    finally:
        os.close(fd)
        # A root file system has directories that its owner may not write in.
        process.run(["/bin/chmod", "-R", "u+rwX", "--", made], deadline=after(REMOVAL_S))
        with suppress(OSError):
            remove_tree(directory, os.path.basename(made), after(REMOVAL_S))


def _offer_credentials(work: Scratch, login: str) -> None:
    """Copy the user's own enroot credentials to where this import's enroot looks; `login`'s first: it takes those."""
    import pwd

    home = pwd.getpwuid(os.getuid()).pw_dir
    own = os.environ.get("ENROOT_CONFIG_PATH") or f"{home}/.config/enroot"
    try:
        with opened_dir(own) as directory:
            text = read_small(".credentials", LONGEST_CREDENTIALS, directory)
    except OSError:
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


def _is_whole(directory: int | None, name: str) -> bool:
    try:
        _check(directory, name)
    except (ImageInvalid, FileNotFoundError):
        return False
    return True


def _check(directory: int | None, name: str) -> None:
    fd = os.open(name, REGULAR, dir_fd=directory)
    try:
        problem = what_is_wrong(fd, os.fstat(fd))
    finally:
        os.close(fd)
    if problem:
        raise ImageInvalid(problem=problem)
