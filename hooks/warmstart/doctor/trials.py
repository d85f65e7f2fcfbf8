"""Trials of what kernel and accounts let jobs do on this node: seeding as a prolog does it, and a job's own rights.

A process in a mount namespace of its own does what a prolog does, in a directory of the workspaces' parent, or where
the first prolog makes that. When it ends, the kernel removes the namespace with its mounts and loop devices. If doctor
is killed, its next run removes the directory.

Root passes by modes and mount options that stop everybody else. So a node looks sound, and each job on it fails: what a
job's user does is tried as an account that has no rights of its own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from warmstart.doctor import permissions
from warmstart.doctor.finding import ADVICE, AS_ROOT, CRITICAL, OK, SKIP, UNKNOWN, WRONG, Finding, check
from warmstart.doctor.node import Node, existing, is_full
from warmstart.errors import WarmstartError
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, weakness
from warmstart.host.identity import ROOT, Identity
from warmstart.host.namespaces import enter_new, mount_of
from warmstart.host.remove import remove_tree
from warmstart.host.worker import Worker
from warmstart.images.store.layout import IMAGE, IMAGES
from warmstart.seed import overlay

NOT_TRIED = Finding(UNKNOWN, "not tried: it takes root", AS_ROOT)
PREFIX = ".doctor-"
SECONDS = 20.0
MAP = "seeded files appear as the job's own"
NO_MAP = "this kernel cannot map ids there, so seeded files appear as root's, mode 0666 (docs/reference/profiles.md)"
LOAD = "load the modules overlay, squashfs and loop (/dev/loop-control)"
DENIED = "this container may not open loop devices or make nodes of them: run it privileged"
VOLUME = "put paths.workspace on a volume: an overlay, as a container's root is, cannot hold another one's upper layer"
SOMEBODY = Identity("a job's user", 65534, 65534)  # nobody: in no group that a site gives rights
OPEN = stat.S_IROTH | stat.S_IXOTH
PROGRAMS = ("task-prolog", "pyxis-importer")  # that run as the job's user

_Subject = TypeVar("_Subject")


class _Shown(NamedTuple):
    """Why the sample job sees no bundle ("" if it does), whether ids are mapped, and what to change."""

    problem: str
    mapped: bool
    change: str = LOAD


class Refused(NamedTuple):
    """What keeps this process from a file, and its mode and group."""

    path: str
    mode: int
    gid: int


@check("node.seeding")
def seeding(node: Node) -> Iterator[Finding]:
    """Seed a sample job: mount one bundle and build one overlay on it."""
    parent = existing(node.policy.paths.workspace)
    if (untried := _why_untried(parent)) is not None:
        yield untried
        return
    with _trial_directory(parent) as name:
        shown = Worker(ROOT, f"a trial in {parent}").run(after(SECONDS), _show, parent, name)
    if shown.problem:
        found = f"cannot show bundles through an overlay ({shown.problem}): they are extracted, so jobs start later"
        yield Finding(ADVICE, found, shown.change)
    else:
        yield Finding(OK, f"jobs see bundles through an overlay; {MAP if shown.mapped else NO_MAP}")


@check("job.access", critical=True)
def access(node: Node) -> Iterator[Finding]:
    """Try as a job's user to run programs and to read images, and in a workspace what a job does with its cache."""
    if os.geteuid() != 0:
        yield NOT_TRIED
        return
    programs = [f"{node.installation.libexec}/{name}" for name in PROGRAMS]
    yield from _tried(refused_program, programs, CRITICAL, "run the task prolog and pyxis-importer", "every task fails")
    yield from _tried(refused_image, node.policy.paths.store, WRONG, "read images", "jobs with an image fail")
    path = existing(node.policy.paths.workspace)
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        found = f"{path} is mounted noexec: jobs can load no library that they or others have compiled"
        yield Finding(WRONG, found, f"mount it with exec (findmnt -T {path}), or choose another paths.workspace")
    elif _why_untried(path) is None:
        with _trial_directory(path) as name:
            os.chmod(f"{path}/{name}", 0o711)
            program = f"{path}/{name}/program"
            os.close(os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755))
            os.chmod(program, 0o755)
            yield from _tried(refused_program, [program], WRONG, "use its workspace", "jobs run cold")


def _why_untried(path: str) -> Finding | None:
    """Return why nothing can be tried in a directory, None if it can; `SKIP` where other checks say what is wrong."""
    if os.geteuid() != 0:
        return NOT_TRIED
    return SKIP if weakness(os.stat(path), sticky=True) or is_full(os.statvfs(path)) else None


def _tried(
    function: Callable[[_Subject], Refused | None], subject: _Subject, status: str, what: str, outcome: str
) -> Iterator[Finding]:
    refused = Worker(SOMEBODY).run(after(SECONDS), function, subject)
    if refused is None:
        return
    if refused.mode & stat.S_IXGRP:
        change = f"check that all users of jobs are in that group, or `chmod o+rX {refused.path}`"
        yield Finding(ADVICE, f"only members of group {refused.gid} can {what} ({refused.path})", change)
    else:
        found = f"a job's user cannot {what}: {refused.path} has mode {refused.mode:04o}"
        change = f"`chmod o+rX {refused.path}`"
        if refused.mode & OPEN == OPEN:
            found, change = f"{found}, and is mounted noexec", f"mount it with exec (findmnt -T {refused.path})"
        yield Finding(status, f"{found}; {outcome}", change)


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
        list(permissions.resolved(path))
    except PermissionError as error:
        return _refused_at(os.path.dirname(error.filename))
    return None


def _refused_at(path: str) -> Refused:
    status = os.stat(path)
    return Refused(path, stat.S_IMODE(status.st_mode), status.st_gid)


@contextmanager
def _trial_directory(parent: str) -> Iterator[str]:
    """Make a directory for a `with` block and yield its name. Removes those of doctors that were killed."""
    with opened_dir(parent) as fd:
        for left in os.listdir(fd):
            if left.startswith(PREFIX) and not os.path.exists(f"/proc/{left.removeprefix(PREFIX)}"):
                remove_tree(fd, left, after(SECONDS))
        name = f"{PREFIX}{os.getpid()}"
        remove_tree(fd, name, after(SECONDS))
        os.mkdir(name, 0o700, dir_fd=fd)
        try:
            yield name
        finally:
            remove_tree(fd, name, after(SECONDS))


def _show(parent: str, name: str) -> _Shown:
    """Pack a bundle, mount it and show it as a job's cache."""
    from warmstart.seed import node_cache

    enter_new()
    base = f"{parent}/{name}"
    for folder in ("entries", "bundles", "cache", "cache/x"):
        os.mkdir(f"{base}/{folder}", 0o700)
    with opened_dir(base) as run:
        try:
            bundle = f"{base}/bundles/one.sqsh"
            os.close(pack(f"{base}/entries", bundle, after(SECONDS)))
            layers = node_cache.mounted(f"{base}/layers", [bundle], after(SECONDS))
            with overlay.job_ids(Identity("nobody", 65534, 65534)) as nobody:
                mapped = overlay.show(run, "x", layers, [], nobody)
        except WarmstartError as error:
            return _Shown(str(error), mapped=False, change=VOLUME if mount_of(base).kind == "overlay" else LOAD)
        except OSError as error:
            is_denied = error.errno == errno.EPERM
            return _Shown(error.strerror or str(error), mapped=False, change=DENIED if is_denied else LOAD)
    return _Shown("", mapped)


CHECKS = (seeding, access)
