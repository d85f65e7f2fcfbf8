"""A job's user mounts a FUSE file system whose daemon never answers over what root looks at in the job's directories.

Where /etc/fuse.conf has `user_allow_other`, an open by root waits for that daemon, also after SIGKILL.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lib.accounts import UIDS
from tests.lib.collecting import collected
from tests.lib.runs import a_run
from warmstart.caches.store.layout import File
from warmstart.harvest.known import Known
from warmstart.host import linux
from warmstart.images import notes
from warmstart.run.state import Run, Seeded, SeededBundle
from warmstart.steps import harvest

PATIENCE_S = 10.0


@contextmanager
def silent(place: Path) -> Iterator[None]:
    """Have a FUSE file system of a user's at a directory or a file, for all users, which nobody serves."""
    device = os.open("/dev/fuse", os.O_RDWR)
    uid = UIDS["ws-alice"]
    kind = "40000" if place.is_dir() else "100644"
    linux.mount(
        "silent", str(place), "fuse", 0, f"fd={device},rootmode={kind},user_id={uid},group_id={uid},allow_other"
    )
    try:
        yield
    finally:
        os.close(device)  # this ends every wait
        assert linux.unmount_here(str(place))


def answers(look: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            look()
        os._exit(0)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.fixture
def run(base: Path) -> Run:
    made = a_run(workspace=str(base), uid=UIDS["ws-alice"])
    for name in ("cache", "tmp"):
        Path(made.directory, name).mkdir(parents=True)
    return made


def own_variables(run: Run, _base: Path) -> object:
    return harvest._own_variables(run.directory)


def noted(run: Run, _base: Path) -> object:
    fd = os.open(run.directory, os.O_RDONLY)
    try:
        return [*notes._notes(fd)]
    finally:
        os.close(fd)


def collected_where_it_was_seeded(run: Run, base: Path) -> object:
    """Collect what was extracted: size and time are compared first."""
    given = {"a": {"a": File(1, "ab" * 32, 1)}}
    known = Known(Seeded("ns", [SeededBundle("site", "ab" * 32, ["a"])]), lambda _: given, list)
    return collected(Path(run.directory, "cache"), base / "stage", known=known, owner=run.uid)


@pytest.mark.report
@pytest.mark.threat(13)
@pytest.mark.parametrize(
    ("look", "where"), [(own_variables, "cache"), (noted, "tmp"), (collected_where_it_was_seeded, "cache/a")]
)
def test_root_does_not_wait_for_a_users_daemon(
    run: Run, base: Path, look: Callable[[Run, Path], object], where: str
) -> None:
    place = Path(run.directory, where)
    if not place.exists():
        place.touch()
    with silent(place):
        ended = answers(lambda: look(run, base))
    assert ended
