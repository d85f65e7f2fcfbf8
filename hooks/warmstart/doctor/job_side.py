"""Checks of what a job's user must be able to do on this node, tried as an account that has no rights of its own.

Root passes by modes and mount options that stop everybody else. So a node looks sound, and each job on it fails.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

from warmstart.doctor import probe
from warmstart.doctor.finding import ADVICE, AS_ROOT, CRITICAL, OK, UNKNOWN, WRONG, Finding
from warmstart.doctor.kernel import trial_directory
from warmstart.doctor.node import Node, existing, why_untried
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images.store.layout import IMAGE, IMAGES

SOMEBODY = Identity("a job's user", 65534, 65534)  # nobody: in no group that a site gives rights
SECONDS = 10.0
OPEN = stat.S_IROTH | stat.S_IXOTH
PROGRAMS = ("task-prolog", "pyxis-importer")  # that run as the job's user

_Subject = TypeVar("_Subject")


class Refused(NamedTuple):
    """What keeps this process from a file, and its mode and group."""

    path: str
    mode: int
    gid: int


def programs(node: Node) -> Iterator[Finding]:
    """Check that a user can run the programs that Slurm and pyxis start as the user."""
    paths = [f"{node.installation.libexec}/{name}" for name in PROGRAMS]
    yield from _tried(refused_program, paths, CRITICAL, "run the task prolog and pyxis-importer", "every task fails")


def images(node: Node) -> Iterator[Finding]:
    """Check that a user can read the store's images: jobs open them themselves."""
    yield from _tried(refused_image, node.policy.paths.store, WRONG, "read images", "jobs with an image fail")


def _tried(
    function: Callable[[_Subject], Refused | None], subject: _Subject, status: str, what: str, outcome: str
) -> Iterator[Finding]:
    if os.geteuid() != 0:
        yield Finding(UNKNOWN, f"whether a job's user can {what}", AS_ROOT)
        return
    with Worker(SOMEBODY, rooms=(__name__,)) as worker:
        refused = worker.run(after(SECONDS), function, subject)
    if refused is None:
        yield Finding(OK, f"a job's user can {what}")
    elif refused.mode & stat.S_IXGRP:
        change = f"check that all users of jobs are in that group, or `chmod o+rX {refused.path}`"
        yield Finding(ADVICE, f"only members of group {refused.gid} can {what} ({refused.path})", change)
    else:
        found = f"a job's user cannot {what}: {refused.path} has mode {refused.mode:04o}"
        change = f"`chmod o+rX {refused.path}`"
        if refused.mode & OPEN == OPEN:
            found, change = f"{found}, and is mounted noexec", f"mount it with exec (findmnt -T {refused.path})"
        yield Finding(status, f"{found}; {outcome}", change)


def execution(node: Node) -> Iterator[Finding]:
    """Try what is in a workspace as a job does: caches hold libraries, and TMPDIR programs."""
    path = existing(node.policy.paths.workspace)
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        found = f"{path} is mounted noexec: jobs can load no library that they or others have compiled"
        yield Finding(WRONG, found, f"mount it with exec (findmnt -T {path}), or choose another paths.workspace")
    elif (untried := why_untried(path)) is not None:
        yield from untried
    else:
        with trial_directory(path) as name:
            os.chmod(f"{path}/{name}", 0o711)
            program = f"{path}/{name}/program"
            os.close(os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755))
            os.chmod(program, 0o755)
            yield from _tried(refused_program, [program], WRONG, "use its workspace", "jobs run cold")


def refused_program(paths: list[str]) -> Refused | None:
    """Return why this process cannot run one of the programs; they are scripts, so it has to read them as well."""
    for path in paths:
        if refused := _refused_on_the_way(path):
            return refused
        if os.path.lexists(path) and not os.access(path, os.R_OK | os.X_OK):
            return _refused_at(path)
    return None


def refused_image(store: str) -> Refused | None:
    """Return why this process cannot read an image of the store, or could not if there were one."""
    directory = os.path.join(store, IMAGES)
    if refused := _refused_on_the_way(f"{directory}/x"):
        return refused
    with suppress(FileNotFoundError), os.scandir(directory) as found:  # no image yet, or just evicted
        image = next((entry.path for entry in found if entry.name.endswith(IMAGE)), directory)
        if not os.access(image, os.R_OK):
            return _refused_at(image)
    return None


def _refused_on_the_way(path: str) -> Refused | None:
    try:
        probe.above(path)
    except PermissionError as error:
        return _refused_at(os.path.dirname(error.filename))
    except FileNotFoundError:
        pass
    return None


def _refused_at(path: str) -> Refused:
    status = os.stat(path)
    return Refused(path, stat.S_IMODE(status.st_mode), status.st_gid)


CHECKS = {
    "job.programs": programs,
    "job.images": images,
    "job.execution": execution,
}
