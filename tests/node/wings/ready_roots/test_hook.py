"""enroot's hook: which containers start from the job's tree, what they find in it, and that it ends no container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lib import processes
from tests.lib.meddling import meddling, stopped
from tests.lib.processes import wait_until
from tests.lib.wings.ready_roots.enroots import JOB, Place
from warmstart.host.files import opened_dir
from warmstart.run import mounted

WELL = "hook: 0"


@pytest.fixture
def place() -> Iterator[Place]:
    """Yield a node whose job has the tree of an image."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-roots-", dir="/var/tmp"))
    place = Place(base)
    place.give()
    try:
        yield place
    finally:
        with opened_dir(str(place.run)) as run:
            mounted.take_down(run)
        subprocess.run(["/usr/bin/umount", "-q", place.own], check=False)
        assert str(base) not in Path("/proc/self/mountinfo").read_text()
        shutil.rmtree(base)


def test_a_container_of_the_image_starts_from_the_tree(place: Place) -> None:
    change = (
        "cat which; stat -c %u:%g . which; rm -r old && mkdir old && ls -A old; mv etc gone; echo x >which; cat which"
    )
    started = place.start(change)
    assert started == (["tree", "0:0", "0:0", "x"], WELL)
    assert (place.base / "tree/which").read_text() == "tree\n"
    assert place.start("ls -A") == (["etc", "mnt", "old", "which"], WELL)
    assert place.said() == ["from-tree", "from-tree"]


def test_what_is_mounted_below_comes_along(place: Place) -> None:
    """Whatever its name; a mount on another one, too, and none that is hidden."""
    before = """
        odd=$'o\\\\040dd \\\\\\n\\tx'
        mkdir "$root/$odd" "$root/a" && mount -t tmpfs odd "$root/$odd" && echo odd >"$root/$odd/file"
        mount -t tmpfs a "$root/a" && mkdir "$root/a/b" && mount -t tmpfs b "$root/a/b" && echo b >"$root/a/b/file"
        mount -t tmpfs hidden "$root/mnt" && echo hidden >"$root/mnt/file"
        mount -t tmpfs shown "$root/mnt" && echo shown >"$root/mnt/file"
        touch "$root/file" && mount --bind "$root/a/b/file" "$root/file"
        mount -o remount,bind,ro "$root/file"
    """
    inside = """cat which a/b/file mnt/file file o*/file; echo x 2>/dev/null >file || echo read-only"""
    assert place.start(inside, before=before) == (["tree", "b", "shown", "b", "odd", "read-only"], WELL)


@pytest.mark.parametrize("way", ["a copy", "an argument", "replaced"])
def test_a_container_of_another_file_beside_the_jobs_image_stays_what_it_is(place: Place, way: str) -> None:
    own = place.base / "own.sqsh"
    shutil.copy(place.file, own)
    if way == "replaced":
        own.rename(place.file)
        own = place.file
    arguments = [str(place.file)] if way == "an argument" else []
    assert place.start("cat which", own, *arguments) == (["image"], WELL)
    assert place.said() == ["from-image"]


def test_another_name_of_the_image_is_the_image(place: Place) -> None:
    other = place.base / "other"
    other.hardlink_to(place.file)
    assert place.start("cat which", other).output == ["tree"]


def test_an_unpacked_container_is_counted(place: Place) -> None:
    assert place.start("cat which", "pyxis_7.0") == (["image"], WELL)
    assert place.said() == ["from-unpacked"]


def test_another_group_gets_what_enroot_made(place: Place) -> None:
    """`sg`: what is changed in such a root would belong to nobody."""
    assert place.start("cat which", gid=64299) == (["image"], WELL)


@pytest.mark.report
@pytest.mark.parametrize("way", ["a file", "a link"])
def test_an_image_that_lays_overlays_itself_starts_from_its_file(place: Place, way: str) -> None:
    """The kernel stacks two, and a container from the tree has both: the programs that may lay a third find one."""
    program = place.base / "tree/opt/conda/bin/apptainer"
    program.parent.mkdir(parents=True)
    if way == "a file":
        program.touch()
    else:
        program.symlink_to("/nowhere")
    assert place.start("cat which") == (["image"], WELL)
    assert place.said() == ["from-image"]


@pytest.mark.report
def test_an_overlay_in_a_container_works(place: Place) -> None:
    """As Podman and Apptainer make them: on what is not the container's root."""
    lay = "mount -t overlay -o lowerdir=$d/a,upperdir=$d/u,workdir=$d/w,userxattr inner mnt && echo x >mnt/x && ls mnt"
    inside = f"d=$BASE/runtime/inner; mkdir -p $d/a/old $d/u $d/w; {lay}"
    assert place.start(inside) == (["old", "x"], WELL)


@pytest.mark.report
@pytest.mark.threat(63)
def test_no_user_stops_anothers_containers(place: Place) -> None:
    """Who is shown the tree as the own may lease its files: another's container opens them at once."""
    other = Place(place.base / "other", (64206, 64207), tree=place.base / "tree")
    clone = other.give()
    try:
        for name in ("which", "old/sub/file"):
            with meddling(other.job, clone / name) as done:
                assert (done["lease"], done["flock"]) == ("yes", "yes")
                assert place.start(f"cat {name} >/dev/null; flock -xn {name} echo free") == (["free"], WELL)
        (mine,) = place.run.glob("mounted/*/tree")
        with meddling(JOB, mine / "which"):
            assert stopped(other.job, clone / "which", b"tree\n") == []
    finally:
        with opened_dir(str(other.run)) as run:
            mounted.take_down(run)


def test_where_the_disk_cannot_changes_lie_in_memory(place: Place) -> None:
    """A ramfs has no attributes of users, and nobody removes a directory of a lower layer there."""
    subprocess.run(["/usr/bin/mount", "-t", "ramfs", "ramfs", place.own], check=True)
    os.chown(place.own, *JOB)
    change = "rm -r old && mkdir old && ls -A old; cat which; grep -o 'upperdir=[^,]*' /proc/self/mounts | tail -1"
    started = place.start(change)
    assert started == (["tree", f"upperdir={place.base}/runtime/warmstart/written/upper"], WELL)


def test_whatever_is_missing_or_damaged_it_ends_no_container(place: Place) -> None:
    list_, environment = place.run / "shown", place.view / "environment"
    text = list_.read_text()
    for wrong in (text.replace("mounted/", "nowhere/"), text.replace("mounted/", "a,b:c/"), "one\n", "", "\0\t\t\n"):
        list_.write_text(wrong)
        assert place.start("cat which") == (["image"], WELL)
    list_.unlink()
    assert place.start("cat which") == (["image"], WELL)
    list_.write_text(text)
    (place.base / "bin/enroot-mount").rename(place.base / "gone")
    assert place.start("cat which") == (["image"], WELL)
    (place.base / "gone").rename(place.base / "bin/enroot-mount")
    assert place.start("cat which") == (["tree"], WELL)
    environment.write_text("")
    assert place.start("cat which") == (["image"], WELL)
    shutil.rmtree(place.view)
    assert place.start("cat which") == (["image"], WELL)


def test_a_full_disk_ends_no_container(place: Place) -> None:
    """Nor does one that cannot be written to: then nothing says from what the container started."""
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "nr_inodes=1,mode=0777", "full", place.own], check=True)
    os.chown(place.own, *JOB)
    assert place.start("cat which") == (["tree"], WELL)
    assert place.said() == []
    (place.run / "shown").write_text("")
    assert place.start("cat which") == (["image"], WELL)


def test_on_a_disk_without_room_for_a_byte_changes_lie_in_memory(place: Place) -> None:
    """There is room for names. The hooks of enroot's that come next write, and end a container that they cannot."""
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=1m,mode=0777", "full", place.own], check=True)
    os.chown(place.own, *JOB)
    (place.own / "full").write_bytes(bytes(1 << 20))
    assert place.start("echo x >etc/new && cat which etc/new") == (["tree", "x"], WELL)


def test_no_mount_of_its_leaves_what_enroot_made(place: Place) -> None:
    """The last one is that of the new root."""
    program = place.base / "bin/enroot-mount"
    real = program.read_text()
    count = place.base / "runtime-count"
    count.touch()
    count.chmod(0o666)
    for number in range(2):  # the overlay on disk, all that is below and the new root
        count.write_text("")
        refuse = f"echo >>{count}; case $(wc -l <{count}) in {number + 1}) exit 1 ;; esac\n"
        program.write_text(real.replace("while read", f"{refuse}while read"))
        which = place.start("cat which").output
        assert which == (["tree"] if number == 0 else ["image"])


def test_a_container_that_has_ended_leaves_nothing_for_the_next(place: Place) -> None:
    """What it wrote is removed beside the next one's start; that of a living one stays."""
    place.start("echo x >new")
    (left,) = place.own.glob("[0-9]*")
    living = place.own / f"{os.getpid()}.abcdef"
    living.mkdir()
    place.start("true")
    wait_until("the removal", lambda: not left.exists(), 20)
    assert living.exists()


def test_it_starts_few_programs(place: Place) -> None:
    """Each takes about a millisecond of a container's start; what ended containers left takes one more, beside it."""
    program, log = place.base / "hook", place.base / "runtime-log"
    program.rename(place.base / "real")
    log.touch()
    log.chmod(0o666)
    trace = ["strace", "-f", "-qq", "-s", "0", "-e", "signal=none", "-e", "trace=execve,clone,clone3,fork,vfork"]
    program.write_text(f"#!/bin/sh\nexec {' '.join(trace)} -o {log} {place.base}/real\n")
    program.chmod(0o755)
    for more in (0, 1):
        assert place.start("cat which").output == ["tree"]
        calls = log.read_text()
        started = re.findall(r'execve\("([^"]+)"', calls)
        names = Counter(path.rpartition("/")[2] for path in started[1:])
        mounts = names.pop("mount")  # of the stand-in for enroot-mount, which starts nothing
        assert names == {"stat": 1, "mkdir": 1, "chmod": 1, "mv": 1, "rm": 1 + more, "enroot-mount": 2}
        assert len(re.findall(r"^\d+ +(?:clone3?|v?fork)\(", calls, re.MULTILINE)) == names.total() + mounts


@pytest.mark.sweep
def test_two_hundred_containers_leave_nothing(place: Place) -> None:
    """No process, in state D or another, no mount, no loop device; each fourth is killed on its way."""

    def mounts() -> list[str]:
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(place.base) in line]

    def loops() -> list[str]:
        argv = ["/sbin/losetup", "--list", "--noheadings", "--output=NAME,BACK-FILE"]
        shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        return [line for line in shown.splitlines() if str(place.base) in line]

    before = mounts(), loops()

    def one(number: int) -> bool:
        if number % 4:
            return place.start("rm -r old; cat which").output == ["tree"]
        place.kill(number / 200)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(1, 201)))
    wait_until("their processes", lambda: not processes.of_uid(JOB[0]), 120)
    assert (mounts(), loops()) == before

    def removed() -> bool:
        place.start("true")  # its own goes with the next one
        return len([*place.own.glob("[1-9]*")]) <= 1

    wait_until("the removal", removed, 20)


def test_a_container_outlives_its_clone(place: Place) -> None:
    """Its job's epilog takes that down while it still runs."""
    go = place.base / "runtime-go"
    clone = place.run / "mounted"
    take_down = f"while [ ! -e {go} ]; do sleep 0.05; done; cat which old/sub/file; rm -r old; ls"
    process = os.fork()
    if not process:
        try:
            wait_until("the container", lambda: bool(place.said()), 20)
            with opened_dir(str(place.run)) as run:
                mounted.take_down(run)
            go.touch()
        finally:
            os._exit(0)
    started = place.start(take_down)
    os.waitpid(process, 0)
    assert started == (["tree", "oldetc", "mnt", "which"], WELL)
    assert not [*clone.glob("*/tree")]
