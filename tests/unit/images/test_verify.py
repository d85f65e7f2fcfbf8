"""How much an image has, as its listing says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from warmstart.host.process import CompletedProgram
from warmstart.images.imports import verify
from warmstart.images.imports.verify import Listing
from warmstart.images.squashfs import ImageInvalid

LINE = b"-rw-r--r-- 0/0                %s 2026-11-27 07:25 squashfs-root/%s\n"


def counted(tmp_path: Path, listing: bytes, command: str = "cat", path: str = "") -> CompletedProgram:
    (tmp_path / "listing").write_bytes(listing)
    argv = ["/bin/sh", "-c", verify._COUNT, "sh", f"/bin/{command}", str(tmp_path / "listing")]
    environment = {"LC_ALL": "C.UTF-8", **({"PATH": path} if path else {})}
    done = subprocess.run(argv, capture_output=True, check=False, env=environment)
    return CompletedProgram(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("listing", "found"),
    [
        (LINE % (b"3", b"a") + LINE % (b"4", b"b c"), (2, 7)),
        (LINE % (b"5", b"in\xff\xfelatin"), (1, 5)),
        (LINE % (b"5", b"two\nlines -9 -9 7 x"), (2, 5)),
        (b"crw-r--r-- 0/0             1,  3 2026-11-27 07:25 squashfs-root/null\n", (1, 0)),
        (LINE % (b"-9", b"a"), (1, 0)),
    ],
)
def test_what_a_listing_says_is_counted(tmp_path: Path, listing: bytes, found: tuple[int, int]) -> None:
    assert verify.listed(counted(tmp_path, listing)) == found


@pytest.mark.parametrize("listing", [LINE % (b"9" * 17, b"a"), (LINE % (b"9" * 16, b"a")) * 200])
def test_more_bytes_than_there_can_be_are_not_counted(tmp_path: Path, listing: bytes) -> None:
    with pytest.raises(ImageInvalid, match="more bytes than a disk can have"):
        verify.listed(counted(tmp_path, listing))


def test_a_listing_that_fails_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(ImageInvalid, match=r"unsquashfs can't list it: .*Not a directory"):
        verify.listed(counted(tmp_path, b"", "rmdir"))


def test_a_listing_that_breaks_off_within_a_line_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(ImageInvalid, match="unsquashfs can't list it"):
        verify.listed(counted(tmp_path, b"printf '%s' '-rw-r--r-- 0/0 3 2026'; kill -SEGV $$", "sh"))


@pytest.mark.report
@pytest.mark.parametrize(
    ("script", "is_the_images"),
    [("exit 1", True), ("kill -SEGV $$", True), ("kill -KILL $$", False), ("exit 127", False), ("exit 126", False)],
)
@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_whose_fault_it_is_that_an_image_cannot_be_listed(
    tmp_path: Path, script: str, path: str, *, is_the_images: bool
) -> None:
    done = counted(tmp_path, script.encode(), "sh", path=path)
    with pytest.raises(ImageInvalid) as raised:
        verify.listed(done)
    assert raised.value.fields["again"] is not is_the_images


@pytest.mark.report
@pytest.mark.parametrize("status", ["", " 256", " 0"])
def test_a_name_does_not_end_a_listing_well(tmp_path: Path, status: str) -> None:
    try:
        assert verify.listed(counted(tmp_path, LINE % (b"5", b"two\nfailed" + status.encode()))) == (2, 5)
    except ImageInvalid as error:
        assert not error.fields["again"]  # noqa: PT017


@pytest.mark.parametrize(("command", "status"), [("cat", 0), ("false", 1)])
def test_without_a_program_that_counts_it_is_only_listed(tmp_path: Path, command: str, status: int) -> None:
    done = counted(tmp_path, LINE % (b"3", b"a"), command, path="/nonexistent")
    assert (done.status, done.stdout) == (status, b"")
    if not status:
        assert verify.listed(done) == Listing(0, 0)
