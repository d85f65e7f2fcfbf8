"""Jobs that attack the harvest, as a real uid that owns its cache (docs/threats.md, rows 5, 7, 13).

For each attack: no byte from outside the tree is staged, nothing outside is changed, the time is bounded, and honest
entries of the same tree are harvested.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests.lib.collecting import collected
from tests.lib.privileges import drop_to
from warmstart.harvest import collect, scan
from warmstart.harvest.collect import Collected
from warmstart.host import untrusted
from warmstart.host.deadline import after

pytestmark = pytest.mark.threat(7)
JOB = 64201
SECRET = b"root:$y$secret"
HONEST = {f"honest/e{number}.x": b"honest %d" % number for number in range(5)}


class Attack(NamedTuple):
    """A job's tree, root's stage, and a file of root's outside of both."""

    tree: Path
    stage: Path
    secret: Path

    def collect(self, seconds: float = 20, max_size: int = 1 << 30, max_entries: int = 1000) -> Collected:
        deadline = after(seconds)
        return collected(self.tree, self.stage, owner=JOB, size=max_size, entries=max_entries, deadline=deadline)

    def honest(self) -> None:
        for name, content in HONEST.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content)

    def check(self, got: Collected) -> None:
        assert {name: got.entries.get(name, {}).keys() for name in HONEST} == {n: {n} for n in HONEST}
        listed = {path for files in got.entries.values() for path in files}
        for directory, _, names in os.walk(self.stage):
            for name in names:
                path = Path(directory, name)
                assert str(path.relative_to(self.stage)) in listed
                status = path.lstat()
                assert stat.S_ISREG(status.st_mode)
                assert (status.st_uid, status.st_nlink, status.st_mode & 0o7777) == (0, 1, 0o644)
                assert SECRET not in path.read_bytes()
        assert self.secret.read_bytes() == SECRET
        assert (self.secret.stat().st_mode & 0o7777, self.secret.stat().st_nlink) == (0o600, 1)


@pytest.fixture
def attack() -> Iterator[Attack]:
    """Yield a tree of the job's below a directory of root's, outside of private directories."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-hostile-", dir="/var/tmp"))
    base.chmod(0o711)
    paths = Attack(base / "tree", base / "stage", base / "secret")
    paths.tree.mkdir(0o700)
    os.chown(paths.tree, JOB, JOB)
    paths.stage.mkdir(0o700)
    paths.secret.write_bytes(SECRET)
    paths.secret.chmod(0o600)
    with as_job(paths.tree, paths.honest):
        pass
    yield paths
    subprocess.run(["/bin/rm", "-rf", "--one-file-system", str(base)], check=True)


@contextmanager
def as_job(tree: Path, act: Callable[[], object], *, forever: bool = False) -> Iterator[None]:
    """Run `act` as the job in its tree: to its end before the `with` block, or `forever` during it."""
    pid = os.fork()
    if not pid:
        _be_the_job(tree, act, forever)
    try:
        if not forever:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        yield
    finally:
        if forever:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _be_the_job(tree: Path, act: Callable[[], object], forever: bool) -> NoReturn:
    try:
        os.chdir(tree)
        drop_to(JOB, JOB)
        act()
        end = time.monotonic() + 30
        while forever and time.monotonic() < end:
            act()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the child must not go on as the test
        os.write(2, f"the attack failed: {error!r}\n".encode())
        os._exit(1)


def test_links_at_every_depth(attack: Attack) -> None:
    def plant() -> None:
        deep = Path()
        for level in range(10):
            (deep / "file.x").symlink_to("/etc/shadow")
            (deep / "dir").symlink_to("/etc")
            (deep / "secret").symlink_to(attack.secret)
            (deep / "up").symlink_to("../" * (level + 1))
            deep /= "d"
            deep.mkdir()

    with as_job(attack.tree, plant):
        got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {untrusted.LINK: 40}


def test_hard_links(attack: Attack) -> None:
    foreign = attack.tree / "foreign"
    os.link(attack.secret, foreign)
    with as_job(attack.tree, lambda: os.link("honest/e0.x", "second")):
        got = attack.collect()
    assert got.found.rejected.counts == {untrusted.HARD_LINK: 3}
    assert "honest/e0.x" not in got.entries
    foreign.unlink()
    (attack.tree / "second").unlink()
    shutil.rmtree(attack.stage)
    attack.stage.mkdir(0o700)
    kept = attack.tree / "kept"
    kept.write_bytes(SECRET)  # root's, one link, inside the tree
    got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {untrusted.FOREIGN: 1}


@pytest.mark.threat(5)
def test_fifos_sockets_devices_and_setuid(attack: Attack) -> None:
    def plant() -> None:
        os.mkfifo("fifo.x")
        os.mknod("whiteout", stat.S_IFCHR, 0)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket.x")
        Path("setuid").write_bytes(b"x")
        os.chmod("setuid", 0o6777)
        os.setxattr("setuid", "user.x", b"y")

    with as_job(attack.tree, plant):
        got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {untrusted.SPECIAL: 3}
    assert os.listxattr(attack.stage / "setuid") == []


def test_a_lease_does_not_make_root_wait(attack: Attack) -> None:
    """A file's owner may hold a write lease, for which an ordinary open waits up to 45 s."""
    import fcntl

    ready = attack.tree / "ready"

    def hold() -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fd = os.open("leased", os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        ready.touch()
        while True:
            signal.pause()

    with as_job(attack.tree, hold, forever=True):
        wait_for(ready)
        started = time.monotonic()
        got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {untrusted.UNREADABLE: 1}
    assert time.monotonic() - started < 20


def wait_for(path: Path) -> None:
    deadline = after(10)
    while not path.exists():
        assert not deadline.expired()
        time.sleep(0.01)


def test_a_file_of_one_tebibyte(attack: Attack) -> None:
    with as_job(attack.tree, lambda: os.truncate(os.open("sparse", os.O_CREAT | os.O_WRONLY), 1 << 40)):
        got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {collect.TOO_LARGE: 1}


def test_two_thousand_tiny_files(attack: Attack) -> None:
    def plant() -> None:
        os.mkdir("zz")
        for number in range(2_000):
            os.close(os.open(f"zz/{number}", os.O_CREAT | os.O_WRONLY))

    with as_job(attack.tree, plant):
        got = attack.collect(max_entries=100)
    attack.check(got)
    assert (len(got.entries), got.truncated) == (len(HONEST), scan.TOO_MANY_NAMES)


def test_a_tree_four_thousand_deep(attack: Attack) -> None:
    def plant() -> None:
        for _ in range(4000):
            os.mkdir("d")
            os.chdir("d")
        Path("bottom").write_text("x")

    with as_job(attack.tree, plant):
        got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {scan.TOO_DEEP: 1}


def test_names_that_are_not_text(attack: Attack) -> None:
    names = [b"a\nb", b"\x1b]0;x\x07", b"\xff\xfe", b"#comment", b" blank", b"back\\slash", b"x" * 255, b"-e"]

    def plant() -> None:
        for name in names:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))

    with as_job(attack.tree, plant):
        got = attack.collect()
    attack.check(got)
    assert got.found.rejected.counts == {scan.ODD_NAME: 2}
    assert all(path.isascii() and path.isprintable() for path, _ in got.found.rejected.examples)


def test_a_directory_that_is_swapped_for_a_link_and_back(attack: Attack) -> None:
    os.mkdir(attack.secret.parent / "roots", 0o755)
    (attack.secret.parent / "roots/f").write_bytes(SECRET)

    def prepare() -> None:
        os.mkdir("race")
        Path("race/f").write_bytes(b"mine")
        os.symlink(attack.secret.parent / "roots", "link")

    def swap() -> None:
        os.rename("race", "aside")
        os.rename("link", "race")
        os.rename("race", "link")
        os.rename("aside", "race")

    with as_job(attack.tree, prepare), as_job(attack.tree, swap, forever=True):
        outcomes = harvest_again_and_again(attack, "race/f", b"mine")
    assert outcomes


def test_a_file_that_is_swapped_for_links_and_fifos(attack: Attack) -> None:
    def prepare() -> None:
        Path("mine").write_bytes(b"mine")
        Path("f").write_bytes(b"mine")
        os.symlink(attack.secret, "link")
        os.mkfifo("fifo")

    def swap() -> None:
        for kind in ("link", "fifo", "mine"):
            os.rename("f", "aside")
            os.rename(kind, "f")
            os.rename("f", kind)
            os.rename("aside", "f")

    with as_job(attack.tree, prepare), as_job(attack.tree, swap, forever=True):
        outcomes = harvest_again_and_again(attack, "f", b"mine")
    assert outcomes


def harvest_again_and_again(attack: Attack, name: str, content: bytes) -> set[str]:
    """Harvest fifty times during an attack. Return the outcomes for `name`."""
    outcomes = set()
    for _ in range(50):
        got = attack.collect()
        attack.check(got)
        if name in got.entries:
            assert (attack.stage / name).read_bytes() == content
        outcomes |= {"taken"} if name in got.entries else {*got.found.rejected.counts}
        for path in list(attack.stage.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return outcomes


@pytest.mark.threat(13)
def test_a_process_that_keeps_writing(attack: Attack) -> None:
    def write() -> None:
        with suppress(FileNotFoundError), open("grows", "ab", buffering=0) as file:
            file.writelines(b"x" * 65536 for _ in range(100))
        if os.stat("grows").st_size > 256 << 20:
            os.truncate("grows", 0)

    with as_job(attack.tree, write, forever=True):
        wait_for(attack.tree / "grows")
        got = attack.collect()
    attack.check(got)
    assert "grows" not in got.entries or got.entries["grows"]["grows"].size == (attack.stage / "grows").stat().st_size


@pytest.mark.threat(13)
def test_something_mounted_in_the_tree(attack: Attack) -> None:
    def plant() -> None:
        os.mkdir("mount")
        Path("file").touch()

    with as_job(attack.tree, plant):
        pass
    outside = attack.secret.parent / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"mounted")
    os.chown(outside / "f", JOB, JOB)
    targets = [(outside, attack.tree / "mount"), (outside / "f", attack.tree / "file")]
    try:
        for source, target in targets:
            subprocess.run(["/bin/mount", "--bind", str(source), str(target)], check=True)
        got = attack.collect()
    finally:
        for _, target in targets:
            subprocess.run(["/bin/umount", str(target)], check=True)
    attack.check(got)
    assert got.found.rejected.counts == {untrusted.MOUNT: 2}


def test_something_mounted_on_the_cache_itself(attack: Attack) -> None:
    outside = attack.secret.parent / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"mounted")
    os.chown(outside / "f", JOB, JOB)
    subprocess.run(["/bin/mount", "--bind", str(outside), str(attack.tree)], check=True)
    try:
        got = attack.collect()
    finally:
        subprocess.run(["/bin/umount", str(attack.tree)], check=True)
    assert (got.entries, got.found.rejected.counts) == ({}, {untrusted.MOUNT: 1})
    assert list(attack.stage.iterdir()) == []
