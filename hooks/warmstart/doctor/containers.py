"""Checks of what a job's tasks see: pyxis's containers, the SPANK plugin, the job's mount namespace.

pyxis runs the task prolog inside the container; if the file is missing there, every task fails
(docs/guides/pyxis.md).
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress

from warmstart.doctor import installed, slurm_files
from warmstart.doctor.finding import ADVICE, CRITICAL, SKIP, UNKNOWN, WRONG, Finding, check
from warmstart.doctor.slurm import (
    HIDDEN,
    LARGEST_SCRIPT,
    PLUGIN,
    PYXIS,
    Slurm,
    is_below,
    is_ours,
    other_installation,
    users_can_run,
)
from warmstart.doctor.slurm_files import Plugin
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import read_small
from warmstart.host.namespaces import groups
from warmstart.paths import Installation

HOOK = "40-warmstart.sh"
JAILER = "chroot.so"  # soperator's: its argument is the root of jobs
PYXIS_TRUE = ("1", "true", "yes", "y")  # its config.c
ENROOT_FALSE = "no?|N[oO]?|[fF](alse)?|FALSE"  # enroot.in
PROGRAMS = "/usr/local/bin:/usr/bin:/bin"  # where jobs look, or so
FUSE = "/dev/fuse"
UNPACKING = "pyxis unpacks the image for each container."
NOT_UNPACKING = "pyxis starts containers from the image's file (use_squashfuse), but unpacks it for those with a name."


def way(conf: str) -> str:
    """Return how pyxis starts containers, in words, by the files in the directory of slurm.conf; "" without it."""
    plugins = slurm_files.plugins(f"{conf}/plugstack.conf")
    pyxis = next((plugin for plugin in plugins if plugin.name == PYXIS), None)
    if pyxis is None:
        return ""
    return NOT_UNPACKING if pyxis.argument("use_squashfuse") in PYXIS_TRUE else UNPACKING


def hook_problem(installation: Installation, enroot: str, name: str) -> tuple[str, str] | None:
    """Return why enroot does not run one of our hooks as this release has it, and what to do; None if it does."""
    path, ours = f"{enroot}/hooks.d/{name}", f"{installation.prefix}/share/warmstart/enroot/{name}"
    change = f"`install -D -m 755 {ours} {path}`"
    if not os.access(path, os.X_OK):
        return f"{path} is missing", change
    with suppress(FileNotFoundError):
        if read_small(os.path.realpath(path), LARGEST_SCRIPT) != read_small(ours, LARGEST_SCRIPT):
            return f"{path} is that of another release or installation", change
    return None


def needs_slurmstepd(release: tuple[int, ...]) -> bool:
    """Return whether Slurm runs TaskProlog by way of slurmstepd (its changelog, 24.11.7 and 25.05.2)."""
    return (24, 11) <= release < (24, 11, 7) or (25, 5) <= release < (25, 5, 2)


@check("slurm.pyxis", critical=True)
def pyxis(seen: Slurm) -> Iterator[Finding]:
    """Check what pyxis needs: the task prolog and the jobs' views in containers, the hook, its importer."""
    if seen.pyxis is None:
        yield SKIP
        return
    importer, has_task_prolog = seen.pyxis.argument("importer"), bool(seen.settings.all("TaskProlog"))
    ours = seen.hook("pyxis-importer")
    needed = (os.path.dirname(ours), seen.installation.view)
    missing = [path for path in needed if not _is_mounted(seen.enroot, path)]
    if has_task_prolog and needs_slurmstepd(seen.version):
        found = "this release of Slurm runs TaskProlog by way of slurmstepd, which no container has: every task fails"
        change = "unset TaskProlog; the enroot hook and the SPANK plugin do its work. Or upgrade to 24.11.7 or 25.05.2"
        yield Finding(CRITICAL, found, change)
    elif has_task_prolog and missing:
        found = (
            f"pyxis runs TaskProlog inside of containers, where {' and '.join(missing)} is missing: every task fails"
        )
        change = (
            f"cp {seen.installation.prefix}/share/warmstart/enroot/50-warmstart.fstab {seen.enroot}/mounts.d/, "
            "or unset TaskProlog and use the enroot hook (docs/guides/pyxis.md)"
        )
        yield Finding(CRITICAL, found, change)
    elif importer and not users_can_run(importer):
        found = f"pyxis's importer {importer} is missing, or users cannot execute it: no container starts from a name"
        yield Finding(CRITICAL, found, f"write importer={ours} in pyxis's line")
    elif importer and not is_ours(importer, ours) and (other := other_installation(importer, ours)):
        found = f"pyxis's importer is that of another installation, {other}: containers start from that one's store"
        yield Finding(WRONG, found, f"`{other}/bin/warmstart doctor` judges that one; for this one importer={ours}")
    elif hook := hook_problem(seen.installation, seen.enroot, HOOK):
        none = "" if has_task_prolog else " or get the job's environment"
        yield Finding(WRONG, f"{hook[0]}: containers cannot see the job's cache{none}", hook[1])
    if seen.pyxis.argument("use_squashfuse") in PYXIS_TRUE:
        yield from _squashfuse(seen.enroot)


def _squashfuse(enroot: str) -> Iterator[Finding]:
    """Check what enroot needs to start images without unpacking them."""
    bad = []
    program = shutil.which("squashfuse", path=PROGRAMS)
    if program is None:
        bad.append((f"squashfuse is in none of {PROGRAMS}", "install it"))
    elif _is_low_level(program):
        found = f"{program} is squashfuse_ll, whose processes may stay behind, unkillable, and drain the node"
        bad.append((found, "put squashfuse itself in its place"))
    if not (os.path.exists(FUSE) and os.stat(FUSE).st_mode & 0o006 == 0o006):
        bad.append((f"users cannot open {FUSE}", f"modprobe fuse; chmod 0666 {FUSE}"))
    is_native = not re.fullmatch(ENROOT_FALSE, enroot_setting(enroot, "ENROOT_NATIVE_OVERLAYFS"))
    if not is_native and shutil.which("fuse-overlayfs", path=PROGRAMS) is None:
        found = f"enroot has no ENROOT_NATIVE_OVERLAYFS, and fuse-overlayfs is in none of {PROGRAMS}"
        bad.append((found, f"set ENROOT_NATIVE_OVERLAYFS yes in {enroot}/enroot.conf, or install fuse-overlayfs"))
    for found, change in bad:
        yield Finding(WRONG, f"pyxis has use_squashfuse=1, but {found}", f"{change}; or leave out use_squashfuse")


def _is_low_level(program: str) -> bool:
    """Return whether a `squashfuse` is squashfuse_ll: by the name of its file, or by an option that only that has.

    It tells no name but the one that it was called by; 0.1.104 has no such option.
    """
    if os.path.basename(os.path.realpath(program)) == "squashfuse_ll":
        return True
    done = process.run([program, "--help"], deadline=after(5.0))
    return b"timeout=N" in done.stdout + done.stderr


def enroot_setting(enroot: str, key: str) -> str:
    """Return a setting of enroot's files, "" if it has none. The first value counts (enroot.in, `config::export`)."""
    directory = glob.escape(enroot)
    for path in (*glob.glob(f"{directory}/enroot.conf"), *sorted(glob.glob(f"{directory}/enroot.conf.d/*.conf"))):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, *value = re.split(r"[\s=]+", line.strip(), maxsplit=1)
                if name == key and any(value):
                    return value[0]
    return ""


@check("slurm.spank", critical=True)
def spank(seen: Slurm) -> Iterator[Finding]:
    """Check the optional plugin: if loaded, it is on the node, fits Slurm's release and agrees with the policy."""
    plugin = seen.spank
    if plugin is None:
        yield SKIP
        return
    unfit = why_unfit(seen, plugin)
    if unfit and plugin.required:
        found = f"plugstack.conf requires {PLUGIN}, but {unfit}: every srun and every step of a job fails"
        yield Finding(CRITICAL, found, "write `optional` in place of `required`, then install the plugin's file")
        return
    bad, apart = _misfits(seen, plugin, unfit), _not_in_jail(seen)
    if apart:
        found = (
            f"jobs have another root than slurmd ({JAILER}), where they lack what it mounts in {' and '.join(apart)}"
        )
        yield Finding(WRONG, found, "let the program of jail.conf run before slurmd (docs/guides/kubernetes.md)")
    elif bad:
        found, change = ("; ".join(words) for words in zip(*bad, strict=True))
        yield Finding(WRONG, f"plugstack.conf, {PLUGIN}: {found}", change)
    elif seen.pyxis and seen.plugins.index(plugin) < seen.plugins.index(seen.pyxis):
        found = f"{PLUGIN} is listed before pyxis, so it does not notice when a user's mount hides the cache"
        yield Finding(ADVICE, found, "list it after pyxis")


def _misfits(seen: Slurm, plugin: Plugin, unfit: str) -> list[tuple[str, str]]:
    """Return what is wrong with a plugin that steps can do without, and what to do."""
    workspace, runtime = seen.policy.paths.workspace, seen.installation.runtime
    bad = [(unfit, "install the plugin's file for this release of Slurm")] if unfit else []
    if (times := sum(other.name == PLUGIN for other in seen.plugins)) > 1:
        bad.append((f"it stands there {times} times", "remove a line, or an include that stands twice"))
    has = plugin.argument("workspace") or "/var/tmp/warmstart"
    if has != workspace:
        bad.append((f"its workspace is {has}, the policy's {workspace}", f"write workspace={workspace}"))
    given = plugin.argument("run")
    if not unfit and given != runtime and (given or not installed.names(_file(seen, plugin), runtime)):
        bad.append((f"its run is {given or 'that of another prefix'}, not {runtime}", f"write run={runtime}"))
    return bad


def _not_in_jail(seen: Slurm) -> list[str]:
    """Return which directories of ours are not one mount with those at the same paths below the root of jobs."""
    jail = next((plugin.arguments[0] for plugin in seen.plugins if plugin.name == JAILER and plugin.arguments), None)
    if jail is None:
        return []
    known = groups()
    places = (seen.installation.runtime, seen.installation.var, seen.policy.paths.workspace)
    return [place for place in places if not known.get(place) or known[place] != known.get(f"{jail}{place}")]


def why_unfit(seen: Slurm, plugin: Plugin) -> str:
    """Return why Slurm does not load a plugin, "" if it does."""
    path = _file(seen, plugin)
    if not path:
        return f"{plugin.path} is not on this node"
    built = installed.built_for(path)
    if built is None:
        return f"{path} is not a plugin for this machine"
    if built[:2] != seen.version[:2]:
        return f"it was built for Slurm {_text(built)}, so Slurm {_text(seen.version)} does not load it"
    return ""


def _file(seen: Slurm, plugin: Plugin) -> str:
    """Return the path of a plugin's file, "" if it is not on this node."""
    places = installed.plugin_places(seen.policy.paths.scontrol, seen.settings.one("PluginDir"))
    return installed.find_plugin(plugin.path, places)


@check("slurm.namespace")
def namespace(seen: Slurm) -> Iterator[Finding]:
    """Check what BasePath and Dirs hide from jobs. A BasePath below /tmp is a fatal error in slurmd 22.05."""
    if not seen.namespace:
        yield SKIP
        return
    settings, policy = seen.namespaces, seen.policy
    bases = [node.base for node in settings.nodes if node.base]
    dirs = [path for node in settings.nodes for path in node.dirs]
    ours = [seen.installation.prefix, seen.installation.runtime, seen.installation.var, policy.paths.workspace]
    if policy.constant_path in ("spank", "namespace"):
        ours.append(policy.paths.cache)
    bad = [f"BasePath {base} is below /tmp or /dev/shm" for base in bases if is_below(base, HIDDEN)]
    bad += [
        f"{path} is below {place}" for path in ours for place in (*bases, *dirs, *HIDDEN) if is_below(path, (place,))
    ]
    if not bases:
        yield Finding(UNKNOWN, f"Slurm uses {seen.namespace}, but {settings.path} sets no base path")
    elif bad:
        yield Finding(WRONG, "; ".join(bad), "move it: jobs cannot see files there")


def _text(release: tuple[int, ...]) -> str:
    return f"{release[0]}.{release[1]:02}"


def _is_mounted(enroot: str, path: str) -> bool:
    """Return whether enroot's mounts.d binds a directory into every container at the same path."""
    for name in glob.glob(f"{glob.escape(enroot)}/mounts.d/*.fstab"):
        with open(name, encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file if not line.lstrip().startswith("#")]
        if any(len(row) > 1 and row[0] == row[1] and is_below(path, (row[0],)) for row in rows):
            return True
    return False


CHECKS = (pyxis, spank, namespace)
