"""The ledger gives a port to one job at a time, and none that somebody has bound."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from warmstart.host.deadline import after
from warmstart.wings.ports import ledger as ports
from warmstart.wings.ports.ledger import Holder, PortRequest

JOB = Holder(node="n1", job_id=7, run_id="0a1b2c3d", uid=2001)
LOW, HIGH = 24000, 24999
SOON = 5.0


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ports")


@pytest.fixture
def every_port_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no program of this host take part."""
    monkeypatch.setattr(ports, "is_free", lambda port: port > 0)


def reserve(ledger: str, holder: Holder = JOB, *, restarts: int = 0, **wanted: int) -> list[int]:
    """Reserve one port, or as `wanted` says."""
    fields = {"low": LOW, "high": HIGH, "number": 1, "per_user": 64, **wanted}
    return ports.reserve(ledger, holder, PortRequest(**fields), restarts, after(SOON))


def names(ledger: str) -> list[str]:
    return sorted(os.listdir(ledger))


def bound(family: socket.AddressFamily, address: str, *, listen: bool) -> socket.socket:
    """Return a socket on a port of ours that the kernel had free."""
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((address, next(free_here())))
    if listen:
        found.listen()
    return found


def free_here() -> Iterator[int]:
    return (port for port in range(LOW, HIGH) if ports.is_free(port))


@pytest.mark.usefixtures("every_port_free")
def test_no_port_is_two_jobs(ledger: str) -> None:
    given_out = [
        port
        for job_id in range(10)
        for port in reserve(ledger, JOB._replace(node=f"n{job_id % 4}", job_id=job_id), high=LOW + 9)
    ]
    assert sorted(given_out) == list(range(LOW, LOW + 10))
    with pytest.raises(ports.PortsUnavailable, match="between 24000 and 24009"):
        reserve(ledger, JOB._replace(job_id=99), high=LOW + 9)
    assert len(names(ledger)) == 10


@pytest.mark.usefixtures("every_port_free")
def test_a_job_gets_all_its_ports_or_none(ledger: str) -> None:
    reserve(ledger, high=LOW + 4, number=3)
    with pytest.raises(ports.PortsUnavailable):
        reserve(ledger, JOB._replace(job_id=8), high=LOW + 4, number=3)
    assert len(names(ledger)) == 3
    assert len(reserve(ledger, JOB._replace(job_id=8), high=LOW + 4, number=2)) == 2


@pytest.mark.usefixtures("every_port_free")
def test_a_run_that_is_prepared_again_gets_the_same(ledger: str) -> None:
    """Another node may know them; the next run gets others, for its predecessor's processes may linger."""
    first = reserve(ledger, number=2)
    assert reserve(ledger, JOB._replace(run_id="ffffffff"), number=2) == first
    assert names(ledger) == sorted(map(str, first))
    assert not set(reserve(ledger, restarts=1, number=2)) & set(first)
    assert len(names(ledger)) == 2


@pytest.mark.usefixtures("every_port_free")
def test_an_entry_whose_writer_died_half_way_is_nobodys(ledger: str) -> None:
    os.makedirs(ledger)
    Path(ledger, str(LOW)).write_text('{"node": "n1", "job')
    assert sorted(reserve(ledger, number=5, high=LOW + 4)) == [*range(LOW, LOW + 5)]


@pytest.mark.threat(18)
@pytest.mark.usefixtures("every_port_free")
def test_a_user_holds_so_many_and_no_more(ledger: str) -> None:
    reserve(ledger, number=3, per_user=5)
    second = JOB._replace(job_id=8)
    with pytest.raises(ports.PortsUnavailable, match="hold 3 rendezvous ports of this node; 3 more would exceed 5"):
        reserve(ledger, second, number=3, per_user=5)
    assert len(reserve(ledger, second, number=2, per_user=5)) == 2
    assert len(reserve(ledger, JOB._replace(job_id=9, uid=2002), number=5, per_user=5)) == 5


@pytest.mark.usefixtures("every_port_free")
def test_a_release_frees_that_job_on_that_node(ledger: str) -> None:
    assert ports.held_by(ledger, "n1", 7) == []
    assert not os.path.exists(ledger)
    mine = reserve(ledger, number=2)
    reserve(ledger, JOB._replace(node="n2"))
    reserve(ledger, JOB._replace(job_id=8))
    assert ports.held_by(ledger, "n1", 7) == sorted(mine)
    for _ in range(2):
        ports.release(ledger, "n1", 7, after(SOON))
        assert ports.held_by(ledger, "n1", 7) == []
        assert len(names(ledger)) == 2


@pytest.mark.usefixtures("every_port_free")
def test_the_name_decides_where_locks_do_nothing(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hooks that both saw an empty ledger: the second finds the name taken, and leaves it alone."""
    first = reserve(ledger)
    monkeypatch.setattr(ports, "_taken", lambda *_: {})
    second = reserve(ledger, JOB._replace(job_id=8), low=first[0], high=first[0] + 1)
    assert second == [first[0] + 1]
    with pytest.raises(ports.PortsUnavailable):
        reserve(ledger, JOB._replace(job_id=9), low=first[0], high=first[0] + 1)
    assert ports.held_by(ledger, "n1", 7) == first


def test_a_lock_is_waited_for_until_the_deadline(ledger: str) -> None:
    os.mkdir(ledger, 0o700)
    fd = os.open(ledger, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(ports.PortsUnavailable, match="holds the lock of"):
        ports.reserve(ledger, JOB, PortRequest(LOW, HIGH, 1, 64), 0, after(0))
    os.close(fd)


def test_a_full_disk_leaves_no_half_entry(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def full(fd: int, data: bytes) -> None:
        written.append(data)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        os.write(fd, data)

    monkeypatch.setattr(ports, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        reserve(ledger, number=2)
    assert names(ledger) == []


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ],
)
def test_a_port_that_somebody_has_is_passed_over(
    ledger: str, family: socket.AddressFamily, address: str, listen: bool
) -> None:
    with bound(family, address, listen=listen) as foreign:
        port = foreign.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(ports.PortsUnavailable):
            reserve(ledger, low=port, high=port)
    assert reserve(ledger, low=port, high=port) == [port]


def test_a_connection_that_lingers_holds_its_port(ledger: str) -> None:
    """TIME_WAIT of a job that has just ended: its successor's bind without SO_REUSEADDR would fail."""
    with bound(socket.AF_INET, "127.0.0.1", listen=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    assert not ports.is_free(port)


def test_the_job_can_bind_its_port_right_after_it_was_tried() -> None:
    port = next(free_here())
    assert ports.is_free(port)
    with socket.socket() as job:
        job.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("kernels", "is_refused"), [("24999 30000", True), ("1024\t24000\n", True), ("25000 30000", False), ("odd", False)]
)
def test_a_range_of_the_kernels_is_refused_when_it_counts(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, is_refused: bool
) -> None:
    """The node's own setting is looked at again, since it may have changed after the policy was compiled."""
    (tmp_path / "range").write_text(kernels)
    monkeypatch.setattr(ports, "EPHEMERAL", str(tmp_path / "range"))
    with pytest.raises(ports.PortsUnavailable, match="ports 24000-24999 overlap") if is_refused else nullcontext():
        assert len(reserve(ledger)) == 1
    assert os.path.exists(ledger) is not is_refused
