"""The workspace is whole or not there, and only a broken node drains."""

import errno
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.samples import CACHE, a_context
from warmstart.steps import release, workspace
from warmstart.steps.contract import Context
from warmstart.steps.workspace import Options, WorkspaceFull, WorkspaceUnusable

OPTIONS = Options(("numba", "inductor"))
CALLS = ("mkdir", "chown", "fchmod", "open")


def tree(root: Path) -> list[str]:
    """Return every path below the workspace root."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def failing(nth: int, number: int, call: Callable[..., object], count: "itertools.count[int]") -> Callable[..., object]:
    """Return `call`, but for the nth use of all that share `count`."""

    def wrapped(*args: object, **kwargs: object) -> object:
        if next(count) == nth:
            raise OSError(number, os.strerror(number))
        return call(*args, **kwargs)

    return wrapped


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Give a context below the test's directory."""
    return a_context(tmp_path)


def test_the_job_gets_its_own_directories_under_roots(context: Context, tmp_path: Path) -> None:
    """Layout, owners and modes of design section 5, and the variables that point there."""
    outcome = workspace.run(context, OPTIONS)
    run = tmp_path / "workspace" / "n1" / "7.0a1b2c3d"
    assert stat.S_IMODE(run.stat().st_mode) == 0o711
    assert tree(run) == ["cache", "cache/inductor", "cache/numba", "files", "tmp"]
    for path in run.rglob("*"):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o700, context.record.uid)
    assert outcome.environment == {"WARMSTART_CACHE": f"{run}/cache", "TMPDIR": f"{run}/tmp"}


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EROFS, WorkspaceUnusable),
        (errno.EIO, WorkspaceUnusable),
        (errno.ENOSPC, WorkspaceFull),
        (errno.EDQUOT, WorkspaceFull),
        (errno.EMFILE, WorkspaceFull),
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
        assert tree(tmp_path / "workspace") in ([], ["n1"])
    assert nth > 15


def test_the_job_is_told_the_constant_path(context: Context, tmp_path: Path) -> None:
    """Where the node has one; the tree is the same, and so is TMPDIR."""
    told = workspace.run(context._replace(policy=context.policy._replace(constant_path="spank")), OPTIONS).environment
    own = tmp_path / "workspace" / "n1" / "7.0a1b2c3d"
    assert told == {"WARMSTART_CACHE": CACHE, "TMPDIR": f"{own}/tmp"}
    assert (own / "cache" / "numba").is_dir()


def test_a_place_that_somebody_else_owns_never_drains(context: Context, tmp_path: Path) -> None:
    """Under a sticky directory a user may have come first: the job runs cold, the node is fine."""
    (tmp_path / "workspace").symlink_to(tmp_path)
    with pytest.raises(WorkspaceFull):
        workspace.run(context, OPTIONS)


def test_release_removes_only_this_run(context: Context, tmp_path: Path) -> None:
    """Another run of the same job, and everything beside it, stays."""
    other = context._replace(record=context.record._replace(run_id="ffffffff"))
    workspace.run(context, OPTIONS)
    workspace.run(other, OPTIONS)
    release.run(context, release.Options())
    release.run(context, release.Options())
    assert os.listdir(tmp_path / "workspace" / "n1") == ["7.ffffffff"]
