"""The constant path: the way that the policy counts on must be one that this node has (docs/inside-the-job.md).

Several tools bake the cache's path into their entries, so a warm cache at another path is a silent miss.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from warmstart.entry.doctor import containers, slurm_conf
from warmstart.entry.doctor.containers import HOOK, Tasks
from warmstart.entry.doctor.finding import ADVICE, OK, UNKNOWN, WRONG, Finding
from warmstart.entry.doctor.slurm import is_ours
from warmstart.policy.compiled import Policy

SCRIPT = "job-container"
DEFAULT_DIRS = "/tmp,/dev/shm"  # job_container.conf(5), Dirs


def constant_path(seen: Tasks) -> Iterator[Finding]:
    """Find what the policy's way lacks here; of a policy without one, what it could use."""
    policy = seen.slurm.policy
    if policy is None:
        yield Finding(UNKNOWN, "the policy's way to the constant path is not known", "mend the policy first")
    elif policy.constant_path == "none":
        yield from _unused(seen, policy)
    else:
        lacking = LACKING[policy.constant_path](seen, policy)
        if lacking is None:
            yield Finding(OK, f"constant_path is {policy.constant_path}, as this node has it")
        else:
            found, change = lacking
            yield Finding(WRONG, f"constant_path is {policy.constant_path}, but {found}: jobs look in vain", change)


def _unused(seen: Tasks, policy: Policy) -> Iterator[Finding]:
    ways = [way for way in ("spank", "namespace", "link") if LACKING[way](seen, policy) is None]
    if ways:
        found = f"constant_path is none, though this node has {ways[0]}: profiles that need it are left out"
        yield Finding(ADVICE, found, f"constant_path: {ways[0]}")
    else:
        yield Finding(OK, "constant_path is none: bare jobs have their cache at a path of their own")


def _lacks_plugin(seen: Tasks, _: Policy) -> tuple[str, str] | None:
    if seen.spank is None:
        return "the SPANK plugin is not loaded", "load the plugin (packaging/spank), or constant_path: none"
    return None


def _lacks_script(seen: Tasks, _: Policy) -> tuple[str, str] | None:
    ours = seen.slurm.hook(SCRIPT)
    scripts = [line["clonensscript"] for line in containers.namespaces(seen) if "clonensscript" in line]
    if not any(is_ours(script, ours) for script in scripts):
        return "job_container.conf has no CloneNSScript of ours", f"CloneNSScript={ours} (Slurm 24.11 and later)"
    if not os.access(ours, os.X_OK):
        return f"{ours} is missing", "make install"
    return None


def _lacks_directory(seen: Tasks, policy: Policy) -> tuple[str, str] | None:
    parent = os.path.dirname(policy.paths.cache)
    lines = [line for line in containers.namespaces(seen) if "basepath" in line]
    if not lines or not all(parent in line.get("dirs", DEFAULT_DIRS).split(",") for line in lines):
        return f"job_container gives no job a {parent} of its own", f"Dirs=/tmp,/dev/shm,{parent} (Slurm 23.02)"
    try:
        found = os.lstat(parent)
    except OSError as error:
        return f"{parent}: {error.strerror}", f"install -d -m 755 {parent}"
    if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode):
        return f"{parent} is not a directory of root's", f"install -d -m 755 {parent}"
    return None


def _lacks_hook(seen: Tasks, _: Policy) -> tuple[str, str] | None:
    if not seen.enroot_hook:
        return f"{seen.enroot}/hooks.d/{HOOK} is missing", "install it there (packaging/enroot)"
    return None


LACKING = {"spank": _lacks_plugin, "namespace": _lacks_script, "link": _lacks_directory, "enroot": _lacks_hook}


def base_path(seen: Tasks) -> Iterator[Finding]:
    """Find foreign mounts below BasePath: Slurm empties it recursively, and what is mounted there with it."""
    bases = [line["basepath"] for line in containers.namespaces(seen) if "%" not in line.get("basepath", "%")]
    foreign = [target for target in slurm_conf.mount_points() for base in bases if _is_foreign(target, base)]
    if foreign:
        found = f"{', '.join(sorted(set(foreign)))}: mounted below BasePath, where Slurm removes all files with a job"
        yield Finding(WRONG, found, "mount it elsewhere")
    else:
        yield Finding(OK, "nothing but Slurm's own is mounted below BasePath")


def _is_foreign(target: str, base: str) -> bool:
    """Slurm's own: BasePath, with several slurmds a directory for each, and JOB and JOB/.ns in them."""
    if not target.startswith(f"{base}/"):
        return False
    parts = target[len(base) + 1 :].split("/")
    job = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    if job is None:
        return len(parts) > 1
    return job > 1 or parts[job + 1 :] not in ([], [".ns"])


CHECKS = {"slurm.base-path": base_path, "slurm.constant-path": constant_path}
