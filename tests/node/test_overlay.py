"""What a job can do in a cache seeded by an overlay, and that none of it reaches the shared copy."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.overlay_place import JOB, MTIME_NS, SUBDIR, Node, Run, a_node, content, tried, without_overlays
from tests.lib.whiteouts import PATHS, RULES, grouped, merged
from warmstart.harvest import collect
from warmstart.harvest.collect import HarvestLimits, Stage, collect_overlay
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.seed import node_cache, overlay
from warmstart.seed.node_cache import Copy, Keep
from warmstart.seed.overlay import CacheBusy, Layer, OverlayUnavailable

pytestmark = pytest.mark.usefixtures("capable_host")

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "profiles.md"
SEEDED = {"file": b"seeded", "d/one": b"1", "d/two": b"2", "e/f/g": b"deep"}
WAYS = pytest.mark.parametrize("mapped", [True, False], ids=["id-mapped", "root's"])


@pytest.fixture
def node() -> Iterator[Node]:
    """Yield a node of its own for each test."""
    with a_node() as made:
        yield made


@pytest.fixture
def way(mapped: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Simulate a kernel that can id-map layers, and one that cannot."""
    if not mapped:

        def refused(uid: int, gid: int) -> int:
            raise OSError(errno.EINVAL, f"no mapping for {uid}, {gid}")

        monkeypatch.setattr(linux, "user_namespace", refused)
    return mapped


def write(path: str, data: bytes, mode: str = "wb") -> None:
    """Write a file."""
    with open(path, mode) as file:
        file.write(data)


def each(*acts: Callable[[], object]) -> Callable[[], None]:
    """Return an act that runs these acts in turn."""

    def act() -> None:
        for one in acts:
            one()

    return act


def replace() -> None:
    """Write beside a seeded file and rename over it, as most tools do."""
    write("file.tmp", b"new")
    os.replace("file.tmp", "file")


def lock() -> None:
    """Lock a seeded file, as tools do with their lock files."""
    with open("file", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def change_mapped() -> None:
    """Change a seeded file through shared memory."""
    with open("file", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:3] = b"abc"
    assert Path("file").read_bytes() == b"abcded"


def replace_tree() -> None:
    """Remove a seeded directory and rename a new one into its place."""
    shutil.rmtree("d")
    os.mkdir("d.new")
    write("d.new/three", b"3")
    os.rename("d.new", "d")
    assert os.listdir("d") == ["three"]


def look_mapped() -> None:
    """Map a seeded file read-only, write to it, and read the memory again."""
    with open("file", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        write("file", b"SEEDED", "r+b")
        assert Path("file").read_bytes() == b"SEEDED"
        if memory[:] != b"SEEDED":
            raise OSError(errno.ESTALE, "the memory shows the old content")


def look_through_open_file() -> None:
    """Open a seeded file, write to it otherwise, and read what was opened."""
    with open("file", "rb") as file:
        write("file", b"SEEDED", "r+b")
        assert file.read() == b"SEEDED"


def map_open_file() -> None:
    """Open a seeded file, write to it otherwise, and map what was opened."""
    with open("file", "rb") as file:
        write("file", b"SEEDED", "r+b")
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            if memory[:] != b"SEEDED":
                raise OSError(errno.ESTALE, "the memory shows the old content")


def directly(path: str, flags: int) -> None:
    """Open a file with O_DIRECT; write a block if it is open for writing, and read it."""
    file = os.open(path, flags | os.O_DIRECT, 0o600)
    with mmap.mmap(-1, mmap.PAGESIZE) as block:
        if flags & os.O_RDWR:
            os.pwritev(file, [block], 0)
        assert os.preadv(file, [block], 0)
    os.close(file)


def over_full() -> None:
    """Rename a new directory over a seeded one that is not empty."""
    os.mkdir("new")
    os.rename("new", "d")


OPERATIONS: dict[str, Callable[[], object]] = {
    "create a file, make a directory": each(
        lambda: write("new", b"x"), lambda: os.makedirs("n/m"), lambda: write("d/new", b"y")
    ),
    "append, truncate": each(lambda: write("file", b"more", "ab"), lambda: os.truncate("d/one", 0)),
    "write beside it and rename over it": replace,
    "rename or link a file": each(lambda: os.rename("file", "renamed"), lambda: os.link("d/one", "d/linked")),
    "remove a file": lambda: os.unlink("d/one"),
    "flock": lock,
    "change it through shared memory": change_mapped,
    "set its time to now": lambda: os.utime("file"),
    "set a user xattr": lambda: os.setxattr("file", "user.tool", b"x"),
    "remove a tree, rename another into its place": replace_tree,
    "set another time": lambda: os.utime("file", (5, 5)),
    "change modes": each(lambda: os.chmod("file", 0o755), lambda: os.chmod("d", 0o700)),
    "rename a directory": lambda: os.rename("d", "moved"),
    "rename a new directory over one with files": over_full,
    "remove or rename the profile's own directory": lambda: os.rename(f"../{SUBDIR}", "../moved"),
    "see a later write through a file opened before it": look_through_open_file,
    "see a later write in memory mapped before it": look_mapped,
    "see it in memory mapped later, through a file opened before it": map_open_file,
    "read with `O_DIRECT`": partial(directly, "file", os.O_RDONLY),
    "write with `O_DIRECT`": each(
        partial(directly, "file", os.O_RDWR), partial(directly, "new", os.O_RDWR | os.O_CREAT)
    ),
}


def table() -> dict[str, list[str]]:
    """Return the page's table of what a job can't do: operation → (id-mapped, root's)."""
    rows = re.findall(r"^\| ([a-z][^|]*?) \| (yes|[A-Z]+) \| (yes|[A-Z]+) \|", PAGE.read_text(), re.MULTILINE)
    return {name: [first, second] for name, first, second in rows}


@WAYS
def test_what_a_job_can_do_is_what_the_page_says(node: Node, way: bool) -> None:
    """Each operation in an overlay of its own, against the table of docs/reference/profiles.md. The bundle stays."""
    copy = node.bundle(SEEDED)
    found = {}
    for number, (name, act) in enumerate(OPERATIONS.items()):
        run = node.run(f"{number}.aaaaaaaa")
        assert run.show(copy) == way
        found[name] = run.as_job(partial(tried, act))
        assert run.take_down() == []
    assert {*table()} <= {*OPERATIONS}
    assert found == {name: table().get(name, ["yes", "yes"])[0 if way else 1] for name in OPERATIONS}
    shared = Path(node.layers, copy.offer.sha256)
    assert content(shared) == SEEDED
    assert {path.stat().st_mtime_ns for path in shared.rglob("*") if path.is_file()} == {MTIME_NS // 10**9 * 10**9}


@WAYS
def test_whose_the_files_look(node: Node, way: bool) -> None:
    """Id-mapped they are the job's own; else root's, mode 0666, below a directory that only the job can enter."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED), hidden=["d/two"])
    uids = run.as_job(lambda: {path: os.stat(path).st_uid for path in (".", "d", "file", "e")})
    owner = JOB.uid if way else 0
    assert uids == {".": JOB.uid, "d": JOB.uid, "file": owner, "e": owner}
    assert stat.S_IMODE(run.cache.stat().st_mode) == 0o700
    assert {stat.S_IMODE((run.cache / path).stat().st_mode) for path in ("e", "e/f")} == {0o777}
    run.as_job(each(lambda: write("file", b"x"), lambda: write("e/f/new", b"y")))
    assert run.as_job(lambda: os.listdir("d")) == ["one"]


@WAYS
@pytest.mark.parametrize("bundles", [1, overlay.MOST_BUNDLES])
@pytest.mark.parametrize("upper", ["disk", "tmpfs"])
def test_files_look_as_those_of_one_file_system(node: Node, way: bool, upper: str, bundles: int) -> None:
    """A listing and stat tell one inode number; no file is a mount point. A link keeps it in a plain overlay.

    With several bundles the kernel can't tell any more which one a file came from: a squashfs has no UUID.
    """
    run = node.run("1.aaaaaaaa")
    if upper == "tmpfs":
        seed = run.path / ".seed"
        seed.mkdir(mode=0o700)
        linux.mount("none", str(seed), "tmpfs", linux.RESTRICTED)
    run.show(*(node.bundle({**SEEDED, f"d/{n}": b"x"}) for n in range(bundles)))

    def look() -> list[str]:
        write("new", b"x")
        os.mkdir("made")
        before = os.stat("file")
        with open("file", "rb") as opened:
            os.link("file", "linked")
            assert os.path.samestat(os.fstat(opened.fileno()), before)
        assert os.path.samestat(os.stat("linked"), before) == (bundles == 1)
        assert os.stat("linked").st_dev == before.st_dev
        seen = []
        for folder in (".", "d", "e/f"):
            for entry in os.scandir(folder):
                assert (entry.inode(), os.path.ismount(entry)) == (os.stat(entry).st_ino, False), entry.path
                seen.append(entry.name)
        return seen

    files = ["d", "e", "file", "linked", "made", "new", "g", "one", "two"]
    assert sorted(run.as_job(look)) == sorted([*files, *(str(n) for n in range(bundles))])
    assert run.take_down() == []


@WAYS
def test_two_jobs_see_nothing_of_each_other(node: Node, way: bool) -> None:
    """One bundle is mounted once for two jobs; neither sees the other's changes."""
    copy = node.bundle(SEEDED)
    one, two = node.run("1.aaaaaaaa"), node.run("2.bbbbbbbb")
    for run in (one, two):
        run.show(copy)
    one.as_job(each(lambda: os.unlink("file"), lambda: write("d/one", b"changed"), lambda: write("mine", b"x")))
    assert content(two.cache) == SEEDED
    assert content(one.cache) == {"d/one": b"changed", "d/two": b"2", "e/f/g": b"deep", "mine": b"x"}
    assert node.mounts().count(f"layers/{copy.offer.sha256}") == 1


@pytest.mark.threat(5)
def test_no_mount_carries_setuid_or_devices(node: Node) -> None:
    """Bundles contain neither, and every mount would ignore them."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    flags = {os.path.relpath(line[4], node.base): set(line[5].split(",")) for line in lines}
    ours = {point: flags[point] for point in node.mounts()}
    assert len(ours) == 3
    assert all({"nosuid", "nodev"} <= found for found in ours.values())
    assert not any("noexec" in found for found in ours.values())
    program = run.cache / "program"
    run.as_job(each(lambda: shutil.copy("/usr/bin/id", "program"), lambda: os.chmod("program", 0o4755)))
    os.chown(program, 0, 0)
    program.chmod(0o4755)
    assert run.as_job(lambda: subprocess.check_output([str(program), "-u"], text=True)) == "64201\n"


@pytest.mark.threat(8)
def test_two_bundles_with_one_entry_show_one_of_them_whole(node: Node) -> None:
    """The entry comes from the upper bundle; files of it that only the lower has are hidden."""
    first = node.bundle({"k/a": b"A", "k/b": b"A", "own/1": b"A"})
    second = node.bundle({"k/a": b"B", "k/c": b"B", "own/2": b"B", "bad/x": b"B"})
    visible = overlay.visible(
        [
            Layer({"k": ["k/a", "k/b"], "own/1": ["own/1"]}, ["k", "own/1"]),
            Layer({"k": ["k/a", "k/c"], "own/2": ["own/2"], "bad": ["bad/x"]}, ["own/2"]),
        ]
    )
    run = node.run("1.aaaaaaaa")
    run.show(first, second, hidden=visible.hidden)
    assert content(run.cache) == {"k/a": b"A", "k/b": b"A", "own/1": b"A", "own/2": b"B"}
    assert sorted(visible.hidden) == ["bad/x", "k/c"]


@pytest.mark.threat(8)
@settings(max_examples=8)
@given(st.lists(st.sets(PATHS, min_size=1), min_size=2, max_size=4), st.sampled_from(RULES))
def test_the_kernel_shows_what_the_function_says(bundles: list[set[str]], entry_of: Callable[[str], str]) -> None:
    """Some of the same cases, mounted."""
    with a_node() as node:
        copies = [node.bundle(dict.fromkeys(paths, b"%d" % n)) for n, paths in enumerate(bundles)]
        found, taken = [], set[str]()
        for paths in bundles:
            files = grouped(paths, entry_of)
            found.append(Layer(files, sorted(files.keys() - taken)))
            taken.update(files)
        visible = overlay.visible(found)
        run = node.run("1.aaaaaaaa")
        run.show(*copies, hidden=visible.hidden)
        expected = merged(list(enumerate(bundles)), visible.hidden)
        assert content(run.cache) == {path: b"%d" % n for path, n in expected.items()}


def test_sixteen_layers_with_long_names(node: Node) -> None:
    """Fifteen bundles and whiteouts fit into one mount call, whatever the length of the workspace's path."""
    run = node.run("1.aaaaaaaa")
    long = run.path.parent / ("x" * 200)
    os.rename(run.path, long)
    run = Run(node, long)
    copies = [node.bundle({f"e{number}": b"x", "hidden": b"%d" % number}) for number in range(15)]
    run.show(*copies, hidden=["hidden"])
    assert sorted(content(run.cache)) == sorted(f"e{number}" for number in range(15))


def test_eight_prologs_mount_a_bundle_once(node: Node) -> None:
    """One of eight simultaneous prologs mounts, all use it; again after an unmount, as by a reboot."""
    copy = node.bundle(SEEDED)
    for _ in range(2):
        children = []
        for _ in range(8):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    (fd,) = node_cache.mounted(node.layers, [copy.path], after(20))
                    status = 0 if os.listdir(f"/proc/self/fd/{fd}") else 1
                finally:
                    os._exit(status)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 8
        assert node.mounts() == [f"layers/{copy.offer.sha256}"]
        node_cache.unmount(node.layers, copy.offer.sha256, after(5))
        assert node.mounts() == []


def loop_devices(copy: Copy) -> list[str]:
    """Return the loop devices that show a bundle."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if copy.offer.sha256 in backing.read_text():
                found.append(backing.parts[3])
        except OSError:  # freed just now
            continue
    return found


def test_maintenance_keeps_what_a_job_has(node: Node) -> None:
    """Only the mount here goes; the copy counts as used. After the job it goes, and the loop device with it."""
    copy = node.bundle({"big": os.urandom(300_000)})
    Path(copy.path.replace(".sqsh", ".origin.json")).write_text('["user-1-a", "whole-things", "ns", "b"]')
    before = Path(copy.path).stat().st_mtime
    run = node.run("1.aaaaaaaa")
    run.show(copy)
    assert node_cache.prune(copy.directory, node.layers, Keep(0), before + 7200) == 0
    assert os.listdir(node.layers) == []
    assert len(loop_devices(copy)) == 1
    os.utime(copy.path, (before - 7200, before - 7200))
    assert [use.at >= before for use in node_cache.uses(copy.directory)] == [True]
    Path("/proc/sys/vm/drop_caches").write_text("3")
    assert run.as_job(lambda: len(Path("big").read_bytes())) == 300_000
    run.take_down()
    assert loop_devices(copy) == []
    assert [use.at >= before for use in node_cache.uses(copy.directory)] == [False]
    assert node_cache.prune(copy.directory, node.layers, Keep(0), before + 7200) > 300_000
    assert not Path(copy.path).exists()
    assert node.mounts() == []


@pytest.mark.threat(15)
def test_what_no_job_has_needed_for_an_hour_is_unmounted(node: Node) -> None:
    """A mount takes kernel memory: the copy stays, and the next job mounts it again."""
    copy = node.bundle({"file": b"seeded"})
    before = Path(copy.path).stat().st_mtime
    run = node.run("1.aaaaaaaa")
    run.show(copy)
    assert node_cache.prune(copy.directory, node.layers, Keep(1 << 40), before + 1800) == 0
    assert node_cache.mount_points(node.layers) == [copy.offer.sha256]
    assert node_cache.prune(copy.directory, node.layers, Keep(1 << 40), before + 7200) == 0
    assert (node_cache.mount_points(node.layers), Path(copy.path).exists()) == ([], True)
    assert run.as_job(lambda: Path("file").read_text()) == "seeded"
    run.take_down()
    assert loop_devices(copy) == []
    later = node.run("2.aaaaaaaa")
    later.show(copy)
    assert later.as_job(lambda: Path("file").read_text()) == "seeded"


def mount(node: Node, copy: Copy) -> None:
    """Mount a copy as a prolog does that then shows it to a job."""
    os.close(*node_cache.mounted(node.layers, [copy.path], after(5)))


@pytest.mark.threat(27)
def test_mounts_are_bounded_for_each_user_and_for_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the bundles are, and however many jobs there were: who has most loses first, the oldest."""
    monkeypatch.setattr(node_cache, "MOST_OF_SCOPE", 3, raising=False)
    monkeypatch.setattr(node_cache, "MOST_MOUNTED", 5, raising=False)
    made = {
        (scope, number): node.bundle({f"{scope}{number}": b"x"}, scope)
        for scope, count in (("user-1-a", 5), ("user-2-b", 2), ("user-3-c", 3))
        for number in range(count)
    }
    names = {copy.offer.sha256: place for place, copy in made.items()}
    for age, (place, copy) in enumerate(made.items()):
        os.utime(copy.path, (1000 + age, 1000 + age))
        mount(node, copy)
        mounted = [names[sha256] for sha256 in node_cache.mount_points(node.layers)]
        assert len(mounted) <= 5
        assert sum(scope == place[0] for scope, _ in mounted) <= 3
    assert sorted(mounted) == [
        *[("user-1-a", 4)],
        *[("user-2-b", 0), ("user-2-b", 1)],
        *[("user-3-c", 1), ("user-3-c", 2)],
    ]
    for place, copy in made.items():
        assert bool(loop_devices(copy)) is (place in mounted)


@pytest.mark.threat(27)
def test_a_mount_that_is_about_to_be_shown_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another prolog has it open; and what a job sees already needs no mount there."""
    monkeypatch.setattr(node_cache, "MOST_OF_SCOPE", 1, raising=False)
    monkeypatch.setattr(node_cache, "MOST_MOUNTED", 1, raising=False)
    shown, opened, last = (node.bundle({name: b"x"}, "user-1-a") for name in "abc")
    run = node.run("1.aaaaaaaa")
    run.show(shown)
    roots = node_cache.mounted(node.layers, [opened.path], after(5))
    mount(node, last)
    assert node_cache.mount_points(node.layers) == sorted([opened.offer.sha256, last.offer.sha256])
    with opened_dir(".", roots[0]) as root:
        assert os.listdir(root) == ["b"]
    os.close(*roots)
    assert run.as_job(lambda: Path("a").read_text()) == "x"
    run.take_down()
    assert loop_devices(shown) == []


def test_a_prolog_that_needs_a_bundle_is_not_too_late(node: Node) -> None:
    """It marks the copy as used before it mounts; maintenance checks that mark last."""
    copy = node.bundle({"file": b"seeded"})
    now = Path(copy.path).stat().st_mtime + 7200
    os.close(*node_cache.mounted(node.layers, [copy.path], after(5)))
    with opened_dir(node.layers) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pruning = threading.Thread(target=node_cache.prune, args=(copy.directory, node.layers, Keep(1 << 40), now))
        pruning.start()
        while not waits_for(pruning, "_exclusive"):
            assert pruning.is_alive()
        os.utime(copy.path, (now, now))
    pruning.join()
    assert node.mounts() == [f"layers/{copy.offer.sha256}"]


def waits_for(thread: threading.Thread, function: str) -> bool:
    """Return whether a thread is in a function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


def test_a_process_that_outlives_its_job_is_cut_off(node: Node) -> None:
    """It holds a file and a directory open: the mounts go all the same, and its writes reach nothing."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    reader = subprocess.Popen(["/bin/sleep", "60"], cwd=run.cache, user=JOB.uid, group=JOB.gid, extra_groups=[])
    try:
        assert run.take_down() == [SUBDIR]
        assert node.mounts() == [f"layers/{node_cache.mount_points(node.layers)[0]}"]
        assert not run.path.exists()
        done = subprocess.run(
            ["/bin/sh", "-c", f"cd /proc/{reader.pid}/cwd && echo x >new"], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
    finally:
        reader.kill()
        reader.wait()


@pytest.mark.threat(13)
def test_another_namespace_that_copied_the_mounts(node: Node) -> None:
    """As under job_container: removing the mount points releases the copies in other namespaces."""
    copy = node.bundle(SEEDED)
    run = node.run("1.aaaaaaaa")
    run.show(copy)
    argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "echo ready; exec sleep 60"]
    other = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        assert str(run.cache) in Path(f"/proc/{other.pid}/mountinfo").read_text()
        run.take_down()
        node_cache.unmount(node.layers, copy.offer.sha256, after(5))
        assert str(node.base) not in Path(f"/proc/{other.pid}/mountinfo").read_text()
        assert loop_devices(copy) == []
    finally:
        other.kill()
        other.communicate()


def test_a_container_binds_the_cache_recursively_or_not_at_all(node: Node) -> None:
    """A user namespace may not uncover files below a mount, hence rbind in the enroot hook."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    target = node.base / "target"
    target.mkdir()

    def shown(how: str) -> str:
        script = f"mount --{how} {run.cache.parent} {target} && cat {target}/{SUBDIR}/file"
        argv = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    assert run.as_job(lambda: [shown("rbind"), shown("bind")]) == ["seeded", ""]


def test_where_the_kernel_has_no_overlay_nothing_is_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is unchanged, and the caller extracts."""
    without_overlays(monkeypatch)
    run = node.run("1.aaaaaaaa")
    with pytest.raises(OverlayUnavailable, match="No such device"):
        run.show(node.bundle(SEEDED))
    assert node.mounts() == [f"layers/{node_cache.mount_points(node.layers)[0]}"]
    assert os.listdir(run.path / ".seed") == []
    assert content(run.cache) == {}


def harvested(run: Run, stage: Path, seeded: set[str], seconds: float = 5.0, most: int = 1000) -> dict[str, set[str]]:
    """Harvest an overlay. Return the contents of the stage, by entry."""
    stage.mkdir(mode=0o700)
    limits = HarvestLimits(1 << 30, most, after(20))
    with (
        opened_dir(str(run.path)) as base,
        opened_dir(str(stage)) as fd,
        overlay.opened_overlay(base, SUBDIR, after(seconds)) as frozen,
    ):
        assert frozen is not None
        rule: dict[str, Any] = {"entry_of": lambda path: path.partition(".")[0], "skip": seeded}
        found = collect_overlay(frozen, owner=JOB.uid, **rule, stage=Stage(fd), limits=limits)
    assert (found.rejected, found.truncated) == ({}, "")
    assert {path for files in found.entries.values() for path in files} == set(content(stage))
    return {entry: set(files) for entry, files in found.entries.items()}


@pytest.mark.threat(13)
@WAYS
def test_only_what_is_new_is_harvested(node: Node, way: bool) -> None:
    """Seeded entries that the job changed, replaced, removed or renamed are not new; its own are, whole."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle({"a.1": b"1", "b.1": b"1", "b.2": b"2", "c.1": b"1", "k/d.1": b"1"}))

    def act() -> None:
        write("a.1", b"changed")
        os.unlink("b.1")
        write("c.tmp", b"replaced")
        os.rename("c.tmp", "c.1")
        shutil.rmtree("k")
        os.mkdir("k")
        write("k/n.1", b"new")
        write("n.1", b"new")
        write("n.2", b"new")

    run.as_job(act)
    assert harvested(run, node.base / "stage", {"a", "b", "c", "k/d"}) == {"n": {"n.1", "n.2"}, "k/n": {"k/n.1"}}


def test_a_harvest_looks_at_new_names_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200 new entries beside 5,000 seeded ones the scan sees 200 names."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle({f"s{number}.x": b"x" for number in range(5000)}))
    run.as_job(each(*(partial(write, f"n{number}.x", b"y") for number in range(200))))
    monkeypatch.setattr(collect, "NAMES_PER_ENTRY", 1)
    found = harvested(run, node.base / "stage", {f"s{number}" for number in range(5000)}, most=200)
    assert len(found) == 200


def test_no_harvest_while_somebody_writes(node: Node) -> None:
    """A bounded wait, then nothing. Once the writer is gone, all is harvested, and nobody can write any more."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    run.as_job(lambda: write("new.1", b"x"))
    with open(run.cache / "new.1", "ab"), pytest.raises(CacheBusy):
        harvested(run, node.base / "busy", set(), seconds=0.2)
    assert harvested(run, node.base / "stage", {*SEEDED, "d", "e"}) == {"new": {"new.1"}}
    assert run.as_job(lambda: tried(lambda: write("late", b"x"))) == "EROFS"
