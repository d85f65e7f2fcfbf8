"""What a job can do in a cache seeded by an overlay, and that none of it reaches the shared copy."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.overlay_place import JOB, MTIME_NS, SUBDIR, Copy, Node, Run, a_node, content, tried
from tests.lib.whiteouts import PATHS, RULES, grouped, merged
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import names_in, opened_dir
from warmstart.seed import copies, eviction, node_cache, overlay_end
from warmstart.seed.layers import visible
from warmstart.seed.overlay_end import CacheInUse

pytestmark = pytest.mark.usefixtures("capable_host")

SEEDED = {"file": b"seeded", "d/one": b"1", "d/two": b"2", "e/f/g": b"deep"}
MS_SHARED = 1 << 20
WAYS = pytest.mark.parametrize("mapped", [True, False], ids=["id-mapped", "root's"])


@pytest.fixture
def node() -> Iterator[Node]:
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
    with open(path, mode) as file:
        file.write(data)


def each(*acts: Callable[[], object]) -> Callable[[], None]:
    def act() -> None:
        for one in acts:
            one()

    return act


def change_mapped() -> None:
    with open("file", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:3] = b"abc"
    assert Path("file").read_bytes()[:6] == b"abcded"


def change_all() -> None:
    """Do to seeded files and directories what tools do, and worse."""
    write("file", b"more", "ab")
    change_mapped()
    os.truncate("d/one", 0)
    write("beside", b"new")
    os.replace("beside", "d/two")
    os.utime("d/two", (5, 5))
    shutil.rmtree("e")
    os.makedirs("e/f")
    write("e/f/new", b"y")


@WAYS
def test_what_a_job_does_to_its_cache_reaches_neither_another_job_nor_the_shared_copy(node: Node, way: bool) -> None:
    copy = node.bundle(SEEDED)
    run, other = node.run("1.aaaaaaaa"), node.run("2.bbbbbbbb")
    assert run.show(copy) == other.show(copy) == way
    assert node.mounts().count(f"layers/{copy.row.sha256}") == 1
    run.as_job(change_all)
    assert content(other.cache) == SEEDED
    assert content(run.cache) == {"file": b"abcdedmore", "d/one": b"", "d/two": b"new", "e/f/new": b"y"}
    assert run.take_down() == []
    shared = Path(node.layers, copy.row.sha256)
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
    first = node.bundle({"k/a": b"A", "k/b": b"A", "own/1": b"A"})
    second = node.bundle({"k/a": b"B", "k/c": b"B", "own/2": b"B", "bad/x": b"B"})
    held = [{"k": ["k/a", "k/b"], "own/1": ["own/1"]}, {"k": ["k/a", "k/c"], "own/2": ["own/2"], "bad": ["bad/x"]}]
    seen = visible(held, [["k", "own/1"], ["own/2"]])
    run = node.run("1.aaaaaaaa")
    run.show(first, second, hidden=seen.hidden)
    assert content(run.cache) == {"k/a": b"A", "k/b": b"A", "own/1": b"A", "own/2": b"B"}
    assert sorted(seen.hidden) == ["bad/x", "k/c"]


@pytest.fixture
def shared_node(node: Node) -> Iterator[Node]:
    """As below systemd, where mounts are seen in other namespaces: a clone is then a peer of what it was made of."""
    linux.bind(str(node.base), str(node.base))
    linux.mount("none", str(node.base), "none", MS_SHARED)
    yield node
    linux.detach_path(str(node.base))


def test_overlays_of_many_bundles_that_are_made_at_once(shared_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [shared_node.bundle({f"{n}": b"%d" % n}) for n in range(40)]
    real = linux.mount
    runs = [(shared_node.run(f"{number}.aaaaaaaa"), copies[:number]) for number in (1, 2, 15, 40)]
    later = iter(runs)

    def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        if kind == "overlay":  # here the clones lie on each other
            for run, shown in later:
                run.show(*shown)
        real(source, target, kind, flags, options)

    monkeypatch.setattr(linux, "mount", mount)
    shared_node.run("0.aaaaaaaa").show(*copies)
    for run, shown in runs:
        assert len(content(run.cache)) == len(shown)
        run.as_job(lambda: write("new", b"x"))
        assert run.take_down() == []
    assert len([point for point in shared_node.mounts() if point.startswith("layers/")]) == 40


@pytest.mark.threat(8)
@settings(max_examples=8)
@given(st.lists(st.sets(PATHS, min_size=1), min_size=2, max_size=4), st.sampled_from(RULES))
def test_the_kernel_shows_what_the_function_says(bundles: list[set[str]], entry_of: Callable[[str], str]) -> None:
    with a_node() as node:
        copies = [node.bundle(dict.fromkeys(paths, b"%d" % n)) for n, paths in enumerate(bundles)]
        held = [grouped(paths, entry_of) for paths in bundles]
        names = [sorted(held[n].keys() - {e for above in held[:n] for e in above}) for n in range(len(held))]
        seen = visible(held, names)
        run = node.run("1.aaaaaaaa")
        run.show(*copies, hidden=seen.hidden)
        expected = merged(list(enumerate(bundles)), seen.hidden)
        assert content(run.cache) == {path: b"%d" % n for path, n in expected.items()}


def test_eight_prologs_mount_a_bundle_once(node: Node) -> None:
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
        assert node.mounts() == [f"layers/{copy.row.sha256}"]
        unmount(node, copy)
        assert node.mounts() == []


def test_a_prolog_waits_for_another_that_mounts_until_its_deadline(node: Node) -> None:
    copy = node.bundle(SEEDED)
    os.mkdir(node.layers)
    with opened_dir(node.layers) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="still mounting"):
            node_cache.mounted(node.layers, [copy.path], after(0.02))


def unmount(node: Node, copy: Copy) -> None:
    with copies.exclusive(node.layers, after(5)) as fd:
        eviction.unmount(fd, copy.row.sha256)


def loop_devices(copy: Copy) -> list[str]:
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if copy.row.sha256 in backing.read_text():
                found.append(backing.parts[3])
        except OSError:  # freed just now
            continue
    return found


def test_maintenance_keeps_what_a_job_has(node: Node) -> None:
    copy = node.bundle({"big": os.urandom(300_000)})
    Path(copy.path.replace(".sqsh", ".json")).write_text('["user-1-a", "whole-things", "ns"]')
    before = Path(copy.path).stat().st_mtime
    run = node.run("1.aaaaaaaa")
    run.show(copy)
    assert eviction.prune(copy.directory, node.layers, {}, before + 7200) == 0
    assert os.listdir(node.layers) == []
    assert len(loop_devices(copy)) == 1
    os.utime(copy.path, (before - 7200, before - 7200))
    assert [at >= before for _, _, at in eviction.uses(copy.directory, "/store")] == [True]
    Path("/proc/sys/vm/drop_caches").write_text("3")
    assert run.as_job(lambda: len(Path("big").read_bytes())) == 300_000
    run.take_down()
    assert loop_devices(copy) == []
    assert [at >= before for _, _, at in eviction.uses(copy.directory, "/store")] == [False]
    assert eviction.prune(copy.directory, node.layers, {}, before + 7200) > 300_000
    assert not Path(copy.path).exists()
    assert node.mounts() == []


@pytest.mark.threat(15)
def test_what_no_job_has_needed_for_an_hour_is_unmounted(node: Node) -> None:
    copy = node.bundle({"file": b"seeded"})
    before = Path(copy.path).stat().st_mtime
    run = node.run("1.aaaaaaaa")
    run.show(copy)
    assert eviction.prune(copy.directory, node.layers, {"": 1 << 40}, before + 1800) == 0
    assert names_in(node.layers) == [copy.row.sha256]
    assert eviction.prune(copy.directory, node.layers, {"": 1 << 40}, before + 7200) == 0
    assert (names_in(node.layers), Path(copy.path).exists()) == ([], True)
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
    monkeypatch.setattr(eviction, "MOST_OF_SCOPE", 3)
    monkeypatch.setattr(eviction, "MOST_MOUNTED", 5)
    made = {
        (scope, number): node.bundle({f"{scope}{number}": b"x"}, scope)
        for scope, count in (("user-1-a", 5), ("user-2-b", 2), ("user-3-c", 3))
        for number in range(count)
    }
    names = {copy.row.sha256: place for place, copy in made.items()}
    for age, (place, copy) in enumerate(made.items()):
        os.utime(copy.path, (1000 + age, 1000 + age))
        mount(node, copy)
        mounted = [names[sha256] for sha256 in names_in(node.layers)]
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
    monkeypatch.setattr(eviction, "MOST_OF_SCOPE", 1)
    monkeypatch.setattr(eviction, "MOST_MOUNTED", 1)
    shown, opened, last = (node.bundle({name: b"x"}, "user-1-a") for name in "abc")
    run = node.run("1.aaaaaaaa")
    run.show(shown)
    roots = node_cache.mounted(node.layers, [opened.path], after(5))
    mount(node, last)
    assert names_in(node.layers) == sorted([opened.row.sha256, last.row.sha256])
    with opened_dir(".", roots[0]) as root:
        assert os.listdir(root) == ["b"]
    os.close(*roots)
    assert run.as_job(lambda: Path("a").read_text()) == "x"
    run.take_down()
    assert loop_devices(shown) == []


def test_a_process_that_outlives_its_job_is_cut_off(node: Node) -> None:
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    reader = subprocess.Popen(["/bin/sleep", "60"], cwd=run.cache, user=JOB.uid, group=JOB.gid, extra_groups=[])
    try:
        assert run.take_down() == [SUBDIR]
        assert node.mounts() == [f"layers/{names_in(node.layers)[0]}"]
        assert not run.path.exists()
        done = subprocess.run(
            ["/bin/sh", "-c", f"cd /proc/{reader.pid}/cwd && echo x >new"], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
    finally:
        reader.kill()
        reader.wait()


def test_a_run_whose_removal_waits_has_no_mount_left(node: Node) -> None:
    """Where the tree goes at once, its removal would detach what is forgotten."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    with opened_dir(str(run.path)) as fd:
        assert overlay_end.take_down(fd) == []
    assert node.mounts() == [f"layers/{names_in(node.layers)[0]}"]
    assert run.take_down() == []


@pytest.mark.threat(13)
def test_another_namespace_that_copied_the_mounts(node: Node) -> None:
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
        unmount(node, copy)
        assert str(node.base) not in Path(f"/proc/{other.pid}/mountinfo").read_text()
        assert loop_devices(copy) == []
    finally:
        other.kill()
        other.communicate()


def harvested(run: Run, stage: Path, seeded: set[str], seconds: float = 5.0) -> dict[str, set[str]]:
    """Harvest an overlay. Return the contents of the stage, by entry."""
    found = run.harvest(stage, lambda path: path.partition(".")[0], seeded, seconds=seconds)
    assert (found.found.rejected.counts, found.truncated) == ({}, "")
    assert {path for files in found.entries.values() for path in files} == set(content(stage))
    return {entry: set(files) for entry, files in found.entries.items()}


@pytest.mark.threat(13)
@WAYS
def test_only_what_is_new_is_harvested(node: Node, way: bool) -> None:
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


def test_no_harvest_while_somebody_writes(node: Node) -> None:
    """A bounded wait, then nothing. Once the writer is gone, all is harvested, and nobody can write any more."""
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle(SEEDED))
    run.as_job(lambda: write("new.1", b"x"))
    with open(run.cache / "new.1", "ab"), pytest.raises(CacheInUse):
        harvested(run, node.base / "busy", set(), seconds=0.2)
    assert harvested(run, node.base / "stage", {*SEEDED, "d", "e"}) == {"new": {"new.1"}}
    assert run.as_job(lambda: tried(lambda: write("late", b"x"))) == "EROFS"
