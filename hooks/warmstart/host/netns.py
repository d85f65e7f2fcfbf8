"""A network namespace with nothing in it but sockets that somebody outside serves. Never on a warm hook's path.

A socket belongs to the namespace that it was made in and not to its process (network_namespaces(7)): who accepts
from one of these may connect anywhere from outside, and nobody inside reaches anything but them. Constants are from
linux/sched.h, linux/sockios.h and linux/if.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

OWN = "/proc/thread-self/ns/net"  # unshare(2) and setns(2) are for the calling thread alone
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
BACKLOG = 128


class Enclosure(NamedTuple):
    """The namespace's descriptor, and its listening sockets in the order in which they were asked for."""

    fd: int
    sockets: tuple[socket.socket, ...]


@contextmanager
def enclosure(addresses: Sequence[tuple[str, int]]) -> Iterator[Enclosure]:
    """Make a namespace with a loopback interface and sockets that listen on these IP addresses and ports.

    Root's; `OSError` where the kernel refuses. It is gone when nobody has the descriptor, a socket, or runs in it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    home, inside = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC), -1
    sockets: list[socket.socket] = []
    try:
        _check(libc.unshare(CLONE_NEWNET))
        try:
            _raise_loopback()
            sockets.extend(map(_listening, addresses))
            inside = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _check(libc.setns(home, CLONE_NEWNET))
        yield Enclosure(inside, tuple(sockets))
    finally:
        for listening in sockets:
            listening.close()
        for fd in (home, inside):
            if fd >= 0:
                os.close(fd)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def _listening(address: tuple[str, int]) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
