"""How much an image has, as its listing says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from warmstart.images import unpacking

LINE = b"-rw-r--r-- 0/0                %s 2026-11-27 07:25 squashfs-root/%s\n"


def counted(tmp_path: Path, listing: bytes, command: str = "cat") -> tuple[int, bytes]:
    """Return the status and the output of the count of a listing."""
    (tmp_path / "listing").write_bytes(listing)
    argv = ["/bin/sh", "-c", unpacking._COUNT, "sh", command, str(tmp_path / "listing")]
    done = subprocess.run(argv, capture_output=True, check=False, env={"LC_ALL": "C.UTF-8"})
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("listing", "found"),
    [
        (LINE % (b"3", b"a") + LINE % (b"4", b"b c"), b"2 7\n"),
        (LINE % (b"5", b"in\xff\xfelatin"), b"1 5\n"),
        (LINE % (b"5", b"two\nlines -9 -9 7 x"), b"2 5\n"),
        (b"crw-r--r-- 0/0             1,  3 2026-11-27 07:25 squashfs-root/null\n", b"1 0\n"),
        (LINE % (b"-9", b"a"), b"1 0\n"),
    ],
)
def test_what_a_listing_says_is_counted(tmp_path: Path, listing: bytes, found: bytes) -> None:
    """Whatever the names are, no file counts less than it has."""
    assert counted(tmp_path, listing) == (0, found)


@pytest.mark.parametrize("listing", [LINE % (b"9" * 17, b"a"), (LINE % (b"9" * 16, b"a")) * 200])
def test_more_bytes_than_there_can_be_are_not_counted(tmp_path: Path, listing: bytes) -> None:
    """A sum that is too large for the shell would be a small one."""
    assert counted(tmp_path, listing)[0] == 3


def test_a_listing_that_fails_is_not_counted(tmp_path: Path) -> None:
    """Its beginning is no count."""
    assert counted(tmp_path, b"", "false") == (1, b"")
