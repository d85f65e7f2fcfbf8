"""Notes of what steps used: believed as names of images that are there, and as nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.image_site import InlineWorker, whole_store
from warmstart.host.deadline import after
from warmstart.images import notes
from warmstart.images.store import eviction, uses
from warmstart.images.store.layout import DAY
from warmstart.images.user import own_images

NAME = f"{'ab' * 32}.x86_64.oci1"
OTHER = f"{'cd' * 32}.x86_64.enroot1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    images = tmp_path / "store" / "images"
    images.mkdir(parents=True)
    for name in (NAME, OTHER):
        (images / f"{name}.sqsh").write_bytes(b"x" * 4096)
    return tmp_path / "store"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "tmp").mkdir(parents=True)
    return tmp_path / "run"


def collect(store: Path, run: Path) -> int:
    fd = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return notes.collect(fd, str(store.parent / "uses"), node="n1", store=whole_store(store), deadline=after(9))
    finally:
        os.close(fd)


def test_a_use_that_is_about_to_end_protects_nothing(store: Path) -> None:
    """A note takes a while to be recorded: the last day of a lease is too short, or half of a short one."""
    week = 7 * DAY
    uses.record(str(store), NAME, "n1")
    use = store / "images" / "leases" / NAME
    for age, lease, protected in ((5.5, week, True), (6.5, week, False), (0.4, DAY, True), (0.6, DAY, False)):
        os.utime(use, (time.time() - age * DAY,) * 2)
        assert uses.is_protected(str(store), NAME, lease) is protected, (age, lease)
    eviction.pin(str(store), NAME, "people")
    assert uses.is_protected(str(store), NAME, DAY)


def test_what_is_no_image_of_the_store_is_no_use(store: Path, run: Path, tmp_path: Path) -> None:
    """Invented names make no directories in the store, and odd ones lead nowhere."""
    for name in (f"{'ef' * 32}.x86_64.oci1", "..", "x", f"{NAME}.tmp", f"{NAME}\n"):
        own_images.note_use(str(run / "tmp"), name)
    assert collect(store, run) == 0
    assert not (store / "images" / "used").exists()


def test_what_the_user_made_of_his_directory_costs_nothing(store: Path, run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{notes.NOTE}{NAME}").touch()
    folder = run / "tmp" / notes.FOLDER
    folder.symlink_to(elsewhere)
    assert collect(store, run) == 0
    folder.unlink()
    folder.touch()
    assert collect(store, run) == 0
    folder.unlink()
    folder.mkdir()
    for number in range(notes.MOST + 50):
        (folder / f"{notes.NOTE}{number:064x}.x86_64.oci1").touch()
    worker = InlineWorker()
    fd = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        notes.collect(fd, str(tmp_path / "uses"), node="n1", store=whole_store(store, worker), deadline=after(9))
    finally:
        os.close(fd)
    assert len(worker.calls) == 1


@pytest.mark.threat(29)
def test_notes_protect_for_two_days_only(store: Path, run: Path) -> None:
    """While the job runs maintenance records the use again; the lease of hooks' uses is longer."""
    week = 7 * DAY
    own_images.note_use(str(run / "tmp"), NAME)
    assert collect(store, run) == 1
    use, lease = store / "images" / "used" / NAME / f"n1~{os.getuid()}", store / "images" / "leases" / f"{NAME}~"
    for days, recorded, lasts, protected in ((0.9, 0, True, "in use"), (1.5, 1, False, "in use"), (2.1, 1, False, "")):
        for path in (use, lease):
            os.utime(path, (time.time() - days * DAY,) * 2)
        os.utime(store / "images" / f"{NAME}.sqsh", (1, 1))
        assert uses.is_protected(str(store), NAME, week) is lasts
        found = eviction.describe(str(store), NAME, week)
        assert found
        assert (found.protected, found.nodes) == (protected, ["n1"] if protected else [])
        assert collect(store, run) == recorded
    os.utime(use, (time.time() - 3 * DAY,) * 2)
    assert eviction.evict(str(store), NAME, week)


@pytest.mark.threat(29)
def test_the_notes_of_one_user_protect_so_many_images(store: Path, run: Path) -> None:
    names = [f"{number:064x}.x86_64.oci1" for number in range(uses.MOST_NOTED + 10)]
    for name in names:
        (store / "images" / f"{name}.sqsh").write_bytes(b"x" * 4096)
        own_images.note_use(str(run / "tmp"), name)
    assert collect(store, run) == uses.MOST_NOTED
    assert collect(store, run) == 0
    assert uses.record_noted(str(store), names, "n2", os.getuid()) == uses.MOST_NOTED
    for name in names:
        os.utime(store / "images" / f"{name}.sqsh", (1, 1))
    left = [entry.name for entry in eviction.inventory(str(store), 600.0) if entry.protected and entry.name in names]
    assert len(left) == uses.MOST_NOTED
    other = min(set(names) - set(left))
    assert uses.record_noted(str(store), [other], "n2", os.getuid() + 1) == 1
    for use in (store / "images" / "used").glob(f"*/*~{os.getuid()}"):
        os.utime(use, (time.time() - 3 * DAY,) * 2)
    assert uses.record_noted(str(store), [other], "n2", os.getuid()) == 1  # notes that are over count no more
