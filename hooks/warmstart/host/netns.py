"""Network namespaces with no way out but listening sockets that are served from outside. Not on the hot path.

A socket belongs to the namespace in which it was created, not to the process that holds it (network_namespaces(7)).
So a process outside can accept connections from inside and connect anywhere itself, while processes inside reach only
these sockets. Constants are from linux/sched.h, linux/sockios.h and linux/if.h.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.lean import libc

OWN = "/proc/thread-self/ns/net"  # unshare(2) and setns(2) affect only the calling thread
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_BACKLOG = 128


class Enclosure(NamedTuple):
    """A network namespace (descriptor) and the sockets that listen in it, in the order of the addresses."""

    fd: int
    sockets: tuple[socket.socket, ...]


@contextmanager
def enclosure(addresses: Sequence[tuple[str, int]]) -> Iterator[Enclosure]:
    """Create a network namespace with a loopback interface and sockets that listen on these IP addresses and ports.

    Needs root; raises `OSError` if the kernel refuses. The namespace ends when its descriptor and sockets are closed
    and no process runs in it.
    """
    outside, inside = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC), -1
    sockets: list[socket.socket] = []
    try:
        libc("unshare", _CLONE_NEWNET)
        try:
            _bring_up_loopback()
            sockets.extend(map(_listen, addresses))
            inside = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            libc("setns", outside, _CLONE_NEWNET)
        yield Enclosure(inside, tuple(sockets))
    finally:
        for listening in sockets:
            listening.close()
        for fd in (outside, inside):
            if fd >= 0:
                os.close(fd)


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _listen(address: tuple[str, int]) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
