"""The list of what a run shows its job."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from warmstart import view
from warmstart.host.files import opened_dir
from warmstart.paths import NOTHING, Shown


def line(target: str) -> Shown:
    return Shown("ro", "job", "mounted/a", NOTHING, target, NOTHING)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fills(fd: int, data: bytes) -> None:
        os.write(fd, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened_dir(str(tmp_path)) as fd:
        view.show(fd, line("/one"), os.getuid())
        with monkeypatch.context() as patched:
            patched.setattr(view, "write_all", fills)
            with pytest.raises(OSError, match="No space left"):
                view.show(fd, line("/two"), os.getuid())
        view.show(fd, line("/three"), os.getuid())
    assert view.shown(str(tmp_path)) == [line("/one"), line("/three")]


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
            view.show(fd, line(target), os.getuid() + 1)
    found = (tmp_path / "shown").stat()
    assert (found.st_uid, found.st_mode & 0o007) == (os.getuid(), 0 if has_lists else 4)


@pytest.mark.parametrize("target", ["/a\tb", "/a\nb", ""])
def test_a_path_that_a_line_cannot_have(tmp_path: Path, target: str) -> None:
    with opened_dir(str(tmp_path)) as fd, pytest.raises(OSError, match="a tab or a newline"):
        view.show(fd, line(target), os.getuid())
    assert view.shown(str(tmp_path)) == []
