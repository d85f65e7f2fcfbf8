"""Reserve TCP ports on this host: a ledger of reservations, and a check that a port is not in use. Runs as root.

    /run/warmstart/ports/<port>     root, 0600: who holds the port; one directory for all slurmds of a host

A job holds a port from its prolog to its epilog on the head node, or to the next boot. The ledger cannot keep other
programs from binding a port after the check (docs/threats.md, row 18).
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.host import files, wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import DIRECTORY, ensure_dir, read_small, unlink_if_there, write_all
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps
from warmstart.paths import NodePaths

EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
_LONGEST_ENTRY = 4096
_PAUSE_S = 0.01
# Knuth's multiplicative hash: consecutive job ids begin far apart.
_SPREAD = 2654435761


class PortsUnavailable(ResourceError):
    """No port can be promised to the job alone, or the head node's promise is not known here."""

    code = "rendezvous-unavailable"
    template = "{problem}"
    hint = "docs/wings/ports.md, Errors, says what helps in each case"


class Holder(NamedTuple):
    """The run of a job that holds a port, and its node; a host with several slurmds has several nodes."""

    node: str
    job_id: int
    run_id: str
    uid: int


class PortRequest(NamedTuple):
    """How many ports to reserve in a range (inclusive), and how many one user may hold on this host."""

    low: int
    high: int
    number: int
    per_user: int


def directory(paths: NodePaths) -> str:
    """Return the ledger of this host; all its nodes share it."""
    return f"{os.path.dirname(paths.runtime)}/ports"


def reserve(directory: str, holder: Holder, request: PortRequest, restarts: int, deadline: Deadline) -> list[int]:
    """Reserve ports that are neither reserved nor in use, all or none; create the directory if it is missing.

    `restarts` is the job's restart count, which decides where the search starts. A run that is prepared twice tries the
    same ports first; the next run tries others, because processes of the previous run may still use its ports. Raises
    `PortsUnavailable`, and `OSError`.
    """
    check_range(request.low, request.high)
    ensure_dir(directory, 0o700)
    with _ledger_lock(directory, deadline) as ledger:
        taken = _taken(ledger, holder)
        held = sum(other.uid == holder.uid for other in taken.values())
        if held + request.number > request.per_user:
            more = f"{request.number} more would exceed {request.per_user}"
            raise PortsUnavailable(problem=f"the user's jobs hold {held} rendezvous ports of this node; {more}")
        ports: list[int] = []
        try:
            for port in _candidates(request, holder.job_id, restarts):
                if port not in taken and is_free(port) and _enter(ledger, port, holder):
                    ports.append(port)
                if len(ports) == request.number:
                    return ports
            raise PortsUnavailable(problem=f"too few free ports between {request.low} and {request.high} on this node")
        except BaseException:
            for port in ports:
                unlink_if_there(str(port), ledger)
            raise


def held_by(directory: str, node: str, job_id: int) -> list[int]:
    """Return the ports that any run of a job holds on a node, sorted."""
    try:
        ledger = os.open(directory, DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return sorted(port for port, holder in _entries(ledger) if holder and holder[:2] == (node, job_id))
    finally:
        os.close(ledger)


def release(directory: str, node: str, job_id: int, deadline: Deadline) -> None:
    """Release all ports of a job on a node; `PortsUnavailable` at the deadline."""
    with _ledger_lock(directory, deadline) as ledger:
        for port in held_by(directory, node, job_id):
            unlink_if_there(str(port), ledger)


def is_free(port: int) -> bool:
    """Return whether the TCP port is unbound on every address, IPv4 and IPv6."""
    import socket  # slow to import, and needed only on the head node of a job that wants ports

    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - tests every address
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))  # without SO_REUSEADDR, so that lingering connections count
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                raise
    return True


def check_range(low: int, high: int) -> None:
    """Raise `PortsUnavailable` if the range (inclusive) overlaps the kernel's ephemeral ports."""
    if overlap := ephemeral_overlap(low, high):
        first, last = overlap
        raise PortsUnavailable(
            problem=f"rendezvous ports {low}-{high} overlap this node's ephemeral range {first}-{last}"
        )


def ephemeral_overlap(low: int, high: int) -> tuple[int, int] | None:
    """Return the kernel's ephemeral port range (ip(7), ip_local_port_range) if it overlaps this one, else None."""
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
    """Return the entries of other jobs; remove those that are damaged, or of this job."""
    taken = {}
    for port, other in _entries(ledger):
        ours = other is not None and other[:2] == holder[:2]
        if other is None or ours:
            unlink_if_there(str(port), ledger)
        else:
            taken[port] = other
    return taken


def _entries(ledger: int) -> Iterator[tuple[int, Holder | None]]:
    for name in os.listdir(ledger):
        if name.isdigit():
            yield int(name), _read(ledger, name)


def _read(ledger: int, name: str) -> Holder | None:
    """Return the holder of a port; None if the entry is incomplete (its writer died) or has just been removed."""
    try:
        return Holder(**wire.parse(read_small(name, _LONGEST_ENTRY, ledger)))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _enter(ledger: int, port: int, holder: Holder) -> bool:
    """Create the port's entry; return False if it exists. Exclusive creation decides who holds a port, not the lock."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(str(port), flags, 0o600, dir_fd=ledger)
    except FileExistsError:
        return False
    try:
        write_all(fd, dumps(holder._asdict()).encode())
    except OSError:
        unlink_if_there(str(port), ledger)
        raise
    finally:
        os.close(fd)
    return True


@contextmanager
def _ledger_lock(directory: str, deadline: Deadline) -> Iterator[int]:
    """Hold the lock of the ledger: without it, two jobs of one user could exceed the user's limit together."""
    fd = os.open(directory, DIRECTORY)
    try:
        if not files.wait_flock(fd, deadline, _PAUSE_S):
            raise PortsUnavailable(problem=f"another hook on this host holds the lock of {directory}")
        yield fd
    finally:
        os.close(fd)
