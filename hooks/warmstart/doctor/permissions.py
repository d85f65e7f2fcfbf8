"""Who can change what warmstart trusts: one table of paths, and one walk, for all of doctor's checks.

Whoever owns or can write a file or a directory, a directory above it, or a link that leads there, can put something
else at the path (docs/threats.md, rows 6, 19 and 34).
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from warmstart.doctor import units
from warmstart.doctor.finding import CRITICAL, WRONG, Finding, check
from warmstart.errors import PolicyError
from warmstart.host.files import read_small
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy

WRITE = stat.S_IWGRP | stat.S_IWOTH
BY_ANYBODY = stat.S_IWOTH  # a group may be a daemon's
USE = stat.S_IRWXG | stat.S_IRWXO
EVERY_FILE = 1 << 20
MOST_DIRECTORIES = 20_000
MOST_FOUND = 100
MOST_NAMED = 3  # in a finding
MOST_LINKS = 40  # in one path, as Linux (path_resolution(7))
LARGEST_HOOK = 1 << 20
AFTER_CHANGES = "; then install it anew, because it may have been changed"


class Place(NamedTuple):
    """Paths that only their owners may change, and what to say if others can."""

    what: str  # in "others than root can …"
    severity: str
    paths: list[str]
    owners: tuple[int, ...] = (0,)
    denied: int = WRITE  # bits of the mode that nobody else may have
    below: int = 0  # how many files of each directory below a path are looked at; 0: nothing below it
    sticky: bool = False  # others may add to it what is theirs
    made: bool = False  # hooks make it if it is missing: nobody else may, first; and they follow no link
    but: str = ""  # a directory on the way whose mode says nothing
    mend: str = ""  # the commands for what is below, where they are not simply those for each path
    then: str = ""  # what to do afterwards


class Owned(NamedTuple):
    """Who owns a file, directory or link, and what others may do there: the bits of its mode that they must not have.

    A link's own mode says nothing: it is -1.
    """

    path: str
    uid: int
    mode: int
    excess: int

    def __str__(self) -> str:
        return f"{self.path} (uid {self.uid}{f', mode {self.mode:04o}' if self.mode >= 0 else ''})"


class Seen(NamedTuple):
    """What others can change of a place: on the way to its paths and at them, and below them."""

    there: list[Owned]
    below: list[Owned]
    missing: str = ""  # a path that does not exist yet, where anybody can make it
    link: str = ""  # or no directory, on the way to a path that hooks make


def places(installation: Installation, policy: Policy | None) -> list[Place]:
    """Return what only root may change on a node; without a policy what every node has. The most severe come first."""
    own, trees = installation, [path for path in (installation.lib, installation.libexec) if os.path.isdir(path)]
    programs = [f"{own.prefix}/bin/warmstart", *_pythons(own), *units.files()]
    programs = [path for path in programs if os.path.isfile(path) or os.path.isdir(path)]  # not a masked unit
    whole = f"`chown -R root {shlex.join(trees)}`, `chmod -R go-w {shlex.join(trees)}`"
    code = Place("change code that root runs", CRITICAL, programs, below=EVERY_FILE, then=AFTER_CHANGES)
    found = [
        code._replace(paths=trees, mend=whole),
        code,
        Place("change warmstart's state", CRITICAL, [own.runtime, own.var], made=True),
        Place("change the policy", CRITICAL, [own.policy, f"{own.etc}/conf.d"], below=EVERY_FILE, but=_volume(own.etc)),
    ]
    if policy is not None and (keys := policy.images.credentials):
        then = "; then change the passwords in it"
        found.append(Place("read or change the site's logins", CRITICAL, [keys.file], denied=USE, then=then))
    if policy is not None:
        found += [
            Place("change the workspaces", WRONG, [policy.paths.workspace], made=True),
            Place("change the audit log", WRONG, [policy.paths.audit], denied=BY_ANYBODY),
        ]
    if policy is not None and (shelf := policy.paths.shelf):
        found.append(Place("change paths.shelf", WRONG, [shelf], sticky=True, made=True))
    return found


def _volume(etc: str) -> str:
    """Return the policy's directory if it is a ConfigMap: all may write there, but Kubernetes mounts it read-only."""
    is_volume = os.path.islink(f"{etc}/..data") and os.statvfs(etc).f_flag & os.ST_RDONLY
    return etc if is_volume else ""


def _pythons(installation: Installation) -> list[str]:
    """Return the Python that hooks are run by, with links that lead to it."""
    with suppress(OSError):
        hook = read_small(f"{installation.libexec}/prolog", LARGEST_HOOK).decode("utf-8", "replace")
        return re.findall(r"^python=(/\S+)", hook, re.MULTILINE)
    return []


@check("node.permissions", critical=True)
def permissions(installation: Installation) -> Iterator[Finding]:
    """Check that only root can change what root trusts or runs on this node."""
    policy = None
    with suppress(PolicyError):
        policy = current_policy(installation).policy
    known = set[str]()  # a directory above several places is told once
    for place in places(installation, policy):
        seen = look(place)
        yield from told(place, seen._replace(there=[each for each in seen.there if each.path not in known]))
        known.update(each.path for each in seen.there)


def told(place: Place, seen: Seen, whose: str = "root") -> Iterator[Finding]:
    """Say what others than `whose` can change of a place, and which commands end that and change nothing else."""
    weak = [*seen.there, *seen.below]
    if weak or seen.missing:
        named = [*map(str, weak[:MOST_NAMED])]
        named += [f"{len(weak) - MOST_NAMED} more"] if len(weak) > MOST_NAMED else []
        change = [_closing(seen.there if place.mend else weak, place), place.mend if seen.below else ""]
        if seen.missing:
            named.append(f"{seen.missing}, which anybody can create first in {_existing(seen.missing)}")
            change.append(f"`install -d -m 755 {seen.missing}`")
        found = f"others than {whose} can {place.what}: {'; '.join(named)}"
        yield Finding(place.severity, found, ", ".join(filter(None, change)) + place.then)
    elif seen.link:
        found = f"{seen.link} is a link, or no directory, which hooks do not follow"
        directly = f"name the directory itself ({os.path.realpath(place.paths[0])}), or put it there"
        yield Finding(place.severity, found, directly)


def _closing(weak: Iterable[Owned], place: Place) -> str:
    commands: dict[str, list[str]] = {"chown -h root": [each.path for each in weak if each.uid not in place.owners]}
    for each in weak:
        if each.excess:
            bits = "go=" if each.excess & ~WRITE else "go-w" if place.denied & stat.S_IWGRP else "o-w"
            commands.setdefault(f"chmod {bits}", []).append(each.path)
    return ", ".join(f"`{command} {shlex.join(paths)}`" for command, paths in commands.items() if paths)


def look(place: Place) -> Seen:
    """Return what others can change of a place. Needs no right to read it. Raises `OSError`."""
    there, below, missing, link = dict[Owned, None](), list[Owned](), "", ""
    for path in place.paths:
        way = list(resolved(path))
        is_there = os.path.exists(path)
        for entry, status in way:
            is_last = is_there and entry == way[-1][0]
            denied = place.denied if is_last else place.denied & WRITE
            sticky = place.sticky or not is_last  # in such a directory others change nothing that is not theirs
            if entry != place.but:
                there.update(dict.fromkeys(_weak(entry, status, place.owners, denied, sticky=sticky)))
            if place.made and not link and not stat.S_ISDIR(status.st_mode):
                link = entry
        if place.made and not is_there and way and stat.S_ISDIR(way[-1][1].st_mode) and way[-1][1].st_mode & WRITE:
            missing = path
        if place.below and is_there:
            below += _below(way[-1][0], place)
    return Seen([*there], [each for each in below if each not in there], missing, link)


def _weak(
    path: str, status: os.stat_result, owners: Iterable[int], denied: int, *, sticky: bool = False
) -> Iterator[Owned]:
    is_link = stat.S_ISLNK(status.st_mode)
    is_open = not is_link and not (sticky and status.st_mode & stat.S_ISVTX)
    seen = Owned(
        path,
        status.st_uid,
        -1 if is_link else stat.S_IMODE(status.st_mode),
        status.st_mode & denied if is_open else 0,
    )
    if seen.excess or seen.uid not in owners:
        yield seen


def _below(path: str, place: Place) -> list[Owned]:
    """Return what others can change below a path: in all directories, and of some files of each."""
    found: list[Owned] = []
    looked = [path]
    for number, directory in enumerate(looked):
        if number == MOST_DIRECTORIES or len(found) > MOST_FOUND:
            break
        few = place.below
        # Gone meanwhile; another's, as is told of it; a file.
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    looked.append(entry.path)
                elif few and entry.is_file(follow_symlinks=False):
                    few -= 1
                else:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found += _weak(entry.path, status, [0, *place.owners], place.denied)
    return found


def resolved(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what decides where a path leads, in the order of resolution: directories and links, then what it is.

    Without `/`. Ends where something is missing. Needs no right to read anything. Raises `OSError`.
    """
    here, names = "/", path.split("/")
    links = 0
    while names:
        name = names.pop(0)
        if name in ("", ".", ".."):
            here = os.path.dirname(here) if name == ".." else here
            continue
        entry = os.path.join(here, name)
        try:
            status = os.lstat(entry)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(entry)
            names[:0] = target.split("/")
            here = "/" if target.startswith("/") else here
        else:
            here = entry
        yield entry, status


def _existing(path: str) -> str:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path
