"""The workspace is whole or not there, and only a broken node drains."""

import errno
import itertools
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.runs import CACHE, a_context, a_run, changed, ran
from warmstart.host.files import DiskFailed, FileSystemBroken
from warmstart.images.scratch import WorkspaceNotRoots
from warmstart.paths import LONGEST_TMPDIR, LONGEST_WORKSPACE, NOTHING, SOCKET_NAMES, Shown
from warmstart.run import shown
from warmstart.run.shown import shown_by
from warmstart.steps import workspace
from warmstart.steps.contract import Context
from warmstart.steps.workspace import Options

pytestmark = pytest.mark.threat(34)

OPTIONS = Options(("numba", "inductor"))
JOB, GROUP = (64201, 64201) if os.getuid() == 0 else (os.getuid(), os.getgid())
CALLS = ("mkdir", "chown", "fchmod", "open")


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def failing(nth: int, number: int, call: Callable[..., object], count: "itertools.count[int]") -> Callable[..., object]:
    """Return `call`, but for the nth use of all that share `count`."""

    def wrapped(*args: object, **kwargs: object) -> object:
        if next(count) == nth:
            raise OSError(number, os.strerror(number))
        return call(*args, **kwargs)

    return wrapped


@pytest.fixture
def short(tmp_path: Path) -> Iterator[tuple[Context, Path]]:
    """Give a context whose workspace has a short path, as nodes have, and that path."""
    with tempfile.TemporaryDirectory(prefix="ws-", dir="/var/tmp") as base:
        context = a_context(tmp_path)
        yield context._replace(run=context.run._replace(workspace=base)), Path(base)


@pytest.mark.threat(43)
@pytest.mark.parametrize("used_up", ["f_bavail", "f_favail"])
def test_no_workspace_is_made_on_a_disk_at_its_floor(
    short: tuple[Context, Path], monkeypatch: pytest.MonkeyPatch, used_up: str
) -> None:
    """What earlier jobs left may still be there: the job runs cold, and takes no more of it."""
    names = ("f_frsize", "f_blocks", "f_bavail", "f_files", "f_favail")
    disk = dict.fromkeys(names, 1000) | {"f_frsize": 1 << 30, used_up: 49}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**disk))
    if used_up == "f_bavail":  # a twentieth is less than a gibibyte
        disk["f_frsize"] = 4096
    with pytest.raises(DiskFailed, match="or a twentieth"):
        workspace.run(short[0], OPTIONS)
    assert os.listdir(short[1]) == []
    disk[used_up] = 51
    assert ran(workspace.run(short[0], OPTIONS)).own.path


@pytest.mark.threat(4)
def test_the_job_gets_its_own_directories_under_roots(short: tuple[Context, Path]) -> None:
    """The layout of docs/architecture.md, On a node, and variables that point there; `seed` gives the cache away."""
    context = short[0]._replace(run=short[0].run._replace(uid=JOB, gid=GROUP))
    outcome = workspace.run(context, OPTIONS)
    run = short[1] / "7.00000000"
    assert stat.S_IMODE(run.stat().st_mode) == 0o711
    assert tree(run) == [".of-7.0a1b2c3d", "cache", "cache/inductor", "cache/numba", "shown", "tmp"]
    shown = (run / "shown").stat()
    assert (stat.S_IMODE(shown.st_mode), shown.st_uid) == (0o640, os.getuid())  # the mask: the job's user reads it
    constant = context.policy.paths.cache
    assert shown_by(str(run)) == [Shown("rw", "root", "cache", NOTHING, constant, NOTHING)]
    for path in run.rglob("*"):
        if path.is_file():
            continue
        owner = os.getuid() if "cache" in path.parts else JOB
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o700, owner)
    assert ran(outcome) == changed(context.run, path=f"{run}/cache")
    assert outcome.environment == {"TMPDIR": f"{run}/tmp"}


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EROFS, FileSystemBroken),
        (errno.EIO, FileSystemBroken),
        (errno.ENOSPC, DiskFailed),
        (errno.EDQUOT, DiskFailed),
        (errno.EMFILE, DiskFailed),
    ],
)
def test_any_single_failing_call_leaves_nothing(
    context: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[Exception],
) -> None:
    """Fail the 1st call, then the 2nd …: the error says whose fault, and no run directory remains."""
    for nth in itertools.count():
        count = itertools.count()
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, failing(nth, number, getattr(os, name), count))
            try:
                workspace.run(context, OPTIONS)
            except error:
                pass
            else:
                break
        assert tree(tmp_path / "workspace") == []
    assert nth > 10


def test_a_list_that_has_no_space_is_done_without(short: tuple[Context, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All else takes only inodes, and a disk whose blocks another user's job has taken has some."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shown, "write_all", full)
    assert ran(workspace.run(short[0], OPTIONS)).own.path
    assert shown_by(short[0].run.directory) == []


def test_the_longest_tmpdir_has_room_for_sockets() -> None:
    longest = a_run(workspace="/" + "w" * (LONGEST_WORKSPACE - 1), view_id=2**32 - 1, restarts=2**32 - 1)
    directory = f"{longest.directory}/tmp"
    assert len(directory) == LONGEST_TMPDIR
    for added, problem in ((SOCKET_NAMES, "No such file"), (SOCKET_NAMES + 1, "path too long")):
        with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match=problem):
            probe.bind(f"{directory}/" + "x" * (added - 1))


def test_a_directory_that_is_there_is_another_runs(short: tuple[Context, Path]) -> None:
    """An earlier job's of that id: it is left alone, and the run has its own."""
    workspace.run(short[0], OPTIONS)
    before = tree(short[1] / "7.00000000")
    other = short[0]._replace(run=short[0].run._replace(run_id="ffffffff"))
    outcome = workspace.run(other, OPTIONS)
    own = short[1] / "7.ffffffff"
    assert ran(outcome) == changed(other.run, path=f"{own}/cache", apart=True)
    assert outcome.environment == {"TMPDIR": f"{own}/tmp"}
    assert tree(own) == [".of-7.ffffffff", *before[1:]]
    assert tree(short[1] / "7.00000000") == before


def test_the_job_is_told_the_constant_path(short: tuple[Context, Path]) -> None:
    """Where the node has one; the tree is the same, and so is TMPDIR."""
    context, base = short
    outcome = workspace.run(context._replace(policy=context.policy._replace(constant_path="spank")), OPTIONS)
    own = base / "7.00000000"
    assert (outcome.run, outcome.environment) == (changed(context.run, path=CACHE), {"TMPDIR": f"{own}/tmp"})
    assert (own / "cache" / "numba").is_dir()


def test_a_place_that_somebody_else_owns_never_drains(context: Context, tmp_path: Path) -> None:
    """Under a sticky directory a user may have come first: the job runs cold, the node is fine."""
    (tmp_path / "workspace").symlink_to(tmp_path)
    with pytest.raises(WorkspaceNotRoots, match="workspace, which is not root's: it is a link, or no directory"):
        workspace.run(context, OPTIONS)
