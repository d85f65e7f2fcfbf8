"""Checks of this node: accounts, warmstart's directories, the workspace, programs, and what waits."""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from warmstart.audit.line import Line, timestamp
from warmstart.audit.query import AuditLog, LineFilter
from warmstart.doctor import probe, units
from warmstart.doctor.finding import (
    ADVICE,
    AS_ROOT,
    CRITICAL,
    OK,
    OVERDUE_INTERVALS,
    UNKNOWN,
    WRONG,
    Finding,
)
from warmstart.errand import Errands, is_at_work
from warmstart.errors import WarmstartError
from warmstart.harvest import pack
from warmstart.harvest.deferred import REMOVALS
from warmstart.harvest.live import ROUNDS
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import ROOT_ALONE, read_small, weakness
from warmstart.host.namespaces import mount_of, mounts
from warmstart.images import choice
from warmstart.images.credentials import CredentialsUnusable, login_at
from warmstart.images.importers import base, layer_reader
from warmstart.images.imports import requests, verify
from warmstart.images.imports.requests import IMPORTS
from warmstart.images.unpacks import NO_DISKS
from warmstart.paths import Installation, NodePaths
from warmstart.policy.compiled import Policy
from warmstart.policy.units import format_duration, format_size
from warmstart.report.lines import KILLED, hooks
from warmstart.session import NODE_INTERVAL_S, NodeOfAnotherPod, require_keeper

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
WAITING_S = 3600.0  # maintenance publishes spooled bundles each half hour; so do epilogs
LATELY_S = 86400.0
ROUNDS_LATE_S = 900.0  # three intervals of warmstart-harvest.timer
FSTAB = "/etc/fstab"
RUN_COLD, TO_SYSLOG = "jobs run cold", "its lines go to syslog alone"
LEASES = "/proc/sys/fs/leases-enable"
LARGEST_HOOK = 1 << 20
MOST_NAMED = 3  # places in a finding
AFTER_CHANGES = "; then install it anew, because it may have been changed"


class Node(NamedTuple):
    """The installation and the policy in force."""

    installation: Installation
    policy: Policy

    def nodes(self) -> list[NodePaths]:
        """Return the directories of this host's nodes."""
        return [self.installation.node(name) for name in self.installation.nodes()]


def accounts(node: Node) -> Iterator[Finding]:
    """Check the three accounts: distinct unprivileged uids, the same as when the policy was compiled."""
    bad, seen, others = list[Finding](), set(), list[str]()
    for key in ACCOUNTS:
        account = getattr(node.policy, key)
        try:
            user = pwd.getpwnam(account.name)
        except KeyError:
            make = f"`useradd --system --uid {account.uid} --no-create-home --shell /usr/sbin/nologin {account.name}`"
            bad.append(Finding(WRONG, f"{key} {account.name} does not exist", make))
            continue
        groups = {_group(gid) for gid in os.getgrouplist(user.pw_name, user.pw_gid)}
        if (user.pw_uid, user.pw_gid) != (account.uid, account.gid):
            others.append(f"{account.name} is {user.pw_uid}:{user.pw_gid}, but hooks use {account.uid}:{account.gid}")
        leave = ", ".join(f"`gpasswd -d {account.name} {group}`" for group in sorted(groups & POWERFUL))
        if user.pw_uid == 0 or leave:
            found = f"{account.name} is privileged (uid {user.pw_uid}; {', '.join(sorted(groups & POWERFUL))})"
            mend = f"take it out of these groups: {leave}" if user.pw_uid else f"name another account as {key}"
            bad.append(Finding(WRONG, found, mend))
        if user.pw_uid in seen:
            found = f"{account.name} shares uid {user.pw_uid} with another of the three"
            bad.append(Finding(WRONG, found, f"name another account as {key}"))
        seen.add(user.pw_uid)
    if others:
        change = (
            f"if the accounts are right now, touch {node.installation.policy}: the next hook compiles the policy with "
            "their ids; else give them back the ids that own the store"
        )
        found = (
            f"{'; '.join(others)}: {'it' if len(others) == 1 else 'they'} had other ids when the policy was compiled"
        )
        yield Finding(WRONG, found, change)
    yield from bad
    if not bad and not others:
        yield Finding(OK, "store_user, import_user and validate_user are three unprivileged accounts")


def state(node: Node) -> Iterator[Finding]:
    """Check that only root can change warmstart's state, because root trusts its contents."""
    yield from _owned_by_root([node.installation.var], CRITICAL, "hooks create it")


def code(node: Node) -> Iterator[Finding]:
    """Check who can change what root runs: programs, modules, their Python and units. They are root on this node."""
    own, python = node.installation, list[str]()
    with suppress(OSError):
        hook = read_small(f"{own.libexec}/prolog", LARGEST_HOOK).decode("utf-8", "replace")
        python = re.findall(r"^python=(/\S+)", hook, re.MULTILINE)
    weak = probe.changeable([own.lib, own.libexec, f"{own.prefix}/bin/warmstart", *units.files(), *python])
    if weak:
        more = f"; and {len(weak) - MOST_NAMED} more" if len(weak) > MOST_NAMED else ""
        found = f"others than root can change code that root runs: {'; '.join(map(str, weak[:MOST_NAMED]))}{more}"
        ours = f"{own.lib} {own.libexec}"  # what is below them is warmstart's alone
        whole = f"`chown -R root {ours}`, `chmod -R go-w {ours}`"
        yield Finding(CRITICAL, found, (whole if more else probe.closing(weak)) + AFTER_CHANGES)
    else:
        yield Finding(OK, "only root can change the code that root runs")


def workspace(node: Node) -> Iterator[Finding]:
    """Check that only root can rename entries of the workspaces' parents, or create a parent that is missing."""
    yield from _owned_by_root([node.policy.paths.workspace], WRONG, "the first prolog creates it", sticky=False)


def file_system(node: Node) -> Iterator[Finding]:
    """Check that workspaces are on a local disk: a job that hangs on a file server would hang its epilog."""
    kind, mount_point = mount_of(os.path.realpath(existing(node.policy.paths.workspace)))
    if kind in SHARED or kind.startswith("fuse"):
        found = f"the workspace is on {kind} ({mount_point}), which is not a local file system"
        yield Finding(WRONG, found, "put paths.workspace on a local disk")
    elif kind in ("tmpfs", "ramfs"):
        found = f"the workspace is on {kind} ({mount_point}), which uses memory"
        yield Finding(ADVICE, found, "put paths.workspace on a local disk")
    else:
        yield Finding(OK, f"the workspace is on {kind} ({mount_point})")
    if read_small(LEASES, 16).strip() == b"0":
        found = "fs.leases-enable is 0: no image can be imported, because a lease proves that nobody writes to one"
        yield Finding(WRONG, found, "sysctl -w fs.leases-enable=1, and remove what sets it to 0 from /etc/sysctl.d")


def space(node: Node) -> Iterator[Finding]:
    """Check for free space and inodes: a job whose workspace cannot be made runs cold."""
    path = existing(node.policy.paths.workspace)
    seen = os.statvfs(path)
    free = 100 * seen.f_bavail / max(seen.f_blocks, 1)
    inodes = 100 * seen.f_favail / seen.f_files if seen.f_files else 100.0  # btrfs has no such limit
    words = f"{free:.0f}% of the bytes and {inodes:.0f}% of the inodes are free where workspaces are"
    if min(free, inodes) < LEAST_FREE or _is_full(seen):
        yield Finding(WRONG, words, "free space, or give paths.workspace a file system of its own")
    else:
        yield Finding(OK, words)


def disks(node: Node) -> Iterator[Finding]:
    """Check the disks of state and audit log: a read-only state drains the node, a full one lets jobs run cold."""
    places = (
        ("warmstart's state", node.installation.var, CRITICAL, "every prolog fails and drains the node", RUN_COLD),
        ("the audit log", os.path.dirname(node.policy.paths.audit), WRONG, TO_SYSLOG, TO_SYSLOG),
    )
    bad = False
    for what, path, if_read_only, cost, if_full in places:
        seen = os.statvfs(existing(path))
        is_full = _is_full(seen)
        if seen.f_flag & os.ST_RDONLY:
            found = f"{path} is on a read-only file system, so {what} cannot be written: {cost}"
            yield Finding(if_read_only, found, "see dmesg; repair it, or mount -o remount,rw")
        elif is_full:
            found = f"the disk of {what} ({path}) is full: {if_full}"
            yield Finding(WRONG, found, "free space and inodes there")
        bad = bad or bool(seen.f_flag & os.ST_RDONLY or is_full)
    if not bad:
        yield Finding(OK, "state and audit log are on disks that take files")


def _is_full(seen: os.statvfs_result) -> bool:
    return seen.f_bavail * seen.f_frsize < LEAST_BYTES or bool(seen.f_files and seen.f_favail < LEAST_INODES)


def shelf(node: Node) -> Iterator[Finding]:
    """Look whether images can be unpacked where the policy says."""
    path = node.policy.paths.shelf
    if path is None:
        yield Finding(OK, "the policy names no shelf: no image is unpacked")
        return
    kind, point = mount_of(os.path.realpath(existing(path)))
    if disk := _unmounted(os.path.realpath(path)):
        found = f"{path} (paths.shelf) is on {point}: {disk} is not mounted, and what is unpacked fills another disk"
        yield Finding(WRONG, found, f"`mount {disk}`")
    elif not os.path.isdir(path):
        found = f"there is no directory {path} (paths.shelf): no image is unpacked, because no job makes it"
        yield Finding(WRONG, found, f"mount its disk, then `install -d -m 755 {path}`")
    elif kind in NO_DISKS and not node.policy.images.unpack.any_disk:
        yield Finding(
            WRONG,
            f"{path} (paths.shelf) is on {kind}, no disk: no image is unpacked",
            "name a directory on a local disk, or set images.unpack.any_disk",
        )
    else:
        yield from _owned_by_root([path], WRONG, "")


def _unmounted(path: str) -> str:
    """Return the mount point of fstab(5) at or above a path where nothing is mounted; "" without one."""
    with suppress(FileNotFoundError):
        rows = [line.split() for line in read_small(FSTAB, LARGEST_HOOK).decode("utf-8", "replace").splitlines()]
        mounted, above = {mount.point for mount in mounts()}, {path, *map(str, Path(path).parents)}
        points = [row[1] for row in rows if len(row) > 1 and not row[0].startswith("#")]
        return next((point for point in points if point in above and point not in mounted), "")
    return ""


def proxy(node: Node) -> Iterator[Finding]:
    """Connect to the proxy for imports."""
    address = node.policy.images.proxy
    if address is None:
        yield Finding(OK, "imports use no proxy")
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PROXY_S).close()
    except OSError as error:
        found = f"images.proxy {address} does not answer ({error.strerror or error}): nothing is imported"
        yield Finding(WRONG, found, "start it, or correct images.proxy")
    else:
        yield Finding(OK, f"images.proxy {address} answers")


def audit_log(node: Node) -> Iterator[Finding]:
    """Check that the audit log is this host's alone, and that only root can write what tells what happened."""
    log = node.policy.paths.audit
    path = existing(os.path.dirname(log))
    kind, mount_point = mount_of(os.path.realpath(path))
    places = [str(place) for place in (Path(log), *Path(log).parents) if os.path.lexists(place)]
    others = [probe.owned(place, seen) for place in places if _is_others(seen := os.stat(place))]
    if others:
        found = f"others than root can change the audit log {log}: a user could remove what it says, or fill it"
        yield Finding(WRONG, found, probe.closing(others, bits="o-w"))
    elif kind in SHARED or kind.startswith("fuse"):
        found = f"the audit log {log} is on {kind} ({mount_point}): nodes that write one file lose lines"
        change = "put paths.audit on a local disk, and collect the logs (docs/reference/audit.md#rotation)"
        yield Finding(WRONG, found, change)
    else:
        yield Finding(OK, f"the audit log {log} is this host's, and root's")


def credentials(node: Node) -> Iterator[Finding]:
    """Check the site's credentials as an import reads them: root's alone, and a login for each registry."""
    keys = node.policy.images.credentials
    if keys is None:
        yield Finding(OK, "the policy names no credentials")
        return
    if os.geteuid() != 0:
        yield Finding(UNKNOWN, f"{keys.file}: not read", AS_ROOT)
        return
    problems = []
    for registry in sorted({item.repository.partition("/")[0] for item in keys.repositories}):
        try:
            login_at(keys.file, registry)
        except CredentialsUnusable as error:
            problems.append(error)
    if os.path.exists(keys.file) and weakness_of_secret(os.stat(keys.file)):
        found = f"others than root can read {keys.file}, or change it: they have the site's logins"
        yield Finding(
            CRITICAL, found, f"`chown root {keys.file}`, `chmod 600 {keys.file}`; then change the passwords in it"
        )
    elif problems:
        yield Finding(WRONG, "; ".join(map(str, problems)), problems[0].hint)
    else:
        yield Finding(OK, f"{keys.file} has a login for each registry")


def _is_others(seen: os.stat_result) -> bool:
    """Return whether a user owns a file or directory, or anybody can change it; a group may be a daemon's."""
    return seen.st_uid != 0 or bool(seen.st_mode & stat.S_IWOTH and not seen.st_mode & stat.S_ISVTX)


def weakness_of_secret(seen: os.stat_result) -> bool:
    """Return whether others than root can read or change a file."""
    return seen.st_uid != 0 or bool(seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def limits(node: Node) -> Iterator[Finding]:
    """Check which file system a job can fill: a workspace has no size limit."""
    kind, mount_point = mount_of(os.path.realpath(existing(node.policy.paths.workspace)))
    if mount_point == "/":
        found = "workspaces have no size limit and are on the node's root file system: a job can fill it"
        yield Finding(ADVICE, found, "give paths.workspace a file system of its own")
    else:
        yield Finding(OK, f"workspaces have no size limit; a job can fill only {mount_point} ({kind})")


def tools(node: Node) -> Iterator[Finding]:
    """Check for the programs that hooks run by absolute path, and for the library that reads layers in zstd.

    Says which importer the policy means here, and why.
    """
    name = node.policy.images.importer
    importers, importer = choice.programs(name), choice.installed(name)
    if name == "auto":
        is_there = "there" if os.path.exists(choice.UMOCI) else "not there"
        importer = f"{importer} (images.importer is auto, and {choice.UMOCI} is {is_there})"
    programs = [*PROGRAMS, *importers]
    missing = [program for program in programs if not os.access(program, os.X_OK)]
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


def keeper(node: Node) -> Iterator[Finding]:
    """Check that no pod that lives has its state here, too: it sees other mounts and other step daemons."""
    for name in node.installation.nodes():
        try:
            require_keeper(node.installation.node(name), name)
        except NodeOfAnotherPod as error:
            yield Finding(WRONG, str(error), error.hint)
            return
    yield Finding(OK, "no other pod has its state here")


def killed_hooks(node: Node) -> Iterator[Finding]:
    """Check for hooks that were killed lately: Slurm drains the node, and a dead hook gives no reason."""
    killed = [hook for hook in hooks(_of_last_day(node), time.time()) if hook.outcome == KILLED]
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
    else:
        yield Finding(OK, "no hook was killed in the last day")


def maintenance(node: Node) -> Iterator[Finding]:
    """Check when each node's maintenance last succeeded: three intervals ago is overdue."""
    overdue, new = [], []
    for paths in node.nodes():
        name = os.path.basename(paths.root)
        try:
            since, words = os.stat(paths.maintained, follow_symlinks=False).st_mtime, ""
        except FileNotFoundError:
            since, words = os.stat(paths.root).st_mtime, "has never succeeded"
        age = time.time() - since
        if age > OVERDUE_INTERVALS * NODE_INTERVAL_S:
            overdue.append(f"{words or f'last succeeded {format_duration(age)} ago'} on {name}")
        elif words:
            new.append(name)
    if overdue:
        change = f"{_timers(node)} and see its failures (`warmstart audit --outcome failed`); run `warmstart maintain`"
        yield Finding(WRONG, f"maintenance {', '.join(overdue)}", change)
    elif new:
        change = f"{_timers(node)}, or run `warmstart maintain`"
        yield Finding(ADVICE, f"maintenance has not succeeded yet on {', '.join(new)}", change)
    else:
        yield Finding(OK, "maintenance is up to date")


def spool(node: Node) -> Iterator[Finding]:
    """Check for spooled bundles, which the store did not accept."""
    count, total, oldest = 0, 0, time.time()
    for paths in node.nodes():
        for directory, _, names in os.walk(paths.spool, onerror=_unless_missing):
            statuses = [os.stat(f"{directory}/{name}", follow_symlinks=False) for name in names]
            count += len(statuses) > 0
            total += sum(status.st_size for status in statuses)
            oldest = min([oldest, *(status.st_mtime for status in statuses)])
    words = f"{count} bundles ({format_size(total)}) wait for the store"
    if time.time() - oldest > WAITING_S:
        found = f"{words}, the oldest for {format_duration(time.time() - oldest)}"
        yield Finding(WRONG, found, f"check that the store is writable; {_timers(node)}")
    else:
        yield Finding(OK, words)


def removals(node: Node) -> Iterator[Finding]:
    """Check for runs of jobs that are over and whose directories are still being removed."""
    waiting = [item for paths in node.nodes() for item in Errands(paths, REMOVALS).all()]
    oldest = min((float(item.due) for item in waiting), default=time.time())
    words = f"directories of {len(waiting)} jobs that are over are being removed"
    if time.time() - oldest > WAITING_S:
        found = f"{words}, the oldest for {format_duration(time.time() - oldest)}"
        change = f"{_timers(node)}; `warmstart audit --outcome failed` names what a process or mount holds"
        yield Finding(WRONG, found, change)
    else:
        yield Finding(OK, words)


def imports(node: Node) -> Iterator[Finding]:
    """Check for background imports that nobody works on, and for those that failed lately."""
    waiting, stuck, failed = 0, [], []
    for paths in node.nodes():
        for errand, request in requests.waiting(paths):
            waiting += not errand.attempts
            is_old = time.time() - errand.tried(IMPORTS) > NODE_INTERVAL_S  # maintenance has not started it
            if is_old and not is_at_work(paths, IMPORTS.name):
                stuck.append(request.reference)
        failed += requests.failures(paths)
    if stuck:
        change = f"{_timers(node)}, or run `warmstart maintain`"
        yield Finding(WRONG, f"nobody makes the import of {', '.join(stuck)}", change)
    for failure in failed:
        status = WRONG if failure.code.startswith("registry-") else ADVICE  # of all images there, whoever asks
        found = f"an import failed in the last hour: {failure.text}"
        yield Finding(status, found, "`warmstart audit --event image.import-failed`")
    if not stuck and not failed:
        yield Finding(OK, f"{waiting} imports wait for their turn, none has failed in the last hour")


def rounds(node: Node) -> Iterator[Finding]:
    """Check for jobs that are to be harvested while they run, and that nobody looks at."""
    if node.policy.harvest.while_running is None:
        return
    jobs = [
        errand.key.partition(".")[0]
        for paths in node.nodes()
        for errand in Errands(paths, ROUNDS).all()
        if errand.due < time.time() - ROUNDS_LATE_S and not is_at_work(paths, ROUNDS.name)
    ]
    if jobs:
        yield Finding(WRONG, f"nobody harvests jobs while they run: {', '.join(jobs)}", _timers(node))
    else:
        yield Finding(OK, "jobs are harvested while they run")


def _timers(node: Node) -> str:
    otherwise = f"let slurmd's supervisor run {node.installation.libexec}/timers"
    return units.scheduled(node.installation, "warmstart.target", otherwise)


def _of_last_day(node: Node) -> list[Line]:
    """Return the first and last lines of hooks on this host's nodes in the last day."""
    names = [os.path.basename(paths.root) for paths in node.nodes()]
    only = LineFilter(event="hook", since=timestamp(time.time() - LATELY_S))
    try:
        return [line for line in AuditLog([node.policy.paths.audit]).lines(only) if line.get("node") in names]
    except FileNotFoundError:
        return []  # no hook has run yet


def _has_failed(line: Line, code: str) -> bool:
    failures = line.get("failures")
    return isinstance(failures, list) and any(isinstance(one, dict) and one.get("code") == code for one in failures)


def _owned_by_root(paths: list[str], status: str, otherwise: str, *, sticky: bool = True) -> Iterator[Finding]:
    """Check directories and all above them: owned by root and writable only by root, or sticky.

    If one is not, the finding has `status`; of directories that do not exist it adds `otherwise`. Without `sticky` that
    is enough above them alone.
    """
    missing = [path for path in paths if not os.path.lexists(path)]
    first = next((path for path in missing if weakness(os.lstat(existing(path)))), "")
    places = {place: None for path in map(existing, paths) for place in (path, *map(str, Path(path).parents))}
    links = [place for place in places if os.path.islink(place) or not os.path.isdir(place)]
    seen = [probe.owned(place, os.lstat(place)) for place in places if place not in links]
    judged = [
        place if sticky or place.path not in paths else place._replace(mode=place.mode & ~stat.S_ISVTX)
        for place in seen
    ]
    bad = probe.unsafe(judged, ROOT_ALONE)
    if bad or first:
        told = [str(place) for place, as_judged in zip(seen, judged, strict=True) if as_judged in bad]
        told.append(f"{first}, which anybody can create first in {existing(first)}" if first else "")
        change = [probe.closing(bad), f"`install -d -m 755 {first}`" if first else ""]
        found = f"others than root can change {', '.join(filter(None, told))}"
        yield Finding(status, found, ", ".join(filter(None, change)))
    elif links:
        found = f"{', '.join(links)} is a link, or no directory, which hooks do not follow"
        yield Finding(status, found, f"name the directory itself ({os.path.realpath(paths[0])}), or put it there")
    elif missing:
        yield Finding(OK, f"{', '.join(missing)} does not exist yet; {otherwise}")
    else:
        yield Finding(OK, f"only root can change {', '.join(paths)}")


def existing(path: str) -> str:
    """Return the path, or the directory in which the first hook makes it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def why_untried(path: str) -> list[Finding] | None:
    """Return why nothing can be tried in a directory, None if it can.

    What `workspace` and `space` tell is not told again.
    """
    if os.geteuid() != 0:
        return [Finding(UNKNOWN, "not tried: it takes root", AS_ROOT)]
    return [] if weakness(os.stat(path), sticky=True) or _is_full(os.statvfs(path)) else None


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


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


CHECKS = {
    "node.accounts": accounts,
    "node.code": code,
    "node.state": state,
    "node.workspace": workspace,
    "node.file-system": file_system,
    "node.space": space,
    "node.limits": limits,
    "node.disks": disks,
    "node.audit-log": audit_log,
    "node.shelf": shelf,
    "node.credentials": credentials,
    "node.proxy": proxy,
    "node.programs": tools,
    "node.killed-hooks": killed_hooks,
    "node.maintenance": maintenance,
    "node.keeper": keeper,
    "node.spool": spool,
    "node.removals": removals,
    "node.imports": imports,
    "node.rounds": rounds,
}
