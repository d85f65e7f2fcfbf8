"""A directory that a job is shown as its own: read-only, and in a directory that nobody else can enter."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.meddling import become, meddling, stopped
from warmstart.host import linux
from warmstart.host.files import opened_dir
from warmstart.run import mounted

OWNER, JOB, OTHER = (64204, 64205), (64201, 64202), (64203, 64203)  # uid and gid
REFUSED = dict.fromkeys(("chattr", "xattr", "acl", "chmod", "times"), "EROFS")
RESULTS = {**REFUSED, "flock": "yes", "lock": "yes", "fanotify": "yes"}


@pytest.fixture
def base() -> Iterator[Path]:
    """Yield a directory that all can enter, with `tree`, the owner's, and `run`."""
    with tempfile.TemporaryDirectory(prefix="warmstart-clones-", dir="/var/tmp") as made:
        base = Path(made)
        base.chmod(0o711)
        (base / "tree" / "sub").mkdir(parents=True)
        (base / "tree" / "sub" / "tool").write_text("shared")
        (base / "tree" / "sub" / "tool").chmod(0o4750)
        (base / "tree" / "plain").write_text("shared")
        for path in (base / "tree", *(base / "tree").rglob("*")):
            os.chown(path, *OWNER)
        (base / "tree" / "sub" / "tool").chmod(0o4750)  # chown takes the bit away
        (base / "run").mkdir()
        (base / "run").chmod(0o711)
        try:
            yield base
        finally:
            with opened_dir(str(base / "run")) as run:
                mounted.take_down(run)
            assert str(base) not in Path("/proc/self/mountinfo").read_text()


def clone(base: Path, whose: tuple[int, int]) -> int:
    """Return a clone of the tree that shows it as somebody's."""
    with opened_dir(str(base / "tree")) as tree:
        return linux.clone_as(tree, OWNER, whose)


def shown(base: Path, name: str = "a1", job: tuple[int, int] = JOB, *, mapped: bool = True) -> Path:
    """Show a job the tree, as its own or as its owner's, and return its path."""
    mount = clone(base, job if mapped else OWNER)
    try:
        with opened_dir(str(base / "run")) as run:
            return base / "run" / mounted.mount_for(run, name, mount, job)
    finally:
        os.close(mount)


def done_as(ids: tuple[int, int], act: Callable[[], object]) -> int:
    """Do something as a user; return its errno, 0 if it worked."""
    pid = os.fork()
    if not pid:
        status = 255
        try:
            become(ids)
            act()
            status = 0
        except OSError as error:
            status = error.errno or 255
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_uid_and_gid_are_shown_apart(base: Path) -> None:
    """The job reads what the owner alone could; the tree itself stays the owner's."""
    tool = shown(base) / "sub" / "tool"
    status = tool.stat()
    assert (status.st_uid, status.st_gid) == JOB
    assert done_as(JOB, tool.read_text) == 0
    original = (base / "tree" / "sub" / "tool").stat()
    assert (original.st_uid, original.st_gid) == OWNER


def test_it_is_read_only_and_gives_no_rights(base: Path) -> None:
    """Root cannot write to it, either; a bit of its files makes nobody another user."""
    tool = shown(base) / "sub" / "tool"
    assert tool.stat().st_mode & stat.S_ISUID
    assert os.statvfs(tool).f_flag & (os.ST_RDONLY | os.ST_NOSUID) == os.ST_RDONLY | os.ST_NOSUID
    with pytest.raises(OSError, match="Read-only") as caught:
        tool.write_text("mine")
    assert caught.value.errno == errno.EROFS


@pytest.mark.threat(55)
@pytest.mark.parametrize("mapped", [True, False], ids=["as the job's own", "as another's"])
def test_nobody_else_gets_to_it(base: Path, *, mapped: bool) -> None:
    """Whatever the modes in it are; and the job changes nothing above it, though the directory is its own."""
    path = shown(base, mapped=mapped)
    assert done_as(JOB, lambda: os.stat(path)) == 0
    assert done_as(OTHER, lambda: os.stat(path)) == errno.EACCES
    assert done_as(OWNER, lambda: os.stat(path)) == errno.EACCES
    assert path.parent.stat().st_uid == JOB[0]
    assert done_as(JOB, lambda: path.parent.chmod(0o755)) == errno.EROFS
    assert done_as(JOB, (path.parent / "new").mkdir) in (errno.EROFS, errno.EACCES)
    assert done_as(JOB, lambda: os.rename(path, path.parent / "other")) in (errno.EROFS, errno.EBUSY)


@pytest.mark.report
@pytest.mark.threat(63)
def test_its_user_gets_to_it_when_all_is_there(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs is shown more: it would take a lease on what lies below, or put a link where root mounts."""
    seen: list[int] = []

    def listing(act: Callable[..., None]) -> Callable[..., None]:
        def listed(*arguments: object) -> None:
            if os.path.ismount(base / "run/mounted/a1"):
                seen.append(done_as(JOB, lambda: os.listdir(base / "run/mounted/a1")))
            act(*arguments)

        return listed

    for name in ("mount", "attach", "unmount_here"):
        monkeypatch.setattr(linux, name, listing(getattr(linux, name)))
    path = shown(base)
    assert seen == [errno.EACCES] * 4 + [0]  # the last one makes it read-only
    assert os.listdir(path.parent) == ["tree"]


def test_it_is_taken_down_while_a_process_reads_it(base: Path) -> None:
    """That process reads on; the name shows nothing."""
    path = shown(base)
    with (path / "sub" / "tool").open() as file:
        with opened_dir(str(base / "run")) as run:
            mounted.take_down(run)
        assert not path.exists()
        assert file.read() == "shared"


@pytest.mark.report
@pytest.mark.threat(63)
@pytest.mark.parametrize("mapped", [True, False], ids=["as the job's own", "as another's"])
def test_no_user_stops_another(base: Path, *, mapped: bool) -> None:
    """What a job may do to a file is done to its own view of it: leases, locks and watches are of no inode of others.

    One that is the job's own may be leased, as any owner's.
    """
    (base / "tree/sub/tool").chmod(0o755)
    mine, theirs = (shown(base, name, job, mapped=mapped) for name, job in (("a1", JOB), ("a2", OTHER)))
    for name in ("sub/tool", "plain"):
        with meddling(JOB, mine / name) as done:
            assert stopped(OTHER, theirs / name, b"shared") == []
            assert done == RESULTS | {"lease": "yes" if mapped else "EACCES"}
            assert done_as((0, 0), (base / "tree" / name).read_bytes) == 0
    with meddling(JOB, mine / "plain"), meddling(OTHER, theirs / "plain") as done:
        assert (done["flock"], done["lease"]) == ("yes", "yes" if mapped else "EACCES")
