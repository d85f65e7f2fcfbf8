"""A user takes names in a shared directory before others do (docs/threats.md, row 34)."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from tests.lib.runs import a_context, a_policy, a_run
from warmstart.doctor import permissions
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images import notes, scratch
from warmstart.images.scratch import Caps, WorkspaceNotRoots
from warmstart.images.user import own_images
from warmstart.paths import Installation
from warmstart.policy.keys import Paths
from warmstart.steps import workspace
from warmstart.steps.workspace import Options

pytestmark = pytest.mark.threat(34)
ALICE = Identity("alice", 64201, 64201)
REPOSITORY = Path(__file__).parents[2]
BOB = Identity("bob", 64202, 64202)
ROOT = Identity("root", 0, 0)


def import_directory(shared: str) -> str:
    """Return where images of the caller's own go, with `shared` for /var/tmp."""
    own_images.FALLBACK = shared
    return own_images.directory_of("", "7.0", Caps(1 << 20, 100)).path


def write(path: str) -> None:
    Path(path).write_bytes(b"x")


def squat(shared: str, names: list[str], target: str) -> None:
    """Take names: as a directory that all may write, as a link to one, and as a file."""
    for number, name in enumerate(names):
        path = Path(shared, name)
        if number % 3 == 0:
            path.mkdir()
            path.chmod(0o777)
        elif number % 3 == 1:
            path.symlink_to(target)
        else:
            path.write_bytes(b"")


def release(shared: str, step: str) -> None:
    own_images.FALLBACK = shared
    own_images.release(step)


@pytest.fixture
def shared(base: Path) -> str:
    (base / "shared").mkdir()
    (base / "shared").chmod(0o1777)
    return str(base / "shared")


@pytest.fixture
def alice() -> Worker:
    return Worker(ALICE)


@pytest.fixture
def bob() -> Worker:
    return Worker(BOB)


def test_names_that_another_user_took_keep_nobody_from_importing(alice: Worker, bob: Worker, shared: str) -> None:
    """Bob has made what he can guess, before and after; alice has a directory that is hers alone."""
    target = str(Path(shared).parent / "bobs")
    Path(target).mkdir(mode=0o777)
    stem = f"{notes.FOLDER}-{ALICE.uid}"
    bob.run(after(60), squat, shared, [stem, *(f"{stem}-{number}" for number in range(9))], target)
    path = alice.run(after(60), import_directory, shared)
    status = os.lstat(path)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (ALICE.uid, 0o700)
    bob.run(after(60), squat, shared, [f"{stem}-a", f"{stem}-b", f"{stem}-c", f"{stem}-0a"], target)
    assert alice.run(after(60), import_directory, shared) == path
    assert os.listdir(target) == []


def test_the_name_cannot_be_guessed(alice: Worker, base: Path) -> None:
    names = set()
    for number in range(3):
        (base / str(number)).mkdir()
        (base / str(number)).chmod(0o1777)
        names.add(os.path.basename(alice.run(after(60), import_directory, str(base / str(number)))))
    assert len(names) == 3


def test_release_finds_what_the_step_has(alice: Worker, bob: Worker, shared: str) -> None:
    bobs = bob.run(after(60), import_directory, shared)
    path = alice.run(after(60), import_directory, shared)
    alice.run(after(60), write, f"{path}/a.sqsh")
    bob.run(after(60), write, f"{bobs}/a.sqsh")
    for step in ("7.1", "7.0", "7.0"):
        alice.run(after(60), release, shared, step)
        assert os.path.exists(path) == (step == "7.1")
    assert os.listdir(bobs) == ["a.sqsh"]


def make(path: str) -> None:
    os.mkdir(path, 0o755)


def workspace_findings(base: Path, workspace: str) -> list[tuple[str, str]]:
    """Return what doctor says of the workspaces' parents on a host whose node n1 has run hooks."""
    prefix = str(base / "prefix")
    began = Path(Installation(prefix).node("n1").began)
    began.parent.mkdir(parents=True, exist_ok=True)
    began.touch()
    policy = a_policy(base)
    policy = policy._replace(paths=policy.paths._replace(workspace=workspace))
    places = [
        place for place in permissions.places(Installation(prefix), policy) if place.paths == [policy.paths.workspace]
    ]
    told = [found for place in places for found in permissions.told(place, permissions.look(place))]
    return [(found.status, found.found) for found in told]


def test_doctor_tells_of_a_workspace_root_that_a_user_has_made_or_could_make(
    bob: Worker, base: Path, shared: str
) -> None:
    """A job there would run cold for ever: the root is another's, or all may write in it."""
    root = f"{shared}/warmstart"
    ((status, found),) = workspace_findings(base, root)
    assert (status, "anybody can create" in found) == ("wrong", True)
    bob.run(after(60), make, root)
    ((status, found),) = workspace_findings(base, root)
    assert (status, f"{root} (uid {BOB.uid}" in found) == ("wrong", True)
    ((status, found),) = workspace_findings(base, shared)
    assert (status, f"{shared} (uid 0, mode 1777)" in found) == ("wrong", True)


@pytest.mark.parametrize("squatted", [True, False])
def test_a_job_and_an_import_hear_that_the_workspace_is_not_roots(
    bob: Worker, base: Path, shared: str, *, squatted: bool
) -> None:
    """And whose it is, or that all may write in it: free space would not help. Nothing is made there."""
    root = f"{shared}/warmstart" if squatted else shared
    if squatted:
        bob.run(after(60), make, root)
    context = a_context(base)._replace(run=a_run(workspace=root))
    whose = f"it belongs to uid {BOB.uid}" if squatted else "it can be written by others"
    said = f"nothing is made in {root}, which is not root's: {whose}"
    with pytest.raises(WorkspaceNotRoots, match=said) as told:
        workspace.run(context, Options(()))
    assert "free space" not in told.value.hint
    with pytest.raises(WorkspaceNotRoots, match=said), scratch.opened(root, "r1", ROOT, Caps(1 << 20, 100)):
        pass
    assert os.listdir(root) == []


def test_the_packaged_line_makes_the_root_roots(bob: Worker, base: Path, shared: str) -> None:
    """At boot, also if a user was there first; `doctor` then has nothing to say."""
    tmpfiles = shutil.which("systemd-tmpfiles") or unavailable("systemd-tmpfiles is not installed")
    text = (REPOSITORY / "packaging/tmpfiles.d/warmstart.conf").read_text()
    default = Paths("/s").workspace
    assert text.count(f"d {default} ") == 1
    config = base / "warmstart.conf"
    root = f"{shared}/warmstart"
    config.write_text(text.replace(default, root).replace("@VAR@", f"{base}/state").replace("@RUN@", f"{base}/runs"))
    bob.run(after(60), make, root)
    subprocess.run([tmpfiles, "--create", str(config)], check=True)
    status = os.lstat(root)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o755)
    assert workspace_findings(base, root) == []
