"""The enroot hook, called as enroot's runtime.sh calls it: its environment, two files to add to, a status."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.privileges import make_removable
from tests.lib.runs import a_context, changed
from warmstart import view
from warmstart.host.files import opened_dir
from warmstart.images.user import own_images
from warmstart.paths import NOTHING, Shown
from warmstart.run import shown as lists
from warmstart.steps import environment
from warmstart.steps.contract import Context
from warmstart.steps.environment import Options

HOOK = Path("packaging/enroot/40-warmstart.sh.in")
FLAGS = "none x-create=dir,rbind,rw,nosuid,nodev,rslave,nofail,silent"
CONSTANT = "/var/cache/warmstart"


class Container:
    """What enroot sets up before it runs hooks: the container's fstab and environment, empty or the image's."""

    def __init__(self, base: Path) -> None:
        self.hook = base / "40-warmstart.sh"
        self.hook.write_text(HOOK.read_text().replace("@RUN@", str(base)))
        self.hook.chmod(0o755)
        self.mounts, self.environ = base / "fstab", base / "environment"
        self.mounts.write_text("")
        self.environ.write_text("")

    def start(self, job: str = "7", **step: str) -> subprocess.CompletedProcess[bytes]:
        """Run the hook in a step of the job."""
        files = {"ENROOT_MOUNTS": str(self.mounts), "ENROOT_ENVIRON": str(self.environ), "ENROOT_ROOTFS": "/rootfs"}
        slurm = {"SLURMD_NODENAME": "node", "SLURM_JOB_ID": job}
        return subprocess.run([self.hook], env={**files, **slurm, **step}, capture_output=True, check=False, cwd="/")

    def variables(self) -> list[str]:
        lines = self.environ.read_text().splitlines()
        return [line for line in lines if not line.startswith("WARMSTART_OWN=")]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    context = a_context(tmp_path)
    for name in ("cache", "tmp"):
        os.makedirs(f"{context.run.directory}/{name}")
    show(context, Shown("rw", "root", "cache", NOTHING, CONSTANT, NOTHING))
    return context


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def rendered(
    context: Context,
    profiles: dict[str, str],
    image: str = "sha256:1",
    defaults: Mapping[str, str] = MappingProxyType({}),
    **found: str,
) -> None:
    """Render the job's view; its caches belong to an `image`, or with "" to the host."""
    record = changed(context.run, environment=found, image=image)
    environment.run(context._replace(run=record), Options(profiles, {}, (), defaults=dict(defaults)))


@pytest.mark.parametrize("where", ["constant", "own"])
def test_the_cache_is_at_the_constant_path(context: Context, container: Container, where: str) -> None:
    run = context.run.directory
    cache = CONSTANT if where == "constant" else f"{run}/cache"
    rendered(context, {"NUMBA_CACHE_DIR": f"{cache}/numba"}, WARMSTART_CACHE=cache, TMPDIR=f"{run}/tmp")
    done = container.start(NUMBA_CACHE_DIR=f"{run}/cache/numba", WARMSTART_CACHE="forged")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert container.mounts.read_text().splitlines() == [
        f"tmpfs {context.run.workspace} tmpfs x-create=dir,size=64k,mode=755,nosuid,nodev,nofail,silent",
        f"{run}/tmp {run}/tmp {FLAGS}",
        f"{run}/cache {CONSTANT} {FLAGS}",
    ]
    assert container.variables() == [
        f"NUMBA_CACHE_DIR={CONSTANT}/numba",
        f"TMPDIR={run}/tmp",
        f"WARMSTART_CACHE={CONSTANT}",
    ]


DEFAULTS = {
    "DEEP": "{XDG_CACHE_HOME:~/.cache}/deep",
    "EMPTY": "",
    "FLAG": "1",
    "OWN": "~/own",
    "TEMPORARY": "{TMPDIR:/tmp}/of_{user}/x",
    "TRITON_CACHE_DIR": "{TRITON_HOME:~}/.triton/cache",
    "WARMSTART_FILES": "{TMPDIR:/tmp}",
}


@pytest.mark.parametrize("why", ["the host's", "another image's", "not listed"])
def test_a_container_that_the_caches_are_not_for_has_the_tools_own_places(
    context: Context, container: Container, why: str
) -> None:
    """As the tool finds them without us; the plugin and the task prolog unset what it would not have."""
    run, away = context.run.directory, f"{context.run.workspace}/n9/6.00000000/cache"
    profiles = {name: f"{CONSTANT}/{name.lower()}" for name in DEFAULTS} | {"FLAG": "0"}
    image = "" if why == "the host's" else "sha256:1"
    if why == "not listed":  # the workspace's disk was full
        os.truncate(f"{run}/shown", 0)
    found = {"WARMSTART_CACHE": CONSTANT, "TMPDIR": f"{run}/tmp", "LEADS": f"{run}/cache/x", "PLAIN": "1"}
    rendered(context, profiles, image, DEFAULTS, **found)
    if why == "another image's":
        own_images.note_other(f"{run}/cache", "3", None)
    left = {**profiles, **found, "DEEP": away, "OWN": "/mine", "TRITON_HOME": "/scratch"}
    done = container.start(SLURM_STEP_ID="3", HOME="/home/a", LOGNAME="a", **left)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert f" {CONSTANT} " not in container.mounts.read_text()
    assert container.variables() == [
        "DEEP=/home/a/.cache/deep",
        "EMPTY=",
        "FLAG=1",
        "LEADS=",
        f"TEMPORARY={run}/tmp/of_a/x",
        f"TMPDIR={run}/tmp",
        "TRITON_CACHE_DIR=/scratch/.triton/cache",
        "WARMSTART_CACHE=",
        f"WARMSTART_FILES={run}/tmp",
        "WARMSTART_UNSET=DEEP EMPTY FLAG LEADS TEMPORARY TRITON_CACHE_DIR",
    ]
    assert os.listdir(f"{run}/tmp") == []  # which scripts empty
    container.start(SLURM_STEP_ID="4")  # the same container again
    assert f" {CONSTANT} " not in container.mounts.read_text()
    container.start(SLURM_STEP_ID="4", ENROOT_ROOTFS="/pyxis_another")
    assert (f" {CONSTANT} " in container.mounts.read_text()) is (why == "another image's")


def test_a_container_in_which_nothing_is_left_is_as_without_us(context: Context, container: Container) -> None:
    profiles = {"A": f"{CONSTANT}/a", "B": f"{CONSTANT}/b", "C": f"{CONSTANT}/c", "D": "0"}
    rendered(context, profiles, "", {"A": "~/a", "B": "~/b", "D": "1"})
    container.environ.write_text("B=image\nD=0\n")
    container.start(B=f"{CONSTANT}/b", C="/mine", D="0")
    assert container.variables() == ["B=image", "D=0"]


def test_what_pyxis_brings_of_the_steps_is_not_the_images(context: Context, container: Container) -> None:
    rendered(context, {"A": f"{CONSTANT}/a"}, "", {"A": "~/a"})
    container.environ.write_text(f"A={CONSTANT}/a\n")
    container.start(A=f"{CONSTANT}/a", HOME="/h")
    assert container.variables() == [f"A={CONSTANT}/a", "A=/h/a", "WARMSTART_UNSET=A"]


@pytest.mark.parametrize(("given", "home"), [({}, "/home/a"), ({"ENROOT_REMAP_ROOT": "y"}, "/root")])
def test_the_home_is_the_containers(context: Context, container: Container, given: dict[str, str], home: str) -> None:
    """The image's or a hook's, if it has one; with pyxis the job's own; of a user who is root in there, root's."""
    rendered(context, {"A": f"{CONSTANT}/a"}, "", {"A": "~/a"})
    container.start(A=f"{CONSTANT}/a", HOME="/home/a", **given)
    assert container.variables()[0] == f"A={home}/a"
    container.environ.write_text("HOME=/image\n")
    container.start(A=f"{CONSTANT}/a", HOME="/home/a", **given)
    assert container.variables()[1] == "A=/image/a"


def test_what_a_container_got_in_their_place_is_not_the_users(context: Context, container: Container) -> None:
    """A step that was started from within it may have the caches."""
    rendered(context, {"A": f"{CONSTANT}/a", "B": f"{CONSTANT}/b"})
    container.start(WARMSTART_UNSET="A", A="/home/a/.a", B="/home/a/.b")
    assert container.variables() == [f"A={CONSTANT}/a", "WARMSTART_UNSET="]


READ_ONLY = "rbind,ro,nosuid,nodev,rslave,nofail,silent"


def show(context: Context, *shown: Shown) -> None:
    """Write what steps of the prolog add to the run's list."""
    with opened_dir(context.run.directory) as fd:
        for item in shown:
            lists.show(fd, item, context.run.uid)


def test_a_file_is_at_its_own_path(context: Context, container: Container) -> None:
    source = f"{context.run.directory}/mounted/model-0/tree/0"
    os.makedirs(os.path.dirname(source))
    Path(source).touch()
    rendered(context, {})
    show(context, Shown("ro", "job", "mounted/model-0/tree/0", "1 2 3", "/lustre/model.bin", NOTHING))
    container.start()
    assert container.mounts.read_text().splitlines()[-1] == f"{source} /lustre/model.bin none x-create=file,{READ_ONLY}"


@pytest.mark.parametrize("source", [NOTHING, "mounted/tree/tree"])
def test_a_directory_is_at_its_own_path(context: Context, container: Container, tmp_path: Path, source: str) -> None:
    """Outside of the container, too: a user's mount of a directory above it comes later."""
    run, programs, target = context.run.directory, tmp_path / "programs", "/lustre/envs/train"
    programs.mkdir()
    (programs / "enroot-mount").write_text(f"#!/bin/sh\n/bin/cat >{tmp_path}/outside\n")
    (programs / "enroot-mount").chmod(0o755)
    there = target if source == NOTHING else f"{run}/{source}"
    rendered(context, {}, WARMSTART_TREE=f"{there}/bin")
    show(context, Shown("ro", "job", source, "1 2 3", target, "another one"))
    container.start(PATH=str(programs))
    assert (tmp_path / "outside").read_text() == f"{there} {target} none {READ_ONLY}\n"
    assert container.mounts.read_text().splitlines()[-1] == f"{there} {target} none x-create=dir,{READ_ONLY}"
    assert container.variables() == [f"WARMSTART_TREE={target}/bin"]


@pytest.mark.parametrize("path", ["/lustre/my env", "relative", "/a/../etc"])
def test_a_path_of_another_shape_is_not_mounted(context: Context, container: Container, path: str) -> None:
    """A line of the fstab is never made of it, and no variable leads there."""
    rendered(context, {}, WARMSTART_TREE=f"{context.run.directory}/mounted/tree/tree")
    show(context, Shown("ro", "job", "mounted/tree/tree", NOTHING, path, NOTHING))
    assert container.start().returncode == 0
    assert "rbind,ro" not in container.mounts.read_text()
    assert container.variables() == ["WARMSTART_TREE="]


def test_what_the_user_or_the_image_set_stays(context: Context, container: Container) -> None:
    """But not a path into a cache: that was inherited from outside, or from another job."""
    rendered(context, {"A": "ours", "B": "ours", "C": "ours", "D": "ours"})
    container.environ.write_text(f"A=image\nC={CONSTANT}/old\nC={CONSTANT}/newer\n")
    container.start(B="user's")
    assert container.variables()[3:] == ["C=ours", "D=ours"]


@pytest.mark.parametrize("image", ["sha256:1", ""])
def test_what_stays_is_named_for_root(context: Context, container: Container, image: str) -> None:
    """By an empty file, where the container has the cache; not what is as we would set it."""
    rendered(context, {"A": "ours", "B": "ours", "C": "ours", "D": "ours", "E": "ours"}, image)
    container.environ.write_text(f"A=image\nC={CONSTANT}/old\n")
    container.start(B="user's", D="ours", F="user's")
    left = [".own-A", ".own-B"] if image else []
    assert sorted(os.listdir(f"{context.run.directory}/cache")) == left


def test_what_the_policy_overrides_is_neither_the_users_nor_the_images(context: Context, container: Container) -> None:
    options = Options({"A": "ours", "B": "ours", "C": "ours"}, {}, (), frozenset({"A", "B"}))
    environment.run(context, options)
    container.environ.write_text("A=image\n")
    container.start(B="user's", C="user's")
    assert container.variables() == ["A=image", "A=ours", "B=ours"]


INHERITED, THEIRS = {"MASTER_ADDR": "n9", "MASTER_PORT": "29999"}, "/w\t/c\tMASTER_ADDR=n9\tMASTER_PORT=29999"


def test_what_belongs_to_another_job_is_not_the_users(context: Context, container: Container) -> None:
    """It was inherited by a job that was submitted from inside; what the user set himself stays."""
    rendered(context, {"MASTER_ADDR": "n1", "MASTER_PORT": "20001"})
    own = f"WARMSTART_OWN=7\t{context.run.workspace}\t{CONSTANT}\tMASTER_ADDR=n1\tMASTER_PORT=20001"
    container.start(**INHERITED)
    assert container.variables() == []
    assert container.environ.read_text() == f"{own}\n"
    for job in (6, 7):
        container.environ.write_text("")
        container.start(**INHERITED, WARMSTART_OWN=f"{job}\t{THEIRS}")
        assert container.variables() == ["MASTER_ADDR=n1", "MASTER_PORT=20001"]
        container.environ.write_text("MASTER_ADDR=image\nMASTER_PORT=29999\n")  # pyxis brought the second one
        container.start(**INHERITED, WARMSTART_OWN=f"{job}\t{THEIRS}")
        assert container.variables()[2:] == ["MASTER_PORT=20001"]


def test_what_belongs_to_another_job_is_emptied_where_the_job_has_none(context: Context, container: Container) -> None:
    """What pyxis brings from the container replaces what the task has, and a variable can't be taken away.

    The task prolog and the plugin can; they are told.
    """
    rendered(context, {"A": "ours"})
    for known in (f"7\t{THEIRS}", "6\t/w\t/c\tMASTER_ADDR=n8\tMASTER_PORT=1", "6\tMASTER_ADDR=n9", ""):
        container.environ.write_text("")
        container.start(**INHERITED, WARMSTART_OWN=known)
        assert container.variables() == ["A=ours"]
    container.environ.write_text("")
    container.start(**INHERITED, WARMSTART_OWN=f"6\t{THEIRS}")
    emptied = ["MASTER_ADDR=", "MASTER_PORT=", "WARMSTART_UNSET=MASTER_ADDR MASTER_PORT"]
    assert container.variables() == ["A=ours", *emptied]
    container.environ.write_text("MASTER_ADDR=image\n")
    container.start(**INHERITED, WARMSTART_OWN=f"6\t{THEIRS}")
    assert container.variables() == ["MASTER_ADDR=image", "A=ours", "MASTER_PORT=", "WARMSTART_UNSET=MASTER_PORT"]


def test_enroots_own_hook_for_pytorch_is_not_kept_from_its_work(context: Context, container: Container) -> None:
    """50-slurm-pytorch.sh, where it is installed, sets MASTER_* of images with PyTorch unless there is a line of it."""
    rendered(context, {"A": "ours"})
    inherited = {**INHERITED, "WARMSTART_OWN": f"6\t{THEIRS}"}
    beside = container.hook.with_name("50-slurm-pytorch.sh")
    emptied = ["MASTER_ADDR=", "MASTER_PORT=", "WARMSTART_UNSET=MASTER_ADDR MASTER_PORT"]
    beside.touch(0o755)
    for image, expected in (("X=1", emptied), ("PYTORCH_VERSION=2", [])):
        container.environ.write_text(f"{image}\n")
        container.start(**inherited)
        assert container.variables() == [image, "A=ours", *expected]
    beside.unlink()
    container.environ.write_text("PYTORCH_VERSION=2\n")
    container.start(**inherited)
    assert container.variables() == ["PYTORCH_VERSION=2", "A=ours", *emptied]


def test_a_job_that_warmstart_does_not_know(context: Context, container: Container) -> None:
    """No job, no node, no view: nothing is written, nothing is said.

    Nor of what the batch host passes on: task prolog and plugin unset that, and tools stumble over empty values.
    """
    rendered(context, {"A": "ours"})
    led = {"WARMSTART_OWN": f"7\t{context.run.workspace}\t{CONSTANT}\tA", "A": f"{CONSTANT}/a"}
    assert container.start(job="8", **led).returncode == 0
    for done in (container.start(job="8"), container.start(job=""), container.start(job="../x")):
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (container.mounts.read_text(), container.environ.read_text()) == ("", "")


def test_a_verdict_ends_the_container(context: Context, container: Container) -> None:
    """Where no task prolog runs, the user reads here why."""
    view.publish(context.paths.view, context.run, {"verdict": "image refused\nask your admin\n"})
    done = container.start()
    assert (done.returncode, done.stderr) == (1, b"image refused\nask your admin\n")


@pytest.mark.parametrize(
    "paths",
    [
        "",
        "/w",
        "/w\n/c",
        "/w\n/c\n/etc none bind 0 0",
        "/w\n/c /etc\n/etc",
        "/w\n/c\n/nowhere",
        "/w\n/c\n/etc/../etc",
        "/w\nc\n/etc",
        "/w\n/c\n$(touch pwned)",
    ],
)
def test_a_view_of_another_shape_mounts_nothing(context: Context, container: Container, paths: str) -> None:
    """Its owner can write anything there; a line of the fstab is never made of it."""
    view.publish(context.paths.view, context.run, {"environment": f"{paths}\n"})
    done = container.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert container.mounts.read_text() == ""


VALUES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=60)


@given(value=VALUES)
@settings(max_examples=30)
def test_values_arrive_byte_for_byte_and_are_never_run(context: Context, container: Container, value: str) -> None:
    rendered(context, {"X": value})
    make_removable(f"{context.paths.view}/{context.run.view_id}")  # for the next example
    container.environ.write_text("")
    container.start()
    own = "" if "\t" in value else f"\tX={value}"
    places = f"{context.run.workspace}\t{CONSTANT}"
    assert container.environ.read_bytes() == f"WARMSTART_OWN=7\t{places}{own}\nX={value}\n".encode()
