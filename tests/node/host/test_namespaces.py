"""A bind mount in the mount namespace of another process, and new namespaces."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from warmstart.host import namespaces
from warmstart.host.client import attach_in_namespace, show_in_namespace
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.paths import NOTHING, Shown


@pytest.mark.parametrize(
    "further",
    [
        [],
        ["--pid", "--fork", "--mount-proc"],  # namespace/linux with CLONE_NEWPID: its /proc knows no process of ours
        ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"],
    ],
)
def test_a_directory_shown_in_a_namespace(base: Path, further: list[str]) -> None:
    """It is there for the namespace's processes, and nowhere else. A second call changes nothing."""
    owner, target = Identity("nobody", 12345, 12345), base / "constant"
    source = base / "run" / "cache"
    source.mkdir(parents=True)
    (source / "entry").write_text("warm")
    os.chown(source, owner.uid, owner.gid)
    argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", *further, "/bin/sh", "-c"]
    script = f"echo; read line; cat {target}/entry; grep -c {target} /proc/mounts"
    with subprocess.Popen(
        [*argv, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        namespace = f"/proc/{process.pid}/ns/mnt"
        for _ in range(2):
            shown = [Shown("rw", "root", "cache", NOTHING, str(target), NOTHING)]
            assert show_in_namespace(namespace, str(source.parent), owner, shown, after(60)) == {}
        output, _ = process.communicate("\n")
    assert output == "warm1\n"
    assert os.listdir(target) == []


@pytest.mark.threat(51)
@pytest.mark.parametrize("case", ["a file", "a link on the way", "a link", "a directory", "a FIFO", "gone"])
def test_a_file_shown_over_a_file_of_the_users(base: Path, case: str) -> None:
    """Where it is one, and no name in its path is a link; the namespace alone sees it, and cannot write it."""
    owner, target = Identity("nobody", 12345, 12345), base / "shared" / "blobs" / "weights"
    source = base / "run" / "mounted" / "0"
    for path, text in ((source, "copy"), (target, "original")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    if case != "a file":
        target.rename(target.with_name("moved"))
    if case == "a link on the way":
        target.parent.rename(base / "shared" / "moved")
        target.parent.symlink_to("moved")
        (base / "shared/moved/moved").rename(target)
    elif case == "a link":
        target.symlink_to("moved")
    elif case == "a directory":
        target.mkdir()
    elif case == "a FIFO":
        os.mkfifo(target)
    script = f"echo; read line; cat {target}; test -w {target} && echo ' writable'"
    with subprocess.Popen(
        ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        shown = [Shown("ro", "job", "mounted/0", NOTHING, str(target), NOTHING)]
        failed = show_in_namespace(f"/proc/{process.pid}/ns/mnt", str(base / "run"), owner, shown, after(60))
        output, _ = process.communicate("\n")
    expected = {"a file": "copy", "a FIFO": "copy", "a link on the way": "original writable\n"}
    expected["a link"] = expected["a link on the way"]
    assert output.strip("\n") == expected.get(case, "").strip("\n") or case == "a directory"
    assert list(failed) == ([] if expected.get(case) == "copy" else [str(target)])
    assert case != "a file" or target.read_text() == "original"


def test_many_files_shown_over_files(base: Path) -> None:
    """More than a process can have open: a few children open them, and each that cannot be opened is told alone."""
    owner, shared, copies = Identity("nobody", 12345, 12345), base / "shared", base / "run" / "mounted"
    shared.mkdir()
    copies.mkdir(parents=True)
    names = [f"{number:04}" for number in range(1100)]
    for name in names:
        (copies / name).write_text("copy")
        (shared / name).write_text("original")
    (shared / "0300").unlink()
    (shared / "0700").rename(shared / "moved")
    (shared / "0700").symlink_to("moved")
    script = f"echo; read line; cat {shared}/*"
    with subprocess.Popen(
        ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        shown = [Shown("ro", "job", f"mounted/{name}", NOTHING, str(shared / name), NOTHING) for name in names]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        try:
            failed = show_in_namespace(f"/proc/{process.pid}/ns/mnt", str(base / "run"), owner, shown, after(60))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        output, _ = process.communicate("\n")
    assert failed == {
        str(shared / "0300"): "No such file or directory",
        str(shared / "0700"): "Too many levels of symbolic links",
    }
    assert (output.count("copy"), output.count("original")) == (1098, 2)


@pytest.mark.threat(60)
@pytest.mark.parametrize("propagation", ["private", "slave"])
def test_a_mount_that_is_made_later_is_attached_where_it_is_not_seen(base: Path, propagation: str) -> None:
    """Once, though another call follows and the namespace may see it already; a cache that was replaced has none."""
    place = base / "set"
    for name in ("cache", "cache/numba", "cache/triton", "merged"):
        (place / name).mkdir(parents=True)
    (place / "merged" / "entry").write_text("warm")
    mounted = place / "cache" / "numba"
    subprocess.run(["/usr/bin/mount", "--bind", base, base], check=True)
    try:
        subprocess.run(["/usr/bin/mount", "--make-shared", base], check=True)
        script = f"echo; read line; cat {mounted}/entry; grep -c {mounted} /proc/mounts"
        argv = ["/usr/bin/unshare", "--mount", "--propagation", propagation, "/bin/sh", "-c", script]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            subprocess.run(["/usr/bin/mount", "--bind", place / "merged", mounted], check=True)
            namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY)
            for _ in range(2):
                attach_in_namespace(namespace, str(place), ["cache/numba"], after(60))
            (place / "cache" / "triton").rmdir()
            (place / "cache" / "triton").symlink_to("/")
            with pytest.raises(NotADirectoryError):
                attach_in_namespace(namespace, str(place), ["cache/triton"], after(60))
            os.close(namespace)
            output, _ = process.communicate("\n")
        assert output == "warm1\n"
    finally:
        subprocess.run(["/usr/bin/umount", "-R", "-l", base], check=False)


def test_a_namespaces_maker_goes_no_further_than_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def parent_dies(_hidden: str, _shown: str) -> None:
        parent = os.getppid()
        os.kill(parent, signal.SIGKILL)
        while os.getppid() == parent:
            pass

    monkeypatch.setattr(namespaces, "_hide", parent_dies)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            namespaces.new_namespace("/hidden", "/shown")
        finally:
            os.write(write, b"escaped")
            os._exit(0)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with open(read, "rb") as said:
        assert said.read() == b""
