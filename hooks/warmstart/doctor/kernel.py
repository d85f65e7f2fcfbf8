"""Checks of kernel features and programs that decide how warmstart works on this node. They try the real operations.

A process in a mount namespace of its own does what a prolog does, in a directory of the workspaces' parent, or where
the first prolog makes that. When it ends, the kernel removes the namespace with its mounts and loop devices. If doctor
is killed, its next run removes the directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from warmstart.doctor.finding import ADVICE, OK, WRONG, Finding
from warmstart.doctor.node import Node, existing, why_untried
from warmstart.errors import WarmstartError
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree
from warmstart.host.identity import ROOT, Identity
from warmstart.host.namespaces import enter_new, mount_of
from warmstart.host.worker import Worker
from warmstart.profiles import registry
from warmstart.seed import overlay
from warmstart.slurm import commands

PREFIX = ".doctor-"
SECONDS = 20.0
MAP = "seeded files appear as the job's own"
NO_MAP = "this kernel cannot map ids there, so seeded files appear as root's, mode 0666 (docs/reference/profiles.md)"
LOAD = "load the modules overlay, squashfs and loop (/dev/loop-control)"
DENIED = "this container may not open loop devices or make nodes of them: run it privileged"
VOLUME = "put paths.workspace on a volume: an overlay, as a container's root is, cannot hold another one's upper layer"
_Answer = TypeVar("_Answer")


class _Shown(NamedTuple):
    """Why the sample job sees no bundle ("" if it does), whether ids are mapped, and what to change."""

    problem: str
    mapped: bool
    change: str = LOAD


def seeding(node: Node) -> Iterator[Finding]:
    """Seed a sample job: mount one bundle and build one overlay on it."""
    if (untried := why_untried(existing(node.policy.paths.workspace))) is not None:
        yield from untried
        return
    shown = _try(node, _show)
    if shown.problem:
        found = f"cannot show bundles through an overlay ({shown.problem}): they are extracted, so jobs start later"
        yield Finding(ADVICE, found, shown.change)
    else:
        yield Finding(OK, f"jobs see bundles through an overlay; {MAP if shown.mapped else NO_MAP}")


def job_ends(node: Node) -> Iterator[Finding]:
    """Check for squeue, from which epilogs learn how a job ended. The policy or a job's request can require success."""
    policy = node.policy
    squeue = commands.squeue(policy.paths.scontrol)
    if os.access(squeue, os.X_OK):
        yield Finding(OK, f"epilogs can query how a job ended ({squeue})")
        return
    given = {profile for rule in policy.rules for profile in rule.profiles}
    careful = [name for name in registry.names(policy.profiles) if registry.get(name, policy.profiles).after_success]
    whose = "any profile" if policy.harvest.only_successful else ", ".join(careful)
    found = f"{squeue} is missing: no job counts as successful, so nothing of {whose} is harvested"
    # Advice even if no rule gives such a profile: jobs may request one.
    status = WRONG if policy.harvest.only_successful or not given.isdisjoint(careful) else ADVICE
    yield Finding(status, found, "install Slurm's client commands, or correct paths.scontrol (same directory)")


def _try(node: Node, trial: Callable[[str, str], _Answer]) -> _Answer:
    """Call `trial(parent, name)` for a new directory, as root in a process of its own."""
    parent = existing(node.policy.paths.workspace)
    with trial_directory(parent) as name, Worker(ROOT, f"a trial in {parent}", rooms=(__name__,)) as worker:
        return worker.run(after(SECONDS), trial, parent, name)


@contextmanager
def trial_directory(parent: str) -> Iterator[str]:
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
            with overlay.JobIds(Identity("nobody", 65534, 65534)) as nobody:
                mapped = overlay.build(run, "x", layers, [], nobody)
        except WarmstartError as error:
            return _Shown(str(error), mapped=False, change=VOLUME if mount_of(base).kind == "overlay" else LOAD)
        except OSError as error:
            is_denied = error.errno == errno.EPERM
            return _Shown(error.strerror or str(error), mapped=False, change=DENIED if is_denied else LOAD)
    return _Shown("", mapped)


CHECKS = {
    "node.seeding": seeding,
    "node.job-ends": job_ends,
}
