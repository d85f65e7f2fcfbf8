"""The list of what a run shows its job."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from warmstart.host.files import opened_dir
from warmstart.paths import NOTHING, Shown
from warmstart.run import shown
from warmstart.run.shown import show, shown_by


def line(target: str) -> Shown:
    return Shown("ro", "job", "mounted/a", NOTHING, target, NOTHING)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fills(fd: int, data: bytes) -> None:
        os.write(fd, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened_dir(str(tmp_path)) as fd:
        show(fd, line("/one"), os.getuid())
        with monkeypatch.context() as patched:
            patched.setattr(shown, "write_all", fills)
            with pytest.raises(OSError, match="No space left"):
                show(fd, line("/two"), os.getuid())
        show(fd, line("/three"), os.getuid())
    assert shown_by(str(tmp_path)) == [line("/one"), line("/three")]


@pytest.mark.report
@pytest.mark.parametrize("has_lists", [True, False])
def test_whose_the_list_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_lists: bool) -> None:
    """Its first line makes it readable for the job's user; its owner stays, so the job cannot change it."""
    if not has_lists:

        def none(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(os, "setxattr", none)
    with opened_dir(str(tmp_path)) as fd:
        for target in ("/one", "/two"):
            show(fd, line(target), os.getuid() + 1)
    found = (tmp_path / "shown").stat()
    assert (found.st_uid, found.st_mode & 0o007) == (os.getuid(), 0 if has_lists else 4)


@pytest.mark.parametrize("target", ["/a\tb", "/a\nb", ""])
def test_a_path_that_a_line_cannot_have(tmp_path: Path, target: str) -> None:
    with opened_dir(str(tmp_path)) as fd, pytest.raises(OSError, match="a tab or a newline"):
        show(fd, line(target), os.getuid())
    assert shown_by(str(tmp_path)) == []
