"""The ledger of this host's reserved ports, and the test that nobody listens on one.

    <var>/ports/<port>      root, 0600: whose it is; one directory for all slurmds of a host, which share its ports

A port belongs to a job from its prolog to its epilog on the head node. Entries of another boot count for nothing:
their jobs are gone. The ledger does not keep other programs from binding a port after the test (docs/threats.md,
row 18).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.errors import PolicyError, ResourceError
from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.host.files import DIRECTORY, ensure_dir, read_small, unlink_if_there, write_all

EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
_LONGEST_ENTRY = 4096
_PAUSE_S = 0.01
# Knuth's multiplicative hash: consecutive job ids begin far apart.
_SPREAD = 2654435761


class PortsExhausted(ResourceError):
    """Every port of the range is reserved or in use."""

    code = "rendezvous-exhausted"
    template = "too few free ports between {low} and {high} on this node"
    hint = "what listens there (ss -ltnp)? else widen the range in the policy"


class PortsOverQuota(ResourceError):
    """One user may hold so many ports of a host."""

    code = "rendezvous-over-quota"
    template = "the user's jobs hold {held} rendezvous ports of this node; {more} more would exceed {per_user}"
    hint = "fewer jobs at once with this head node, or ask for rendezvous.per_user to be raised"


class RangeEphemeral(PolicyError):
    """The kernel gives ports of this range to clients, so a reserved one may be taken at any moment."""

    code = "rendezvous-range-ephemeral"
    template = "rendezvous ports {low}-{high} overlap this node's ephemeral range {first}-{last}"
    hint = "change the range in the policy, or net.ipv4.ip_local_port_range on the node"


class LedgerBusy(ResourceError):
    """Another hook of this host holds the ledger's lock."""

    code = "rendezvous-ledger-busy"
    template = "another hook of this host is at work on {directory}"
    hint = "is the node overloaded, or its disk very slow?"


class Holder(NamedTuple):
    """For which run of which job ports are reserved, on which of the host's nodes."""

    node: str
    job_id: int
    run_id: str
    uid: int
    boot_id: str


class PortRequest(NamedTuple):
    """How many ports of which range (both ends included), and how many one user may hold on this host."""

    low: int
    high: int
    number: int
    per_user: int


def reserve(directory: str, holder: Holder, request: PortRequest, restarts: int, deadline: Deadline) -> list[int]:
    """Reserve ports that nobody else has and nobody uses, all or none; the directory is made if it is missing.

    `restarts` tells the runs of a job apart: a run that is prepared twice tries the same ports first. The next run
    begins with others, since processes of the run before may still hold its ports. Raises this module's errors, and
    `OSError`.
    """
    check_range(request.low, request.high)
    ensure_dir(directory, 0o700)
    with _ledger_lock(directory, deadline) as ledger:
        taken = _taken(ledger, holder)
        held = sum(other.uid == holder.uid for other in taken.values())
        if held + request.number > request.per_user:
            raise PortsOverQuota(held=held, more=request.number, per_user=request.per_user)
        ports: list[int] = []
        try:
            for port in _candidates(request, holder.job_id, restarts):
                if port not in taken and is_free(port) and _enter(ledger, port, holder):
                    ports.append(port)
                if len(ports) == request.number:
                    return ports
            raise PortsExhausted(low=request.low, high=request.high)
        except BaseException:
            for port in ports:
                unlink_if_there(str(port), ledger)
            raise


def held_by(directory: str, node: str, job_id: int) -> list[int]:
    """Return the ports of a job on a node, whichever run reserved them."""
    try:
        ledger = os.open(directory, DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return sorted(port for port, holder in _entries(ledger) if holder and holder[:2] == (node, job_id))
    finally:
        os.close(ledger)


def release(directory: str, node: str, job_id: int, deadline: Deadline) -> None:
    """Give back every port of a job on a node; `LedgerBusy` at the deadline."""
    with _ledger_lock(directory, deadline) as ledger:
        for port in held_by(directory, node, job_id):
            unlink_if_there(str(port), ledger)


def is_free(port: int) -> bool:
    """Tell whether nobody has bound the TCP port, on any address of either family."""
    import socket  # slow to import; only the head node of a job that wants ports comes here

    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - the test is of every address
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))  # without SO_REUSEADDR: connections that linger count, too
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                raise
    return True


def check_range(low: int, high: int) -> None:
    """Raise `RangeEphemeral` where the kernel gives clients ports of this range."""
    if overlap := ephemeral_overlap(low, high):
        raise RangeEphemeral(low=low, high=high, first=overlap[0], last=overlap[1])


def ephemeral_overlap(low: int, high: int) -> tuple[int, int] | None:
    """Return the range that the kernel gives to clients (ip(7), ip_local_port_range) if it overlaps this one."""
    try:
        with open(EPHEMERAL, encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return (first, last) if low <= last and first <= high else None


def _candidates(request: PortRequest, job_id: int, restarts: int) -> Iterator[int]:
    size = request.high - request.low + 1
    start = ((job_id + restarts) * _SPREAD) % (1 << 32) % size
    for step in range(size):
        yield request.low + (start + step) % size


def _taken(ledger: int, holder: Holder) -> dict[int, Holder]:
    """Return other jobs' entries; remove the rest: of an earlier boot, of an earlier run of this job, damaged."""
    taken = {}
    for port, other in _entries(ledger):
        ours = other is not None and other[:2] == holder[:2]
        if other is None or ours or other.boot_id != holder.boot_id:
            unlink_if_there(str(port), ledger)
        else:
            taken[port] = other
    return taken


def _entries(ledger: int) -> Iterator[tuple[int, Holder | None]]:
    for name in os.listdir(ledger):
        if name.isdigit():
            yield int(name), _read(ledger, name)


def _read(ledger: int, name: str) -> Holder | None:
    """Return whose a port is; None for an entry whose writer died before it was whole, or that has just gone."""
    try:
        return Holder(**json.loads(read_small(name, _LONGEST_ENTRY, ledger)))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _enter(ledger: int, port: int, holder: Holder) -> bool:
    """Make the port ours; False when it is somebody's. The name decides and not the lock, which saves work only."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(str(port), flags, 0o600, dir_fd=ledger)
    except FileExistsError:
        return False
    try:
        write_all(fd, json.dumps(holder._asdict()).encode())
    except OSError:
        unlink_if_there(str(port), ledger)
        raise
    finally:
        os.close(fd)
    return True


@contextmanager
def _ledger_lock(directory: str, deadline: Deadline) -> Iterator[int]:
    """Keep the host's other hooks out: without it two of one user's jobs could exceed the limit together."""
    fd = os.open(directory, DIRECTORY)
    try:
        if not files.wait_flock(fd, deadline, _PAUSE_S):
            raise LedgerBusy(directory=directory)
        yield fd
    finally:
        os.close(fd)
