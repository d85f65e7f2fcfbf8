"""Checks of this node: accounts, disks, programs, what imports need, and what was left undone."""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from warmstart.audit.line import Line, timestamp
from warmstart.audit.log import refusal
from warmstart.audit.query import AuditLog, LineFilter
from warmstart.doctor import units
from warmstart.doctor.finding import (
    ADVICE,
    AS_ROOT,
    CRITICAL,
    OK,
    OVERDUE_INTERVALS,
    SKIP,
    UNKNOWN,
    WRONG,
    Finding,
    check,
)
from warmstart.errors import WarmstartError
from warmstart.harvest import pack
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import read_small
from warmstart.host.namespaces import mount_of, mounts
from warmstart.images import choice
from warmstart.images.credentials import CredentialsUnusable, login_at
from warmstart.images.importers import base, layer_reader
from warmstart.images.imports import requests, verify
from warmstart.images.unpacks import NO_DISKS
from warmstart.keeper import NodeOfAnotherPod, require_keeper
from warmstart.paths import Installation, NodePaths
from warmstart.policy.keys import Credentials, Policy
from warmstart.policy.units import format_duration
from warmstart.queue import is_at_work, waiting
from warmstart.report.lines import KILLED, UNFINISHED, hooks
from warmstart.session import NODE_INTERVAL_S
from warmstart.slurm import commands

ACCOUNTS = ("store_user", "import_user", "validate_user")
POWERFUL = frozenset({"root", "wheel", "sudo", "adm", "disk", "shadow", "docker", "lxd", "kmem"})
SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "afs", "9p", "glusterfs", "wekafs")
LEAST_FREE = 5  # percent, of bytes and of inodes
LEAST_BYTES, LEAST_INODES = 64 << 20, 1000  # of the disks with state and audit log, whose files are small
# Debian's names; most other distributions have the same.
PACKAGES = {
    layer_reader.ZSTD_LIBRARY: "libzstd1",
    "unsquashfs": "squashfs-tools", "mksquashfs": "squashfs-tools", "prlimit": "util-linux", "unshare": "util-linux",
    "nsenter": "util-linux", "setpriv": "util-linux", "ionice": "util-linux",
    "skopeo": "skopeo", "umoci": "umoci", "enroot": "enroot",
}  # fmt: skip
VERSIONS = {verify.UNSQUASHFS: "-version", pack.MKSQUASHFS: "-version", choice.ENROOT: "version"}  # others: --version
NOT_RUN = (126, 127)  # of a shell, and of ld.so, which lacks a library
PROGRAMS = (
    verify.UNSQUASHFS,
    pack.MKSQUASHFS,
    base.PRLIMIT,
    process.UNSHARE,
    process.NSENTER,
    process.SETPRIV,
    process.IONICE,
)
PROXY_S = 5.0
WAITING_S = 3600.0  # maintenance does what is due each half hour, and so do hooks
LATELY_S = 86400.0
FSTAB = "/etc/fstab"
LEASES = "/proc/sys/fs/leases-enable"
LARGEST = 1 << 20


class Node(NamedTuple):
    """The installation and the policy in force."""

    installation: Installation
    policy: Policy

    def nodes(self) -> list[NodePaths]:
        """Return the directories of this host's nodes."""
        return [self.installation.node(name) for name in self.installation.nodes()]


@check("node.accounts")
def accounts(node: Node) -> Iterator[Finding]:
    """Check the three accounts: distinct unprivileged uids, the same as when the policy was compiled."""
    seen = set[int]()
    another = "name another account as"
    for key in ACCOUNTS:
        account = getattr(node.policy, key)
        try:
            user = pwd.getpwnam(account.name)
        except KeyError:
            make = f"`useradd --system --uid {account.uid} --no-create-home --shell /usr/sbin/nologin {account.name}`"
            yield Finding(WRONG, f"{key} {account.name} does not exist", make)
            continue
        if (user.pw_uid, user.pw_gid) != (account.uid, account.gid):
            found = f"{account.name} is {user.pw_uid}:{user.pw_gid}, but hooks use {account.uid}:{account.gid}"
            change = (
                f"if the account is right now, touch {node.installation.policy}: the next hook compiles the policy "
                "with its ids; else give it back the ids that own the store"
            )
            yield Finding(WRONG, f"{found}: it had other ids when the policy was compiled", change)
        powers = sorted({_group(gid) for gid in os.getgrouplist(user.pw_name, user.pw_gid)} & POWERFUL)
        if user.pw_uid == 0 or powers:
            leave = ", ".join(f"`gpasswd -d {account.name} {group}`" for group in powers)
            change = f"take it out of these groups: {leave}" if user.pw_uid else f"{another} {key}"
            found = f"{account.name} is privileged (uid {user.pw_uid}; {', '.join(powers)})"
            yield Finding(WRONG, found, change)
        if user.pw_uid in seen:
            found = f"{account.name} shares uid {user.pw_uid} with another of the three"
            yield Finding(WRONG, found, f"{another} {key}")
        seen.add(user.pw_uid)


class _Disk(NamedTuple):
    """A directory in which hooks write."""

    what: str
    path: str
    if_full: str  # what happens if nothing can be written there
    local: str = ""  # why it has to be on a disk of this node's; "" if it need not


@check("node.disks", critical=True)
def disks(node: Node) -> Iterator[Finding]:
    """Check the disks on which hooks write: there, local, with room; a read-only state drains the node."""
    paths = node.policy.paths
    # O_APPEND is atomic among the processes of one host alone (open(2)).
    log = _Disk(
        "the audit log", os.path.dirname(paths.audit), "its lines go to syslog", "nodes that share it lose lines"
    )
    runs = _Disk("the state of runs", node.installation.runtime, "jobs run without warmstart")
    state = _Disk("warmstart's state", node.installation.var, "jobs run cold")
    workspaces = _Disk("workspaces", paths.workspace, "jobs run cold", "an epilog hangs if the file server does")
    yield from _disk(runs, CRITICAL, "every prolog fails and drains the node")
    yield from _disk(state)
    yield from _disk(log)
    if os.path.lexists(paths.audit) and not os.geteuid() and (problem := refusal(paths.audit)):
        found = f"hooks do not write the audit log {paths.audit}, its lines go to syslog: {problem}"
        yield Finding(WRONG, found, f"`chown root {log.path}`, `chmod go-w {log.path} {paths.audit}`")
    yield from _disk(workspaces)
    yield from _workspace(paths.workspace)
    if paths.shelf:
        yield from _shelf(paths.shelf, any_disk=node.policy.images.unpack.any_disk)


def _disk(disk: _Disk, if_read_only: str = WRONG, cost: str = "") -> Iterator[Finding]:
    where = existing(disk.path)
    seen, mounted = os.statvfs(where), mount_of(os.path.realpath(where))
    if seen.f_flag & os.ST_RDONLY:
        found = f"{disk.path} is on a read-only file system, so {disk.what} cannot be written"
        change = "see dmesg; repair it, or mount -o remount,rw"
        yield Finding(if_read_only, f"{found}: {cost or disk.if_full}", change)
    elif is_full(seen):
        found = f"the disk of {disk.what} ({disk.path}) is full: {disk.if_full}"
        yield Finding(WRONG, found, "free space and inodes there")
    if disk.local and (mounted.kind in SHARED or mounted.kind.startswith("fuse")):
        found = f"{disk.what} ({disk.path}) on {mounted.kind} ({mounted.point}), no local file system: {disk.local}"
        yield Finding(WRONG, found, "name a directory on a local disk in the policy's paths")


def _workspace(path: str) -> Iterator[Finding]:
    """Say what a job with a large cache would do there: a workspace has no size limit."""
    where = existing(path)
    seen, mounted = os.statvfs(where), mount_of(os.path.realpath(where))
    free = 100 * seen.f_bavail / max(seen.f_blocks, 1)
    inodes = 100 * seen.f_favail / seen.f_files if seen.f_files else 100.0  # btrfs has no such limit
    if min(free, inodes) < LEAST_FREE and not is_full(seen):
        found = f"{free:.0f}% of the bytes and {inodes:.0f}% of the inodes are free where workspaces are"
        yield Finding(WRONG, found, "free space, or give paths.workspace a file system of its own")
    if mounted.kind in ("tmpfs", "ramfs"):
        found = f"workspaces are on {mounted.kind} ({mounted.point}), which uses memory"
        yield Finding(ADVICE, found, "put paths.workspace on a local disk")
    elif mounted.point == "/":
        found = "workspaces have no size limit and are on the node's root file system: a job can fill it"
        yield Finding(ADVICE, found, "give paths.workspace a file system of its own")


def _shelf(path: str, *, any_disk: bool) -> Iterator[Finding]:
    kind, point = mount_of(os.path.realpath(existing(path)))
    if disk := _unmounted(os.path.realpath(path)):
        found = f"{path} (paths.shelf) is on {point}: {disk} is not mounted, and what is unpacked fills another disk"
        yield Finding(WRONG, found, f"`mount {disk}`")
    elif not os.path.isdir(path):
        found = f"there is no directory {path} (paths.shelf): no image is unpacked, because no job makes it"
        yield Finding(WRONG, found, f"mount its disk, then `install -d -m 755 {path}`")
    elif kind in NO_DISKS and not any_disk:
        found = f"{path} (paths.shelf) is on {kind}, no disk: no image is unpacked"
        yield Finding(WRONG, found, "name a directory on a local disk, or set images.unpack.any_disk")


def is_full(seen: os.statvfs_result) -> bool:
    """Return whether a disk has hardly any room."""
    return seen.f_bavail * seen.f_frsize < LEAST_BYTES or bool(seen.f_files and seen.f_favail < LEAST_INODES)


def _unmounted(path: str) -> str:
    """Return the mount point of fstab(5) at or above a path where nothing is mounted; "" without one."""
    with suppress(FileNotFoundError):
        rows = [line.split() for line in read_small(FSTAB, LARGEST).decode("utf-8", "replace").splitlines()]
        mounted, above = {mount.point for mount in mounts()}, {path, *map(str, Path(path).parents)}
        points = [row[1] for row in rows if len(row) > 1 and not row[0].startswith("#")]
        return next((point for point in points if point in above and point not in mounted), "")
    return ""


@check("node.imports")
def imports(node: Node) -> Iterator[Finding]:
    """Check what imports need of this node and its network, and whether any has failed lately."""
    images = node.policy.images
    if not images.registries:
        yield SKIP
        return
    if read_small(LEASES, 16).strip() == b"0":
        found = "fs.leases-enable is 0: no image can be imported, because a lease proves that nobody writes to one"
        yield Finding(WRONG, found, "sysctl -w fs.leases-enable=1, and remove what sets it to 0 from /etc/sysctl.d")
    if images.proxy:
        yield from _proxy(images.proxy)
    if images.credentials:
        yield from _logins(images.credentials)
    for failure in [failure for paths in node.nodes() for failure in requests.failures(paths)]:
        status = WRONG if failure.code.startswith("registry-") else ADVICE  # of all images there, whoever asks
        found = f"an import failed in the last hour: {failure.text}"
        yield Finding(status, found, "`warmstart audit --event image.import-failed`")


def _proxy(address: str) -> Iterator[Finding]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PROXY_S).close()
    except OSError as error:
        found = f"images.proxy {address} does not answer ({error.strerror or error}): nothing is imported"
        yield Finding(WRONG, found, "start it, or correct images.proxy")


def _logins(keys: Credentials) -> Iterator[Finding]:
    if os.geteuid() != 0:
        yield Finding(UNKNOWN, f"{keys.file}: not read", AS_ROOT)
        return
    for registry in sorted({item.repository.partition("/")[0] for item in keys.repositories}):
        try:
            login_at(keys.file, registry)
        except CredentialsUnusable as error:
            yield Finding(WRONG, str(error), error.hint)


@check("node.programs")
def programs(node: Node) -> Iterator[Finding]:
    """Check for the programs that hooks run by absolute path, and for the library that reads layers in zstd.

    Says which importer the policy means here, and why.
    """
    squeue = commands.squeue(node.policy.paths.scontrol)
    if not os.access(squeue, os.X_OK):
        found = f"{squeue} is missing: no job counts as successful, so what is kept of those alone is not harvested"
        change = "install Slurm's client commands, or correct paths.scontrol (same directory)"
        yield Finding(WRONG if node.policy.harvest.only_successful else ADVICE, found, change)
    name = node.policy.images.importer
    importers, importer = choice.programs(name), choice.installed(name)
    if name == "auto":
        is_there = "there" if os.path.exists(choice.UMOCI) else "not there"
        importer = f"{importer} (images.importer is auto, and {choice.UMOCI} is {is_there})"
    needed = [*PROGRAMS, *importers]
    missing = [program for program in needed if not os.access(program, os.X_OK)]
    try:
        layer_reader.zstd_library()
    except OSError:
        missing.append(layer_reader.ZSTD_LIBRARY)
    if missing:
        packages = sorted({PACKAGES[os.path.basename(program)] for program in missing})
        change = f"apt-get install {' '.join(packages)}, or your distribution's packages (docs/operations/install.md)"
        yield Finding(WRONG, f"missing: {', '.join(missing)}; the importer is {importer}", change)
        return
    versions = {program: _version(program) for program in dict.fromkeys((verify.UNSQUASHFS, *importers))}
    if broken := [program for program, version in versions.items() if not version]:
        found = f"{', '.join(broken)} cannot be run; the importer is {importer}"
        yield Finding(WRONG, found, f"run {broken[0]} by hand, and install it anew")
    else:
        yield Finding(OK, "; ".join([f"the importer is {importer}", *versions.values()]))


@check("node.killed-hooks")
def killed_hooks(node: Node) -> Iterator[Finding]:
    """Check for hooks that were killed lately: Slurm drains the node, and a dead hook gives no reason."""
    now = time.time()
    busy = _jobs_with_hooks(node)  # first: the last line of a hook that is not there now is in the log, if it wrote one
    killed = [
        hook
        for hook in hooks(_of_last_day(node), now)
        if hook.outcome == KILLED
        or (hook.outcome == UNFINISHED and hook.began < timestamp(now) and hook.job not in busy)
    ]
    if killed:
        last = max(killed, key=lambda hook: hook.began)
        found = (
            f"{len(killed)} hooks were killed in the last day, the last was the {last.name} of job {last.job} on "
            f"{last.node} at {last.began}"
        )
        change = (
            "look into dmesg (out of memory) and into Slurm's log (its timeout); a killed prolog or epilog "
            "drains its node with Slurm's own reason: resume it"
        )
        yield Finding(ADVICE, found, change)


@check("node.maintenance")
def maintenance(node: Node) -> Iterator[Finding]:
    """Check when each node's maintenance last succeeded (three intervals ago is overdue), and that it is ours alone."""
    for paths in node.nodes():
        name = paths.node
        try:
            require_keeper(paths, name)
        except NodeOfAnotherPod as error:
            yield Finding(WRONG, str(error), error.hint)
        is_new = not os.path.exists(paths.maintained)
        since = next(path for path in (paths.maintained, paths.began, paths.state) if os.path.exists(path))
        age = time.time() - os.stat(since).st_mtime
        if age > OVERDUE_INTERVALS * NODE_INTERVAL_S:
            last = "has never succeeded" if is_new else f"last succeeded {format_duration(age)} ago"
            change = f"{_timers(node)} and see `warmstart audit --outcome failed`; run `warmstart maintain`"
            yield Finding(WRONG, f"maintenance {last} on {name}", change)
        elif is_new:
            change = f"{_timers(node)}, or run `warmstart maintain`"
            yield Finding(ADVICE, f"maintenance has not succeeded yet on {name}", change)


@check("node.backlog")
def backlog(node: Node) -> Iterator[Finding]:
    """Check for work off the clock of jobs that nobody has begun: by the kind of each item."""
    late = dict[str, list[float]]()  # kind → since when
    now = time.time()
    for paths in node.nodes():
        for kind, items in waiting(paths).items():
            idle = [] if is_at_work(paths, kind) else items
            late.setdefault(kind, []).extend(item.due for item in idle if item.due < now - WAITING_S)
    for kind, times in late.items():
        if times:
            found = f"{kind}: {len(times)} wait, the oldest for {format_duration(now - min(times))}"
            change = f"{_timers(node)}; `warmstart audit --outcome failed` says what fails; is the store writable?"
            yield Finding(WRONG, found, change)


def _timers(node: Node) -> str:
    otherwise = f"let slurmd's supervisor run {node.installation.libexec}/timers"
    return units.scheduled(node.installation, "warmstart.target", otherwise)


def _jobs_with_hooks(node: Node) -> set[int]:
    """Return the jobs of which a hook is at work on this host."""
    program = f"{node.installation.lib}/python/warmstart/start.py".encode()
    found = set[int]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if program in (place / "cmdline").read_bytes().split(b"\0"):
                found.update(map(int, re.findall(rb"(?:^|\0)SLURM_JOB_ID=(\d+)", (place / "environ").read_bytes())))
    return found


def _of_last_day(node: Node) -> list[Line]:
    """Return the first and last lines of hooks on this host's nodes in the last day."""
    names = [paths.node for paths in node.nodes()]
    only = LineFilter(event="hook.*", since=timestamp(time.time() - LATELY_S))
    try:
        return [line for line in AuditLog([node.policy.paths.audit]).lines(only) if line.get("node") in names]
    except FileNotFoundError:
        return []  # no hook has run yet


def existing(path: str) -> str:
    """Return the path, or the directory in which the first hook makes it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _version(program: str) -> str:
    """Return what a program says of its version, "" if it cannot be run."""
    arguments = [VERSIONS.get(program, "--version")]
    try:
        done = process.run([program, *arguments], deadline=after(5.0))
    except WarmstartError:
        return ""
    if done.status < 0 or done.status in NOT_RUN:
        return ""
    first = (done.stdout or done.stderr).decode(errors="replace").strip().partition("\n")[0]
    return first if os.path.basename(program) in first else f"{os.path.basename(program)} {first}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


CHECKS = (accounts, disks, imports, programs, killed_hooks, maintenance, backlog)
