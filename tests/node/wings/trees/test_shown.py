"""A copy that many share, as it is mounted for one job: whoever else is on the node cannot get to it."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lib.meddling import become, meddling, stopped
from warmstart import view
from warmstart.host.files import PATH, opened_dir
from warmstart.wings.trees import shown

USER, OTHER = 64201, 64202


@pytest.fixture
def runs() -> Iterator[list[Path]]:
    """Yield directories of two users' runs, which all can enter as on a node, with one copy for both jobs."""
    with tempfile.TemporaryDirectory(prefix="warmstart-shown-", dir="/var/tmp") as made:
        base = Path(made)
        base.chmod(0o711)
        tree = base / "packed" / "tree"
        tree.mkdir(parents=True)
        (tree / "file").write_text("shared")
        (base / "packed").chmod(0o700)
        runs = [base / "run", base / "other"]
        with ExitStack() as stack:
            root = os.open(base / "packed", PATH)
            stack.callback(os.close, root)
            for run, user in zip(runs, (USER, OTHER), strict=True):
                run.mkdir()
                run.chmod(0o711)
                fd = stack.enter_context(opened_dir(str(run)))
                stack.callback(view.take_down, fd)
                shown.mount(fd, root, (user, user))
            yield runs
        assert str(base) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def run(runs: list[Path]) -> Path:
    return runs[0]


def done_as(uid: int, act: Callable[[], object]) -> int:
    """Do something as a user; return its errno, 0 if it worked."""
    pid = os.fork()
    if not pid:
        status = 255
        try:
            become((uid, uid))
            act()
            status = 0
        except OSError as error:
            status = error.errno or 255
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.threat(55)
def test_the_jobs_user_alone_gets_to_a_copy_of_many(run: Path) -> None:
    file = run / shown.SOURCE / "file"
    assert file.read_text() == "shared"
    assert done_as(USER, file.read_bytes) == 0
    assert done_as(OTHER, file.read_bytes) == errno.EACCES
    assert (run / shown.SOURCE).parent.stat().st_uid == USER


@pytest.mark.threat(55)
def test_the_jobs_user_changes_nothing_above_it(run: Path) -> None:
    copy = (run / shown.SOURCE).parent
    assert done_as(USER, lambda: copy.chmod(0o755)) == errno.EROFS
    assert done_as(USER, lambda: (copy / "tree").rename(copy / "other")) in (errno.EROFS, errno.EBUSY)
    assert done_as(USER, (copy / "new").mkdir) in (errno.EROFS, errno.EACCES)


@pytest.mark.report
@pytest.mark.threat(63)
def test_no_user_stops_another_who_reads_the_copy(runs: list[Path]) -> None:
    """Its files can be locked by each of them, and belong to nobody who may lease them."""
    mine, theirs = (run / shown.SOURCE / "file" for run in runs)
    with meddling((USER, USER), mine) as done:
        assert stopped((OTHER, OTHER), theirs, b"shared") == []
        assert (done["flock"], done["lease"], done["fanotify"]) == ("yes", "EACCES", "yes")
