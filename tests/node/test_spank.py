"""The SPANK plugin: its task callbacks as root, under the sanitizers, and in sweeps under valgrind, too."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.lib import processes, spank
from tests.lib.requirements import unavailable
from tests.lib.teardown import unmount
from tests.node.test_silent_fuse import answers, silent
from warmstart.host import linux
from warmstart.host.files import opened_dir
from warmstart.paths import NOTHING, Shown
from warmstart.run.shown import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


JOB, OTHER = 64201, 64202  # uids; they need no account
VALGRIND = (
    "valgrind",
    "--quiet",
    "--vgdb=no",
    "--error-exitcode=99",
    "--leak-check=full",
    "--show-leak-kinds=definite,possible",
)


class Node(NamedTuple):
    """The plugin's surroundings on a node: state, workspace and constant path; and the program that calls it."""

    base: Path
    harness: spank.Harness

    @property
    def constant(self) -> Path:
        return self.base / "constant"

    def make_cache(self, run: str, uid: int) -> Path:
        """Make a run's cache that belongs to the job, with a marker in it."""
        cache = self.base / "workspace" / run / "cache"
        cache.mkdir(parents=True)
        (cache / "marker").write_text(f"{uid}\n")
        cache.chmod(0o700)
        self.show(run, Shown("rw", "root", "cache", NOTHING, str(self.constant), NOTHING), uid)
        for path in (cache, cache / "marker"):
            os.chown(path, uid, uid)
        return cache

    def show(self, run: str, shown: Shown, uid: int = JOB) -> None:
        with opened_dir(str(self.base / "workspace" / run)) as fd:
            show(fd, shown, uid)

    def write_view(self, *lines: object, job: int = 7, uid: int = JOB) -> Path:
        """Write the view that the prolog renders, or that its owner forged."""
        directory = self.base / "state" / "view" / str(job)
        directory.mkdir(parents=True)
        (directory / "environment").write_text("".join(f"{line}\n" for line in lines))
        os.chown(directory / "environment", uid, uid)
        return directory / "environment"

    def task(self, **environment: str) -> list[str]:
        """Run a task of job 7. Return the harness's output without the checker's."""
        done = self.start(**environment)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    def start(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Start a task of job 7. The last argument is the harness's own."""
        paths = {
            "run": self.base / "state",
            "workspace": self.base / "workspace",
            "cache": self.constant,
        }
        arguments = [f"{key}={value}" for key, value in paths.items()]
        slurm = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
        return self.harness.run("task", str(JOB), "7", *arguments, **{**slurm, **environment})


@pytest.fixture(scope="module")
def harnesses(capable_host: None) -> Iterator[Callable[[str], spank.Harness]]:
    """Give what builds the plugin for a checker and starts it, once. Skip, or fail in CI, if that fails."""
    spank.need()
    if not shutil.which("valgrind"):
        unavailable("no valgrind")
    with tempfile.TemporaryDirectory(prefix="warmstart-spank-", dir="/var/tmp") as path, ExitStack() as served:
        Path(path).chmod(0o755)  # valgrind 3.24 reads a program's symbols late, as the job's user

        @functools.cache
        def started(checker: str) -> spank.Harness:
            program = spank.build(Path(path), sanitize=checker == "sanitizers")
            return served.enter_context(spank.served(program, *(VALGRIND if checker == "valgrind" else ())))

        yield started


@pytest.fixture(params=["sanitizers", pytest.param("valgrind", marks=pytest.mark.sweep)])
def node(request: pytest.FixtureRequest, harnesses: Callable[[str], spank.Harness]) -> Iterator[Node]:
    """Yield a node whose directories belong to root and can be entered by the job's uid."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-spank-", dir="/var/tmp"))
    base.chmod(0o755)
    yield Node(base, harnesses(request.param))
    assert str(base) not in Path("/proc/self/mountinfo").read_text()
    shutil.rmtree(base)


ONCE = pytest.mark.parametrize("node", ["sanitizers"], indirect=True)  # valgrind is slow to start


def view_of(node: Node, cache: Path) -> list[str]:
    """Return the view's lines as the prolog renders them where the policy says `constant_path: spank`."""
    paths = [str(node.base / "workspace"), str(node.constant), str(cache)]
    return [*paths, f"NUMBA_CACHE_DIR={node.constant}/numba", "PLAIN=a b", f"!WARMSTART_CACHE={node.constant}"]


@ONCE
@pytest.mark.report
@pytest.mark.threat(13)
def test_roots_part_of_a_task_asks_no_file_system_of_the_users(node: Node) -> None:
    """A FUSE daemon that never answers, over the job's cache, would hold slurmstepd where no signal ends it."""
    cache = node.make_cache("7.aa", JOB)
    node.write_view(*view_of(node, cache))
    with silent(cache):
        assert answers(lambda: node.task(AS_ROOT_ALONE="1"))


def mounts(node: Node, lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("/proc/self/mountinfo:") and f" {node.constant} " in line]


def test_the_cache_is_at_the_constant_path(node: Node) -> None:
    cache = node.make_cache("7.0a1b2c3d", JOB)
    node.write_view(*view_of(node, cache))
    lines = node.task()
    (mount,) = mounts(node, lines)
    assert "nosuid,nodev" in mount
    assert {f"NUMBA_CACHE_DIR={node.constant}/numba", "PLAIN=a b", f"WARMSTART_CACHE={node.constant}"} <= set(lines)
    assert f"{node.constant}/marker: {JOB}" in lines
    assert not (node.constant / "marker").exists()


@pytest.mark.threat(5)
def test_what_is_mounted_in_the_cache_comes_along(node: Node) -> None:
    cache = node.make_cache("7.0a1b2c3d", JOB)
    (cache / "numba").mkdir()
    seeded = node.base / "seeded"
    seeded.mkdir()
    (seeded / "entry").write_text("seeded\n")
    node.write_view(*view_of(node, cache))
    for arguments in (("--bind", str(seeded), str(seeded)), ("--bind", "-o", "remount,nosuid,nodev", str(seeded))):
        subprocess.run(["/usr/bin/mount", *arguments], check=True)
    subprocess.run(["/usr/bin/mount", "--bind", str(seeded), str(cache / "numba")], check=True)
    try:
        found = node.task()
    finally:
        subprocess.run(["/usr/bin/umount", str(cache / "numba"), str(seeded)], check=True)
    below = [line for line in found if f" {node.constant}/numba " in line]
    assert [("nosuid" in line, "nodev" in line) for line in below] == [(True, True)]


def test_without_a_mount_the_jobs_own_path_is_used(node: Node) -> None:
    """The constant path is not root's: the task starts all the same."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    node.write_view(*view_of(node, cache))
    node.constant.mkdir()
    os.chown(node.constant, OTHER, OTHER)
    lines = node.task()
    assert mounts(node, lines) == []
    assert {f"NUMBA_CACHE_DIR={cache}/numba", f"WARMSTART_CACHE={cache}", f"{cache}/marker: {JOB}"} <= set(lines)


@contextmanager
def in_container(node: Node, cache: Path, *, hidden: bool) -> Iterator[dict[str, str]]:
    """Yield the environment of a task in a container whose cache is at the constant path, or hidden by a mount."""
    root = node.base / "container"
    constant = Path(f"{root}{node.constant}")
    for path in (constant, root / "proc"):
        path.mkdir(parents=True)
    pairs = [(Path("/proc"), root / "proc"), *([] if hidden else [(cache, constant)])]
    for source, target in pairs:
        subprocess.run(["/usr/bin/mount", "--bind", source, target], check=True)
    try:
        yield {"CONTAINER": str(root)}
    finally:
        for _, target in pairs:
            subprocess.run(["/usr/bin/umount", target], check=True)


@ONCE
@pytest.mark.parametrize("hidden", [False, True])
def test_a_mount_of_the_users_hides_the_cache(node: Node, *, hidden: bool) -> None:
    """In a container the plugin sets nothing; it unsets what would lead into another directory, and says so."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    run = f"{node.base}/workspace/7.0a1b2c3d"
    node.write_view(*view_of(node, cache), "MINE=x", f"TMPDIR={run}/tmp")
    of_the_hook = {"WARMSTART_CACHE": str(node.constant), "NUMBA_CACHE_DIR": f"{node.constant}/numba"}
    own = {"MINE": f"{node.base}/mine", "PATH_ELSEWHERE": f"{node.constant}/numba"}
    with in_container(node, cache, hidden=hidden) as container:
        done = node.start(**container, **of_the_hook, **own, TMPDIR=f"{run}/tmp")
    lines = set(done.stdout.splitlines())
    assert done.returncode == 0
    assert {f"{name}={value}" for name, value in own.items()} <= lines
    assert not any(line.startswith(("PLAIN=", "TMPDIR=")) for line in lines)
    kept = {f"{name}={value}" for name, value in of_the_hook.items()}
    assert lines & {*kept, "WARMSTART_CACHE="} == ({"WARMSTART_CACHE="} if hidden else kept)
    subject = "cache" if hidden else "TMPDIR"
    why = "one of its mounts hides it, or enroot's hook is not installed on this node; the step runs without it"
    assert done.stderr == f"warmstart: this container lacks the job's {subject}: {why}\n"


@ONCE
def test_a_container_that_the_caches_are_not_for_is_as_without_us(node: Node) -> None:
    """What enroot's hook set in place of a cache is unset; nothing is hidden, so no step's stderr has a line."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    tmp = cache.with_name("tmp")
    tmp.mkdir()
    node.write_view(*view_of(node, cache), f"TMPDIR={tmp}")
    Path(f"{node.base}/container{tmp}").mkdir(parents=True)
    of_the_hook = {"NUMBA_CACHE_DIR": "/home/a/.numba", "WARMSTART_CACHE": "", "WARMSTART_UNSET": "NUMBA_CACHE_DIR"}
    with in_container(node, cache, hidden=True) as container:
        done = node.start(**container, **of_the_hook, TMPDIR=str(tmp), MINE="x")
    lines = done.stdout.splitlines()
    assert {"MINE=x", f"TMPDIR={tmp}", "WARMSTART_CACHE="} <= {*lines}
    assert not [line for line in lines if line.startswith(("NUMBA_CACHE_DIR=", "WARMSTART_UNSET="))]
    assert done.stderr == ""


@ONCE
def test_what_would_make_a_container_warm_is_told_once(node: Node) -> None:
    """By the first task of the first step that finds the importer's note; a thousand short steps have one line."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    node.write_view(*view_of(node, cache))
    folder = Path(f"{node.base}/container{cache.with_name('tmp')}/warmstart-images")
    folder.mkdir(parents=True)
    os.chown(folder, JOB, JOB)
    with in_container(node, cache, hidden=True) as container:
        os.mkfifo(folder / ".cold")  # its owner can leave anything there
        assert node.start(**container).stderr == ""
        (folder / ".cold").unlink()
        (folder / ".cold").write_text("warmstart: cold\n")
        os.chown(folder / ".cold", JOB, JOB)
        told = [node.start(**container, RANK=rank).stderr for rank in ("1", "0", "0")]
        (folder / ".cold").unlink()
        (folder / ".cold").write_text("warmstart: cold\n")  # by an importer that looked before it was told
        told.append(node.start(**container).stderr)
    assert told == ["", "warmstart: cold\n", "", ""]


def _linked(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@ONCE
@pytest.mark.parametrize(
    "content", [_linked, "rw\troot\tcache", "\n\n\t\t\t\t\t\n", "rw\troot\tcache\t-\trelative\t-", "x" * 70000, None]
)
def test_a_list_that_is_none_shows_nothing(node: Node, content: str | Callable[[Path], None] | None) -> None:
    """Root writes it; a job without a mount has its cache's own path."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    node.write_view(*view_of(node, cache))
    shown = cache.with_name("shown")
    if content is None:
        os.chown(shown, JOB, JOB)
    elif isinstance(content, str):
        shown.write_text(content)
    else:
        content(shown)
    lines = node.task()
    assert mounts(node, lines) == []
    assert f"WARMSTART_CACHE={cache}" in lines


@ONCE
@pytest.mark.parametrize(
    "claim",
    [
        "/etc",
        "{workspace}/8.0a1b2c3d/cache",  # another user's
        "{workspace}/7.0a1b2c3d/cache/inside",
        "{workspace}/7.0a1b2c3d/cache/../../8.0a1b2c3d/cache",
        "{workspace}/../workspace/7.0a1b2c3d/cache",
        "{workspace}/9.0a1b2c3d/cache",  # a link to another user's
        "{workspace}/7.0A1B2C3D/cache",
        "{workspace}/7.0a1b2c3d0/cache",
        "{workspace}x/7.0a1b2c3d/cache",
        "{workspace}/n1/7.0a1b2c3d/cache",
        "x" * 70000,
    ],
)
def test_a_forged_view_reaches_nothing_of_others(node: Node, claim: str) -> None:
    node.make_cache("7.0a1b2c3d", JOB)
    foreign = node.make_cache("8.0a1b2c3d", OTHER)
    linked = node.base / "workspace" / "9.0a1b2c3d"
    linked.mkdir()
    (linked / "cache").symlink_to(foreign)
    node.write_view(*view_of(node, Path("/")))
    lines = view_of(node, Path("/"))
    lines[2] = claim.format(workspace=node.base / "workspace")
    (node.base / "state/view/7/environment").write_text("".join(f"{line}\n" for line in lines))
    said = node.task()
    assert mounts(node, said) == []
    assert f"{OTHER}" not in "".join(line for line in said if "marker" in line)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    os.chown(path, JOB, JOB)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _foreign(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


def _huge(path: Path) -> None:
    with path.open("a") as file:
        file.truncate(1 << 30)


@ONCE
@pytest.mark.parametrize("change", [_fifo, _link, _foreign, _huge])
def test_a_view_or_a_verdict_that_is_none_is_not_read(node: Node, change: Callable[[Path], None]) -> None:
    """A FIFO does not hang the task, a link is not followed, another user's file is not trusted."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    change(node.write_view(*view_of(node, cache)))
    lines = node.task()
    assert mounts(node, lines) == []
    assert not any(line.startswith("WARMSTART_CACHE=") for line in lines)
    assert lines[0].startswith("info: warmstart: cannot read the job's view: ")
    view = node.write_view(*view_of(node, cache), job=6)
    verdict = view.with_name("verdict")
    verdict.write_text("x\n")
    os.chown(verdict, JOB, JOB)
    change(verdict)
    assert len(mounts(node, node.task(SLURM_JOB_ID="6"))) == 1


def test_the_first_task_of_a_step_tells_the_notices(node: Node) -> None:
    """On stderr, also where there is nothing else for the job. The others know the file."""
    cache = node.make_cache("7.0a1b2c3d", JOB)
    view = node.write_view(*view_of(node, cache))
    notice = view.with_name("notice")
    notice.write_text("warmstart: cold\n")
    os.chown(notice, JOB, JOB)
    for environment in (view_of(node, cache), None):
        if environment is None:
            view.unlink()
        for rank in ("0", "1"):
            done = node.start(RANK=rank)
            assert (done.returncode, done.stderr) == (0, "warmstart: cold\n" if rank == "0" else "")
            assert f"WARMSTART_NOTICES={notice}" in done.stdout.splitlines()
            assert len(mounts(node, done.stdout.splitlines())) == (environment is not None)


def test_a_verdict_ends_the_task_with_its_reason(node: Node) -> None:
    cache = node.make_cache("7.0a1b2c3d", JOB)
    view = node.write_view(*view_of(node, cache))
    reason = "warmstart: refused\nwarmstart: ask your admin\n"
    verdict = view.with_name("verdict")
    verdict.write_text(reason)
    os.chown(verdict, JOB, JOB)
    ended = node.start()
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", reason)
    view.unlink()  # as the prolog leaves it
    ended = node.start()
    assert (ended.returncode, ended.stderr) == (1, reason)
    verdict.write_text("")  # its owner may empty or remove it: it informs, and keeps nobody out
    assert node.start().returncode == 1
    verdict.unlink()
    assert node.start().returncode == 0


def test_the_leaders_id_names_the_view_of_a_component(node: Node) -> None:
    cache = node.make_cache("7.0a1b2c3d", JOB)
    node.write_view(*view_of(node, cache), job=6)
    assert len(mounts(node, node.task(SLURM_JOB_ID="6"))) == 1
    node.write_view(*view_of(node, cache), job=5, uid=OTHER)
    for forged in ("5", "../view/6", "", "6\n"):
        assert mounts(node, node.task(SLURM_JOB_ID=forged)) == []


@ONCE
@pytest.mark.parametrize("case", ["the file that was seen", "another file", "a directory", "a link"])
def test_a_file_is_shown_over_the_file_that_was_seen(node: Node, case: str) -> None:
    """Read-only, in this task alone, where the job's user has it; the kernel puts no file on a directory."""
    run = "7.0a1b2c3d"
    node.write_view(*view_of(node, node.make_cache(run, JOB)))
    file, source = node.base / "shared/marker", node.base / "workspace" / run / "mounted/0"
    for path, text in ((file, "original\n"), (source, "copy\n")):
        path.parent.mkdir()
        path.write_text(text)
    with file.open() as opened:
        seen = linux.identity(opened.fileno())
    if case != "the file that was seen":
        file.rename(file.with_name("moved"))
    if case == "another file":
        file.write_text("another\n")
    elif case == "a directory":
        file.mkdir()
        seen = NOTHING
    elif case == "a link":
        file.symlink_to("moved")
        seen = NOTHING
    node.show(run, Shown("ro", "job", "mounted/0", seen, str(file), NOTHING))
    lines = node.task(TREE=str(file.parent))
    held = [line.partition(": ")[2] for line in lines if line.startswith(f"{file}: ")]
    expected = {"the file that was seen": ["copy"], "another file": ["another"], "a link": ["original"]}
    assert held == expected.get(case, [])
    assert str(file) not in Path("/proc/self/mountinfo").read_text()


@contextmanager
def hanging(node: Node) -> Iterator[Path]:
    """Yield a directory of a file system that answers nobody."""
    source, target = node.base / "source", node.base / "hanging"
    for path in (source, target):
        path.mkdir()
    for name in ("0", "1", "2"):
        (source / name).touch()
    with subprocess.Popen(["/usr/bin/bindfs", "-f", "-o", "allow_other", str(source), str(target)]) as server:
        processes.wait_until("bindfs", (target / "0").exists, 20)
        server.send_signal(signal.SIGSTOP)
        try:
            yield target
        finally:
            server.send_signal(signal.SIGCONT)
            unmount(str(target))
            server.wait(20)


@ONCE
def test_many_files_are_shown_whatever_becomes_of_one(node: Node) -> None:
    run, shared = "7.0a1b2c3d", node.base / "shared"
    node.write_view(*view_of(node, node.make_cache(run, JOB)))
    (node.base / "workspace" / run / "mounted").mkdir()
    shared.mkdir()
    for number in range(20):
        (node.base / f"workspace/{run}/mounted/{number}").write_text("copy\n")
        if number != 7:
            (shared / str(number)).write_text("original\n")
        node.show(run, Shown("ro", "job", f"mounted/{number}", NOTHING, str(shared / str(number)), NOTHING))
    with hanging(node) as nowhere:
        for name in ("1", "2"):
            node.show(run, Shown("ro", "job", f"mounted/{name}", NOTHING, str(nowhere / name), NOTHING))
        began = time.monotonic()
        lines = node.task(TREE=str(shared / "19"))
        took = time.monotonic() - began
    told = [line.partition(" mount at ")[2].partition(": ")[0] for line in lines if "cannot mount" in line]
    assert told == [str(shared / "7"), str(nowhere / "1"), str(nowhere / "2")]
    assert [line for line in lines if line.startswith("/proc/self/mountinfo:") and f" {shared}/19 " in line]
    assert took < 19, "each line was waited for"
