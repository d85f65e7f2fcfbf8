"""Reservations of disk space, on the disk of the tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmstart.host import space
from warmstart.host.files import opened_dir
from warmstart.host.space import Held, Reservation, fair_order

pytestmark = pytest.mark.threat(23)

MIB = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def allocated(reservation: Reservation) -> int:
    return os.fstat(reservation._fd).st_blocks * 512


def test_what_is_held_is_taken_and_given_back(directory: int) -> None:
    reservation = Reservation(directory)
    assert allocated(reservation) == 0
    reservation.hold(100 * MIB)
    assert reservation.size == 100 * MIB
    taken = allocated(reservation)
    assert taken >= 100 * MIB
    reservation.hold(99 * MIB)
    assert allocated(reservation) == taken
    reservation.hold(10 * MIB)
    assert 10 * MIB <= allocated(reservation) < 60 * MIB


def test_at_the_floor_nothing_more_is_held(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = Reservation(directory)
    reservation.hold(MIB)
    before = allocated(reservation)
    monkeypatch.setattr(space, "room", lambda _: 0)
    with pytest.raises(OSError, match="no room for") as refused:
        reservation.hold(100 * MIB)
    assert refused.value.errno == errno.ENOSPC
    assert (reservation.size, allocated(reservation)) == (MIB, before)


def test_without_fallocate_it_only_looks(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "allocate", lambda *_: False)
    monkeypatch.setattr(space, "room", lambda _: 50 * MIB)
    reservation = Reservation(directory)
    reservation.hold(20 * MIB)
    reservation.hold(50 * MIB)
    assert (reservation.size, allocated(reservation)) == (50 * MIB, 0)
    with pytest.raises(OSError, match="no room for"):
        reservation.hold(51 * MIB)


def test_what_another_program_writes_is_given_up(directory: int, tmp_path: Path) -> None:
    reservation = Reservation(directory)
    reservation.hold(10 * MIB)
    out = tmp_path / "out"
    watch = reservation.while_written(str(out))
    watch()
    assert reservation.size == 10 * MIB
    out.write_bytes(b"x" * 4 * MIB)
    os.sync()
    watch()
    assert 5 * MIB < reservation.size <= 6 * MIB
    out.write_bytes(b"x" * 12 * MIB)
    os.sync()
    watch()
    assert reservation.size == 0


def test_the_end_of_a_reservation_closes_its_file(directory: int) -> None:
    reservation = Reservation(directory)
    fd = reservation._fd
    del reservation
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_disk_without_inodes_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        f_blocks, f_frsize, f_bavail = 1 << 20, 4096, 1 << 19
        f_files, f_favail = 1000, 49

    monkeypatch.setattr(os, "statvfs", lambda _: Found)
    assert space.room("/") == 0
    Found.f_favail = 50
    assert space.room("/") == (2 << 30) - (4096 << 20) // 20
    Found.f_files = Found.f_favail = 0
    assert space.room("/") > 0


@pytest.mark.threat(27)
def test_who_holds_most_gives_way() -> None:
    """Of theirs the first one goes, as long as they have most; equal ones take turns from the oldest."""
    items = [Held("b", 3), Held("a", 1), Held("a", 5), Held("a", 5), Held("c", 2)]
    assert list(fair_order(items)) == [1, 2, 3, 0, 4]
    assert list(fair_order([Held("a", 1), Held("b", 1), Held("a", 1), Held("b", 1)])) == [0, 1, 2, 3]


def test_what_may_not_go_still_counts() -> None:
    items = [Held("a", 2), Held("b", 1), Held("b", 5, may_go=False)]
    assert list(fair_order(items)) == [1, 0]


def test_a_hole_is_made_where_the_file_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert space.allocate(file.fileno(), 2 * MIB)
        space.give_back(file.fileno(), 0, MIB)
        status = os.fstat(file.fileno())
        assert (status.st_size, status.st_blocks * 512) == (2 * MIB, MIB)

        def unsupported(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(space, "libc", unsupported)
        space.give_back(file.fileno(), MIB, MIB)
        assert os.fstat(file.fileno()).st_blocks * 512 == MIB
