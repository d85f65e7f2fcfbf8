"""Depth `full`: every byte against the recorded hash, once for each state of a file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.support.superblocks import image
from warmstart.images import verify
from warmstart.images.verify import ByteCheck

NAME = "i"
SHA256 = hashlib.sha256(image()).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one image and what is known of it."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "i.sqsh").write_bytes(image())
    (tmp_path / "images" / "i.json").write_text(json.dumps({"sha256": SHA256, "job_id": 7}))
    return tmp_path


def test_reads_an_image_once(store: Path) -> None:
    """A good result is remembered; it is read again when somebody says so, or when the file changed."""
    assert verify.check_bytes(str(store), NAME, "t").remembered is False
    inode = (store / "images" / "i.sqsh").stat().st_ino
    assert verify.check_bytes(str(store), NAME, "t") == ByteCheck("", inode, remembered=True)
    assert verify.check_bytes(str(store), NAME, "t", True).remembered is False
    os.utime(store / "images" / "i.sqsh")
    assert verify.check_bytes(str(store), NAME, "t").remembered is False


def test_one_changed_byte_is_found(store: Path) -> None:
    """A byte that no cheaper depth looks at is enough, although it was good before."""
    verify.check_bytes(str(store), NAME, "t")
    with (store / "images" / "i.sqsh").open("r+b") as stream:
        stream.seek(3500)
        stream.write(b"x")
    found = verify.check_bytes(str(store), NAME, "t")
    assert found.problem.endswith(f"and not {SHA256}")


def test_a_cut_image_is_not_even_hashed(store: Path) -> None:
    """The superblock says it first."""
    os.truncate(store / "images" / "i.sqsh", 2048)
    assert verify.check_bytes(str(store), NAME, "t").problem.startswith("cut short")


def test_a_hash_that_its_producer_did_not_write_down_is_written_late(store: Path) -> None:
    """A producer died after the link: the image was proved before, its hash is recorded now, and said to be late."""
    (store / "images" / "i.json").unlink()
    assert verify.check_bytes(str(store), NAME, "t").problem == ""
    known = json.loads((store / "images" / "i.json").read_text())
    assert (known["sha256"], known["size"], known["recorded_late"]) == (SHA256, len(image()), True)


def test_damaged_notes_are_none(store: Path) -> None:
    """What is no note of ours is read again, not believed."""
    verify.check_bytes(str(store), NAME, "t")
    note = store / "images" / "checked" / "i.json"
    for content in ("{", "[]", "{}", '{"stamp": []}'):
        note.chmod(0o644)
        note.write_text(content)
        assert verify.check_bytes(str(store), NAME, "t").remembered is False
