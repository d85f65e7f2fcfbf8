"""Checks of the constant path: this node provides it in the way that the policy names (docs/start/inside-the-job.md).

Several tools write the cache's path into their entries, so a warm cache at another path misses silently.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from warmstart.doctor import slurm_files
from warmstart.doctor.containers import HOOK, hook_problem, why_unfit
from warmstart.doctor.finding import ADVICE, WRONG, Finding, check
from warmstart.doctor.slurm import INSTALL, Slurm, is_ours

SCRIPT = "job-container"
CLONE_NS_SCRIPT = (24, 11)  # the first release that has it
APPTAINER = "/etc/apptainer/apptainer.conf"


@check("slurm.constant-path")
def constant_path(seen: Slurm) -> Iterator[Finding]:
    """Check that this node has what `constant_path` needs; if it is none, suggest a way that works here."""
    way = seen.policy.constant_path
    if way == "none":
        if other := next((way for way in ("spank", "namespace", "link") if PROBLEMS[way](seen) is None), ""):
            found = f"constant_path is none, so profiles that need one are left out; this node supports {other}"
            yield Finding(ADVICE, found, f"set constant_path: {other}")
    elif problem := PROBLEMS[way](seen):
        obstacle, change = problem
        yield Finding(WRONG, f"constant_path is {way}, but {obstacle}: jobs do not find their cache there", change)


def _spank_problem(seen: Slurm) -> tuple[str, str] | None:
    if seen.spank is None:
        return "the SPANK plugin is not loaded", "load it (docs/guides/pyxis.md), or set constant_path: none"
    if unfit := why_unfit(seen, seen.spank):
        return f"Slurm does not load the SPANK plugin: {unfit}", "install the plugin's file for this release of Slurm"
    return None


def _namespace_problem(seen: Slurm) -> tuple[str, str] | None:
    if seen.version < CLONE_NS_SCRIPT:
        release = "{}.{:02}".format(*seen.version)
        return f"Slurm {release} runs no CloneNSScript", "set another constant_path, or use Slurm 24.11 or later"
    ours, settings = seen.hook(SCRIPT), seen.namespaces
    key = "clone_ns_script: " if seen.namespace == slurm_files.LINUX else "CloneNSScript="
    if not settings.nodes or not all(is_ours(node.script, ours) for node in settings.nodes):
        if settings.ignored:
            problem = f"Slurm ignores CloneNSScript on a line of its own in {settings.path}"
            return problem, f"write {key}{ours} at the end of the line that begins with BasePath= or NodeName="
        problem = f"{key[:-1].rstrip(':')} in {settings.path} is not warmstart's on all nodes"
        return problem, f"set {key}{ours} (Slurm 24.11 and later)"
    if not os.access(ours, os.X_OK):
        return f"{ours} is missing or not executable", INSTALL
    return None


def _link_problem(seen: Slurm) -> tuple[str, str] | None:
    parent = os.path.dirname(seen.policy.paths.cache)
    settings = seen.namespaces
    if not settings.nodes or not all(parent in (node.dirs or slurm_files.DEFAULT_DIRS) for node in settings.nodes):
        problem = f"Slurm does not give each job a {parent} of its own"
        dirs = settings.nodes[0].dirs if settings.nodes else ()
        now = ",".join((*(dirs or slurm_files.DEFAULT_DIRS), parent))
        return problem, f"set Dirs={now} in {settings.path} (Slurm 23.02 and later)"
    try:
        status = os.lstat(parent)
    except OSError as error:
        return f"{parent}: {error.strerror}", f"install -d -m 755 {parent}"
    if status.st_uid != 0 or not stat.S_ISDIR(status.st_mode):
        return f"{parent} is not a directory owned by root", "let it be one"
    return None


def _containers_problem(seen: Slurm) -> tuple[str, str] | None:  # noqa: ARG001 - the shape of a way
    """Apptainer ignores what users bind, with a warning, where its configuration says so."""
    try:
        with open(APPTAINER, encoding="utf-8", errors="replace") as file:
            settings = [line.partition("=") for line in file]
    except FileNotFoundError:
        return None
    if any((key.strip(), value.strip()) == ("user bind control", "no") for key, _, value in settings):
        return f"Apptainer binds nothing for users ({APPTAINER})", "set user bind control = yes"
    return None


def _enroot_problem(seen: Slurm) -> tuple[str, str] | None:
    return hook_problem(seen.installation, seen.enroot, HOOK)


# What prevents each value of `constant_path`, and what to change; None if nothing does.
PROBLEMS = {
    "spank": _spank_problem,
    "namespace": _namespace_problem,
    "link": _link_problem,
    "containers": _containers_problem,
    "enroot": _enroot_problem,
}


CHECKS = (constant_path,)
