"""Whether containers of a node can start from a tree: all of it is tried, as nobody, in a user namespace.

In a mount namespace that goes with the trial:

    /tmp                   a tmpfs
        lower/             an ID-mapped clone of a directory on the shelf's disk, below an overlay of root's
        room/              nobody's, on the workspaces' disk, or in memory: upper, work
        merged/            the overlay, which nobody mounts

Kernels before 5.19 have no overlays with ID-mapped layers, some file systems no ID-mapped clones, and some no
attributes of users. What works is tried, and no version is compared. Runs as root. Not on a warm path.
"""

from __future__ import annotations

import os
import time
from functools import partial
from tempfile import TemporaryDirectory
from typing import NamedTuple

from warmstart import shelf as shelves
from warmstart.host import linux
from warmstart.host.files import PATH, ensure_path, read_small, replace_file
from warmstart.host.identity import Identity, become
from warmstart.host.namespaces import CLONE_NEWNS, enter_new
from warmstart.lean import libc
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.run import mounted

NOBODY = Identity("nobody", 65534, 65534)
OWNER = (65533, 65532)  # of the files on the shelf, uid and gid; any others than nobody's
PREFIX = ".trial-"
RESULT = "ready-roots"
LONGEST = 4096
AGAIN_S = 3600.0
_PR_SET_DUMPABLE = 4


class Tried(NamedTuple):
    """Why it does not work where containers write to the workspaces' disk, and to memory; "" if it does."""

    disk: str
    memory: str

    @property
    def works(self) -> bool:
        """Whether containers can start from a tree."""
        return not (self.disk and self.memory)


def of_this_boot(policy: Policy, paths: NodePaths) -> bool:
    """Return whether it works here; tried once after each boot with these disks. Raises `OSError`.

    What did not work is tried again after an hour: an admin may have mended it.
    """
    key = " ".join(str(os.stat(path).st_dev) for path in _places(policy))
    ensure_path(paths.runtime, 0o755)
    fd = os.open(paths.runtime, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            known, _, works = read_small(RESULT, LONGEST, fd).decode().rpartition(" ")
            age = time.time() - os.stat(RESULT, dir_fd=fd).st_mtime
        except FileNotFoundError:
            known = ""
        if known != key or (works == "no" and age > AGAIN_S):
            works = "yes" if tried(policy).works else "no"
            replace_file(fd, RESULT, f"{key} {works}".encode(), 0o600, durable=False)
        return works == "yes"
    finally:
        os.close(fd)


def _places(policy: Policy) -> tuple[str, str]:
    """Return the directories on the two disks; that of workspaces is made if it is missing. Raises `OSError`."""
    ensure_path(policy.paths.workspace, 0o755)
    return shelves.require(policy), policy.paths.workspace


def tried(policy: Policy) -> Tried:
    """Try it. Raises `OSError` if a directory cannot be made on one of the disks."""
    shelf, workspace = _places(policy)
    with (
        TemporaryDirectory(prefix=PREFIX, dir=shelf) as tree,
        TemporaryDirectory(prefix=PREFIX, dir=workspace) as room,
    ):
        os.mkdir(f"{tree}/old")
        with open(f"{tree}/old/file", "wb"):
            pass
        for path in (tree, f"{tree}/old", f"{tree}/old/file"):
            os.chown(path, *OWNER)
        return Tried(_problem(tree, room), _problem(tree, ""))


def _problem(tree: str, room: str) -> str:
    try:
        with linux.child_in(partial(_try, tree, room), "trial"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _try(tree: str, room: str) -> None:
    """Do what a job's prolog, and then enroot's hook, do; the process is not used again. Raises `OSError`."""
    enter_new()
    clone = linux.clone_as(os.open(tree, PATH), OWNER, (NOBODY.uid, NOBODY.gid))
    place = linux.clone(os.open(room, PATH)) if room else -1
    linux.mount("none", "/tmp", "tmpfs", linux.RESTRICTED, "mode=0755")
    for name in ("lower", "room", "merged"):
        os.mkdir(f"/tmp/{name}")
    mounted.attach_covered(clone, "/tmp/lower")
    if room:
        linux.attach(place, "/tmp/room")
        os.chmod("/tmp/room", 0o711)
    for name in ("upper", "work"):
        os.mkdir(f"/tmp/room/{name}")
        os.chown(f"/tmp/room/{name}", NOBODY.uid, NOBODY.gid)
    become(NOBODY)
    libc("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's
    libc("unshare", linux.CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {NOBODY.uid} 1"), ("gid_map", f"0 {NOBODY.gid} 1")):
        with open(f"/proc/self/{name}", "wb", buffering=0) as file:
            file.write(text.encode())
    options = "lowerdir=/tmp/lower,upperdir=/tmp/room/upper,workdir=/tmp/room/work,xino=off,userxattr,volatile"
    linux.mount("overlay", "/tmp/merged", "overlay", linux.RESTRICTED, options)
    os.chdir("/tmp/merged")
    os.close(os.open("new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.rename("old/file", "file")
    os.rmdir("old")
    os.mkdir("old")
    os.listdir("old")
