"""Users who attack their jobs' overlays, as a real uid (docs/threats.md, rows 4, 5, 8, 13).

For each attack: nothing outside the run's own directory is read or changed, in particular not the shared copy; honest
entries of the same cache are harvested; and the mounts go.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lib.meddling import meddling, stopped
from tests.lib.overlay_place import JOB, SUBDIR, Copy, Node, Run, a_node, content, tried
from tests.lib.privileges import drop_to
from tests.lib.processes import wait_until
from warmstart.harvest.collect import Collected
from warmstart.host import linux, untrusted
from warmstart.host.identity import Identity
from warmstart.seed.overlay_end import CacheInUse

pytestmark = pytest.mark.usefixtures("capable_host")

SECRET = b"root:$y$secret"
SEEDED = {"k/one": b"1", "k/two": b"2", "top": b"t"}
HONEST = {"honest/a": b"a", "honest/b": b"b"}


@pytest.fixture
def node() -> Iterator[Node]:
    """Yield a node of its own for each test, with a file of root's that no user may read."""
    with a_node() as made:
        secret = made.base / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        yield made
        assert secret.read_bytes() == SECRET


@pytest.fixture
def copy(node: Node) -> Iterator[Copy]:
    """Yield a bundle on the node, and check afterwards that it is unchanged."""
    made = node.bundle(SEEDED)
    before = Path(made.path).read_bytes()
    yield made
    assert Path(made.path).read_bytes() == before
    assert content(Path(node.layers, made.row.sha256)) == SEEDED


@pytest.fixture
def run(node: Node, copy: Copy) -> Run:
    """Give a seeded run in which a job has written something honest."""
    made = node.run("1.aaaaaaaa")
    made.show(copy)

    def write() -> None:
        os.mkdir("honest")
        for name, data in HONEST.items():
            Path(name).write_bytes(data)

    made.as_job(write)
    return made


@pytest.mark.report
@pytest.mark.threat(63)
@pytest.mark.parametrize("mapped", [True, False], ids=["ids are mapped", "ids are not"])
def test_no_user_stops_another_who_has_the_bundle(
    node: Node, copy: Copy, run: Run, monkeypatch: pytest.MonkeyPatch, *, mapped: bool
) -> None:
    if not mapped:
        monkeypatch.setattr(linux, "map_ids", refuses)
        run = node.run("3.cccccccc")
        run.show(copy)
    other = node.run("2.bbbbbbbb")._replace(job=Identity("another", JOB.uid + 1, JOB.gid + 1))
    assert other.show(copy) is mapped
    for path, data in SEEDED.items():
        with meddling((JOB.uid, JOB.gid), run.cache / path) as done:
            assert stopped((other.job.uid, other.job.gid), other.cache / path, data) == []
            assert (done["flock"], done["lease"]) == ("yes", "yes" if mapped else "EACCES")
            assert (node.base / "layers" / copy.row.sha256 / path).read_bytes() == data


def refuses(*_: object) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


def harvested(run: Run) -> Collected:
    """Harvest as root. Asserts that every staged file is a regular file of root's, and none is the secret."""
    stage = run.node.base / "stage"
    got = run.harvest(stage, lambda path: path, SEEDED)
    for path in stage.rglob("*"):
        assert path.is_dir() or (stat.S_IMODE(path.lstat().st_mode), path.lstat().st_uid) == (0o644, 0)
        assert path.is_dir() or SECRET not in path.read_bytes()
    assert content(stage).items() >= HONEST.items()
    return got


def gone(run: Run) -> bool:
    """Take the run down. Return whether no mount and no file of it remains."""
    run.take_down()
    return not run.path.exists() and str(run.path) not in Path("/proc/self/mountinfo").read_text()


@contextmanager
def at_work(act: Callable[[], object], cwd: Path) -> Iterator[subprocess.Popen[bytes] | int]:
    """Run another job of the same user that repeats an act."""
    pid = os.fork()
    if not pid:
        try:
            drop_to(JOB.uid, JOB.gid)
            os.chdir(cwd)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                with suppress(OSError):
                    act()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.threat(4)
def test_another_job_of_the_user_swaps_the_mount_point(node: Node, copy: Copy) -> None:
    elsewhere = node.base / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, JOB.uid, JOB.gid)

    def swap() -> None:
        for number in range(20):
            cache = f"workspace/{number}.aaaaaaaa/cache"
            for path in (f"{cache}/{SUBDIR}", cache):
                with suppress(OSError):
                    os.rename(path, f"elsewhere/{time.monotonic_ns()}")
                with suppress(OSError):
                    os.symlink(elsewhere, path)

    with at_work(swap, node.base):
        runs = [node.run(f"{number}.aaaaaaaa") for number in range(20)]
        for run in runs:
            run.show(copy)
    overlays = [point for point in node.mounts() if point.endswith(f"cache/{SUBDIR}")]
    assert len(overlays) == 20
    assert not any(point.startswith("elsewhere") for point in node.mounts())
    assert all(gone(run) for run in runs)
    assert not any(path.is_file() for path in elsewhere.rglob("*"))


@pytest.mark.threat(4)
def test_a_job_covers_its_own_overlay(run: Run, node: Node) -> None:
    evil = node.base / "evil"
    evil.mkdir()
    (evil / "planted").write_bytes(b"planted")
    for target in (run.cache / "honest", run.cache):
        subprocess.run(["/usr/bin/mount", "--bind", str(evil), str(target)], check=True)
    got = harvested(run)
    assert set(got.entries) == set(HONEST)
    assert gone(run)
    assert (evil / "planted").read_bytes() == b"planted"


def test_links_pipes_and_devices(run: Run, node: Node) -> None:
    def plant() -> None:
        os.symlink(node.base / "secret", "link")
        os.symlink("/etc", "dir")
        os.mkdir("linked")
        os.symlink(node.base, "linked/base")
        os.mkfifo("fifo")
        socket.socket(socket.AF_UNIX).bind("socket")
        os.link("top", "second")  # of a seeded file
        Path("hard").write_bytes(b"x")
        os.link("hard", "hard2")

    run.as_job(plant)
    got = harvested(run)
    assert set(got.entries) == set(HONEST)
    assert got.found.rejected.counts == {untrusted.LINK: 3, "neither file nor directory": 2, untrusted.HARD_LINK: 3}
    assert gone(run)


@pytest.mark.threat(5)
def test_no_whiteouts_devices_or_overlay_attributes_of_the_jobs_own(run: Run) -> None:
    """The kernel refuses what would affect the layers; what it allows has no effect."""
    refused = {
        "whiteout": lambda: os.mknod("k/w", stat.S_IFCHR, os.makedev(0, 0)),
        "device": lambda: os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
        "opaque": lambda: os.setxattr("k", "trusted.overlay.opaque", b"y"),
        "redirect": lambda: os.setxattr("k", "trusted.overlay.redirect", b"/"),
        "the parts": lambda: os.listdir("../../.seed"),
    }
    answers = run.as_job(lambda: {name: tried(act) for name, act in refused.items()})
    assert set(answers.values()) <= {"EPERM", "EACCES", "EOPNOTSUPP"}

    def pretend() -> None:
        os.mkdir("fake")
        for name, value in (("redirect", b"/etc"), ("opaque", b"y"), ("whiteout", b""), ("metacopy", b"")):
            with suppress(OSError):
                os.setxattr("fake", f"user.overlay.{name}", value)
                os.setxattr("honest/a", f"user.overlay.{name}", value)

    run.as_job(pretend)
    assert os.listdir(run.cache / "fake") == []
    assert {name: (run.cache / name).read_bytes() for name in SEEDED} == SEEDED
    assert set(harvested(run).entries) == set(HONEST)
    assert gone(run)


@pytest.mark.threat(5)
def test_setuid_neither_works_nor_travels(run: Run) -> None:
    run.as_job(lambda: os.chmod("honest/a", 0o6755))
    assert stat.S_IMODE((run.cache / "honest/a").stat().st_mode) == 0o6755
    harvested(run)
    assert gone(run)


@pytest.mark.threat(13)
def test_a_process_that_writes_all_the_time(run: Run) -> None:
    sizes = (1000, 2000, 3000)

    def act() -> None:
        for size in sizes:
            Path("moving.tmp").write_bytes(b"%d" % size * (size // 4))
            os.replace("moving.tmp", "moving")

    with at_work(act, run.cache):
        wait_until("the writer", (run.cache / "moving").exists, 30)
        with suppress(CacheInUse):
            harvested(run)
            data = (run.node.base / "stage" / "moving").read_bytes()
            assert data in [b"%d" % size * (size // 4) for size in sizes]
        assert gone(run)


@pytest.mark.threat(13)
def test_a_job_in_namespaces_of_its_own(run: Run) -> None:
    commands = [
        "umount {0}", "umount -l {0}", "rmdir {0}", "mv {0} {0}2", "mount --bind /etc {0}",
        "mount -t tmpfs none {0}", "touch {0}/x", "mount -o remount,suid {0}", "true",
    ]  # fmt: skip
    script = "; ".join(commands).format(run.cache)
    argv = ["/usr/bin/unshare", "-Urm", "sh", "-c", script]
    assert run.as_job(lambda: subprocess.run(argv, capture_output=True, check=False).returncode) == 0
    assert run.as_job(lambda: sorted(os.listdir("."))) == ["honest", "k", "top"]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    flags = [line.split()[5] for line in lines if str(run.cache) in line]
    assert len(flags) == 1
    assert "nosuid" in flags[0]
    harvested(run)
    assert gone(run)
