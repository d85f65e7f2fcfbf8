"""Notes of a run are not looked for in what the job has mounted."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.lib.image_site import whole_store
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.images import notes

NAME = f"{'ab' * 32}.x86_64.oci1"


def collect(store: Path, run: Path) -> int:
    with opened_dir(str(run)) as fd:
        return notes.collect(fd, str(store.parent / "uses"), node="n1", store=whole_store(store), deadline=after(9))


def test_what_is_mounted_there_is_not_asked(tmp_path: Path) -> None:
    """A file system of the job's own may never answer."""
    store, run, other = tmp_path / "store", tmp_path / "run", tmp_path / "other"
    (store / "images").mkdir(parents=True)
    (store / "images" / f"{NAME}.sqsh").touch()
    (run / "tmp").mkdir(parents=True)
    (other / notes.FOLDER).mkdir(parents=True)
    (other / notes.FOLDER / f"{notes.NOTE}{NAME}").touch()
    subprocess.run(["mount", "--bind", str(other), str(run / "tmp")], check=True)
    try:
        assert collect(store, run) == 0
    finally:
        subprocess.run(["umount", str(run / "tmp")], check=True)
    (run / "tmp").rmdir()
    other.rename(run / "tmp")
    assert collect(store, run) == 1
