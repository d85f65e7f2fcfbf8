"""Rooms: mount namespaces in which nodes of one host have directories of their own.

What a job's environment names has one path on all nodes of the job, and leads to the node's own directory there. In a
node's room such a path is the node's; outside, and in the other rooms, its directory has the node's name below that
path, and what is mounted in it is seen there, too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from warmstart.host import linux
from warmstart.host.namespaces import CLONE_NEWNS
from warmstart.lean import libc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

# What is mounted on a private mount appears nowhere else; a bind mount of a shared one is its peer.
_ROOM = 'for place; do mount --bind "$place/$0" "$place"; done; touch "$READY"; exec sleep infinity'
_NS_GET_MNTNS_ID = 0x8008B705  # linux/nsfs.h


def divide(base: Path, own: Mapping[Path, int], nodes: Sequence[str]) -> None:
    """Give nodes directories with a mode below each path of `own`. Rooms see what is mounted below `base` later on."""
    _bind(base, "shared")
    for place, mode in own.items():
        place.mkdir(parents=True, exist_ok=True)
        _bind(place, "private")
        for node in nodes:
            (place / node).mkdir()
            (place / node).chmod(mode)
            _bind(place / node, "shared")


def a_room(node: str, own: Iterable[Path]) -> list[str]:
    """Return the command line of a process that keeps a node's room; it makes the file $READY, and never ends."""
    unshare = ["/usr/bin/unshare", "--mount", "--propagation=unchanged"]
    return [*_on_the_oldest(), *unshare, "/bin/sh", "-euc", _ROOM, node, *map(str, own)]


def enter(pid: int) -> tuple[str, ...]:
    """Return the words before a command that runs in the room that a process keeps."""
    return ("/usr/bin/nsenter", f"--target={pid}", "--mount", "--")


def _bind(path: Path, propagation: str) -> None:
    for options in (["--bind", str(path)], ["--make-private"], [f"--make-{propagation}"]):
        subprocess.run(["/bin/mount", *options, str(path)], check=True)


def _on_the_oldest() -> Sequence[str]:
    """Return the words before a command that makes a mount namespace in which namespaces made later can be mounted.

    job_container does that. Linux lets it be done in one of a lower number alone, and 6.18 has numbers in stock for
    each processor, so that one made later may have the lower one.
    """
    numbers = dict[int, int]()
    for processor in sorted(os.sched_getaffinity(0)):
        with linux.child_in(partial(_in_new, processor), "mount namespace") as pid:
            number = bytearray(8)
            with suppress(OSError), open(f"/proc/{pid}/ns/mnt", "rb") as namespace:  # before 6.11: they are in order
                fcntl.ioctl(namespace, _NS_GET_MNTNS_ID, number)
            numbers[processor] = int.from_bytes(number, sys.byteorder)
    return ["/usr/bin/taskset", "-c", str(min(numbers, key=numbers.__getitem__))]


def _in_new(processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    libc("unshare", CLONE_NEWNS)
