"""This node's kernel, and what else decides which way things go: each is tried, and the attempt leaves nothing.

A process with a mount namespace of its own does what a prolog does, in a directory of the workspaces' parent. When it
ends the namespace goes, with all its mounts and loop devices; if doctor is killed, its next run removes the directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from warmstart.entry.doctor.finding import ADVICE, AS_ROOT, OK, UNKNOWN, WRONG, Finding
from warmstart.entry.doctor.node import Node
from warmstart.errors import WarmstartError
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree, weakness
from warmstart.host.identity import ROOT, Identity
from warmstart.host.namespaces import enter_new
from warmstart.host.worker import Worker
from warmstart.images import scratch
from warmstart.images.scratch import Caps
from warmstart.profiles import registry
from warmstart.seed import overlay
from warmstart.slurm import commands

PREFIX = ".doctor-"
SECONDS = 20.0
SAMPLE = Caps(size=1 << 20, files=16)
MAP = "its files look like the job's own"
NO_MAP = "this kernel can't map ids there, so its files look like root's, 0666 (docs/seeding.md)"
LOAD = "load overlay, squashfs and loop (/dev/loop-control)"
_Answer = TypeVar("_Answer")


class _Shown(NamedTuple):
    """Why the sample job sees no bundle, "" if it does, and whether its ids are mapped."""

    problem: str
    mapped: bool


def seeding(node: Node) -> Iterator[Finding]:
    """Seed a job that there is not: one bundle, mounted, below one overlay."""
    if hindered := _hindered(node):
        yield hindered
        return
    shown = _tried(node, _show)
    if shown.problem:
        found = f"no overlay of bundles ({shown.problem}): they are extracted, so jobs begin later"
        yield Finding(ADVICE, found, LOAD)
    else:
        yield Finding(OK, f"jobs see bundles through an overlay; {MAP if shown.mapped else NO_MAP}")


def image_limits(node: Node) -> Iterator[Finding]:
    """Make a file system of its own, as an import gets one that bounds what an image's layers expand to."""
    if hindered := _hindered(node):
        yield hindered
    elif _tried(node, _make):
        yield Finding(OK, "images.max_size and images.max_files are held by a file system for each import")
    else:
        found = "no file system for each import: images.max_size and images.max_files are only looked after"
        yield Finding(ADVICE, found, f"{scratch.MKE2FS} (e2fsprogs), ext4 and loop devices (/dev/loop-control)")


def job_ends(node: Node) -> Iterator[Finding]:
    """Look for what tells epilogs whether a job ended well: the policy, or what a job asks for, makes that matter."""
    policy = node.policy
    squeue = commands.squeue(policy.paths.scontrol)
    if os.access(squeue, os.X_OK):
        yield Finding(OK, f"{squeue} tells epilogs how a job ended, where that matters")
        return
    given = {profile for rule in policy.rules for profile in rule.profiles}
    careful = [name for name in registry.names(policy.profiles) if registry.get(name, policy.profiles).after_success]
    whose = "any profile" if policy.harvest.only_successful else ", ".join(careful)
    found = f"{squeue} is missing: no job counts as successful, so nothing of {whose} is harvested"
    status = WRONG if policy.harvest.only_successful or not given.isdisjoint(careful) else ADVICE  # jobs may ask
    yield Finding(status, found, "install Slurm's client commands, or correct paths.scontrol, beside which it lies")


def _hindered(node: Node) -> Finding | None:
    """Return why nothing can be mounted in the workspaces' parent, if so."""
    parent = node.policy.paths.workspace
    if not os.path.isdir(parent):
        return Finding(UNKNOWN, f"{parent} is not there yet", "run a job first")
    found = os.stat(parent)
    if os.geteuid() != 0 or weakness(found):
        return Finding(UNKNOWN, "not tried: only root does, in a directory of root's", AS_ROOT)
    return None


def _tried(node: Node, trial: Callable[[str, str], _Answer]) -> _Answer:
    """Call `trial` with a new directory, its parent and its name, as root in a process of its own."""
    parent = node.policy.paths.workspace
    with _trial_directory(parent) as name, Worker(ROOT) as worker:
        return worker.run(after(SECONDS), trial, parent, name)


@contextmanager
def _trial_directory(parent: str) -> Iterator[str]:
    """Give the name of a new directory; what a doctor left that was killed goes, too."""
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
    from warmstart.seed.node_cache import Copy

    enter_new()
    base = f"{parent}/{name}"
    for folder in ("entries", "bundles", "cache", "cache/x"):
        os.mkdir(f"{base}/{folder}", 0o700)
    with opened_dir(base) as run:
        try:
            copy = Copy(f"{base}/bundles", "0" * 64, 0)
            os.close(pack(f"{base}/entries", copy.path, after(SECONDS)))
            layer = node_cache.mounted(f"{base}/layers", copy, after(SECONDS))
            mapped = overlay.build(run, "x", [layer], [], Identity("nobody", 65534, 65534))
        except WarmstartError as error:
            return _Shown(str(error), mapped=False)
        except OSError as error:
            return _Shown(error.strerror or str(error), mapped=False)
    return _Shown("", mapped)


def _make(parent: str, name: str) -> bool:
    enter_new()
    base = f"{parent}/{name}"
    os.mkdir(f"{base}/work", 0o700)
    with opened_dir(base) as fd:
        return scratch.mount_loop_filesystem(fd, base, "work", SAMPLE)


CHECKS = {
    "node.seeding": seeding,
    "node.image-limits": image_limits,
    "node.job-ends": job_ends,
}
