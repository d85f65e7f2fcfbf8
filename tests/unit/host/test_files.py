"""Directories and files of root's where others can write, and the removal of trees that a job wrote."""

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from warmstart.host import copying, files
from warmstart.host.copying import Copied, ReadFailed, copy, copy_hashed
from warmstart.host.deadline import after
from warmstart.host.files import Untrusted, ensure_path, open_regular, opened_dir, read_small, replace_file
from warmstart.host.remove import remove_tree
from warmstart.host.trusted import opened_trusted


def test_a_sites_own_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    ensure_path(str(tmp_path), 0o755)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_missing_parents_are_made(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        ensure_path(f"{tmp_path}/a/b", 0o711)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o711


def test_a_directory_that_others_could_empty_is_refused(tmp_path: Path) -> None:
    """Without the sticky bit anybody could put a link in our directory's place."""
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="sticky"):
        ensure_path(str(tmp_path), 0o755)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """Neither a FIFO, which would hang, nor a link, nor a directory, nor more than the limit."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "large").write_bytes(b"x" * 11)
    for name, number in (("fifo", errno.EINVAL), ("link", errno.ELOOP), (".", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            open_regular(str(tmp_path / name))
        assert caught.value.errno == number
    with pytest.raises(OSError, match="larger than 10"):
        read_small(str(tmp_path / "large"), 10)
    with pytest.raises(ValueError, match="larger"):  # what is written there is never that long: it is damaged
        read_small(str(tmp_path / "large"), 10)
    assert read_small(str(tmp_path / "large"), 11) == b"x" * 11


def test_what_dead_writers_left_goes(tmp_path: Path) -> None:
    for name in (".file.7.tmp", ".new.8.tmp", "file", ".hidden"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (100, 300 if "new" in name else 100))
    files.remove_temporaries(str(tmp_path), 200)
    files.remove_temporaries(f"{tmp_path}/missing", 200)
    assert sorted(os.listdir(tmp_path)) == [".hidden", ".new.8.tmp", "file"]


def test_a_failed_replacement_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    with files.opened_dir(str(tmp_path)) as fd, pytest.raises(OSError, match="space"):
        replace_file(fd, "file", b"new", 0o600)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def test_a_name_may_lead_to_another_file_by_now(tmp_path: Path) -> None:
    """Gone, replaced, or a link to the same file: then a lock on the open one keeps nobody out."""
    path = tmp_path / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with files.opened_dir(str(tmp_path)) as folder:
            assert files.is_at(fd, str(path))
            assert files.is_at(fd, "lock", folder)
            path.rename(tmp_path / "moved")
            assert not files.is_at(fd, "lock", folder)
            path.symlink_to("moved")
            assert not files.is_at(fd, "lock", folder)
            path.unlink()
            path.write_text("")
            assert not files.is_at(fd, str(path))
    finally:
        os.close(fd)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    """Give an open file of 2.5 chunks, whose position is somewhere in it."""
    (tmp_path / "source").write_bytes(CONTENT)
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    os.lseek(fd, 17, os.SEEK_SET)
    yield fd
    assert os.lseek(fd, 0, os.SEEK_CUR) == 17
    os.close(fd)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


CONTENT = os.urandom(5 * copying.CHUNK // 2)


def known(data: bytes) -> Copied:
    return Copied(len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("most", [0, 1, copying.CHUNK, copying.CHUNK + 1, len(CONTENT), len(CONTENT) + 1])
def test_a_copy_has_bounds(source: int, target: int, most: int) -> None:
    """At most so many bytes; a target is written from where it stands."""
    os.write(target, b"before")
    part = CONTENT[:most]
    assert copy_hashed(source, target, most=most) == known(part)
    assert os.pread(target, len(CONTENT) + 10, 0) == b"before" + part


def test_a_copy_tells_whose_error_it_is(source: int, target: int, tmp_path: Path) -> None:
    """`ReadFailed` is the source's; what the target says passes as it is."""
    with files.opened_dir(str(tmp_path)) as directory:
        with pytest.raises(ReadFailed) as caught:
            copy_hashed(directory, target)
        assert (caught.value.errno, caught.value.strerror) == (errno.EISDIR, os.strerror(errno.EISDIR))
        with pytest.raises(ReadFailed):
            copy(directory, target)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        for copying in (copy, copy_hashed):
            with pytest.raises(OSError, match="No space left") as refused:
                copying(source, full)
            assert not isinstance(refused.value, ReadFailed)
    finally:
        os.close(full)


MINE = frozenset({0, os.geteuid()})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "b").mkdir(mode=0o755)
    return tmp_path / "a" / "b"


@pytest.mark.parametrize("flags", [files.DIRECTORY, files.PATH])
def test_a_path_that_is_the_owners_all_the_way(place: Path, flags: int) -> None:
    """Its descriptor is that of the directory; `/` is a path, too."""
    with opened_trusted(str(place), MINE, flags=flags) as fd:
        assert os.path.samestat(os.fstat(fd), place.stat())
    with opened_trusted("/", MINE, flags=flags) as fd:
        assert os.path.samestat(os.fstat(fd), os.stat("/"))


@pytest.mark.parametrize("name", ["a", "a/b"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_directory_on_the_way_that_others_can_write(place: Path, name: str, mode: int) -> None:
    weak = place.parents[1] / name
    weak.chmod(mode)
    for sticky in (False, True):
        with pytest.raises(Untrusted, match="can be written by others") as caught, opened(place, sticky=sticky):
            pass
        assert (caught.value.errno, caught.value.filename) == (errno.EPERM, str(weak))


def test_a_sticky_directory_may_be_above(place: Path) -> None:
    """At the end of the path only where the caller says so: names can be added there."""
    place.parent.chmod(0o1777)
    with opened(place):
        pass
    place.chmod(0o1777)
    with opened(place, sticky=True):
        pass
    with pytest.raises(Untrusted), opened(place):
        pass


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_link_on_the_way_is_not_followed(place: Path, name: str) -> None:
    """Not even to a directory that would do; the error names the link."""
    path = place.parents[1] / name
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    for flags in (files.DIRECTORY, files.PATH):
        with pytest.raises(NotADirectoryError) as caught, opened_trusted(str(place), MINE, flags=flags):
            pass
        assert caught.value.filename == str(path)


def test_what_is_missing_is_made_if_that_is_wanted(place: Path) -> None:
    """Directories above 0755, the last one as asked; one that is there keeps its mode."""
    wanted = place / "c" / "d"
    with pytest.raises(FileNotFoundError) as caught, opened(wanted):
        pass
    assert caught.value.filename == str(wanted.parent)
    for _ in range(2):
        with opened_trusted(str(wanted), MINE, make=0o700):
            assert stat.S_IMODE(wanted.parent.stat().st_mode) == 0o755
            assert stat.S_IMODE(wanted.stat().st_mode) == 0o700
    with opened_trusted(str(place), MINE, make=0o700):
        assert stat.S_IMODE(place.stat().st_mode) == 0o755


def opened(path: Path, *, sticky: bool = False) -> AbstractContextManager[int]:
    return opened_trusted(str(path), MINE, sticky=sticky)


# Trees that a job wrote are removed by descriptor, whatever it built there.


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    """Give the descriptor of the directory that holds the tree."""
    with opened_dir(str(tmp_path)) as fd:
        yield fd


def test_links_are_removed_and_never_followed(tmp_path: Path, parent: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").symlink_to(outside / "precious")
    (tree / "dir").symlink_to(outside)
    remove_tree(parent, "tree", after(60))
    tree.symlink_to(outside)
    remove_tree(parent, "tree", after(60))
    assert not tree.is_symlink()
    assert (outside / "precious").read_text() == "x"


def nest(directory: Path, levels: int, *, each: int = 0) -> None:
    """Make directories in each other, deeper than a path can be long, and so many empty ones beside each."""
    fd = os.open(directory, os.O_RDONLY)
    for level in range(levels):
        for number in range(each):
            os.mkdir(f"{number}-{level}", dir_fd=fd)
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def link(directory: Path, count: int) -> None:
    (directory / "file").touch()
    for number in range(count):
        os.link(directory / "file", directory / f"a-name-of-some-length-{number}")


def make(directory: Path, count: int) -> None:
    for number in range(count):
        (directory / f"a-name-of-some-length-{number}" / "below").mkdir(parents=True)


@pytest.mark.threat(21)
@pytest.mark.parametrize(
    "build", [partial(link, count=10_000), partial(make, count=5_000), partial(nest, levels=5_000, each=2)]
)
def test_a_removal_takes_no_memory_for_each_name(tmp_path: Path, parent: int, build: Callable[[Path], None]) -> None:
    """Not for each file, directory or level: the job makes as many as it likes, and root's memory is everybody's."""
    tree = tmp_path / "tree"
    tree.mkdir()
    build(tree)
    tracemalloc.start()
    try:
        remove_tree(parent, "tree", after(120))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert os.listdir(tmp_path) == []
    assert most < 256 << 10


def test_names_that_appear_during_a_removal_go_or_end_it_at_the_deadline(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "0").touch()
    real = os.unlink

    def unlink(name: str, **at: int) -> None:
        real(name, **at)
        if int(name) < most:
            (tmp_path / "tree" / str(int(name) + 1)).touch()

    monkeypatch.setattr(os, "unlink", unlink)
    most = 100
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == []
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "0").touch()
    most = 1 << 60
    with pytest.raises(OSError, match="deadline"):
        remove_tree(parent, "tree", after(0.2))


def test_odd_names_and_types_go(tmp_path: Path, parent: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir(mode=0o700)
    os.mkfifo(tree / "fifo")
    os.mkdir(os.fsencode(tree) + b"/\xff\n")
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == []


def test_a_passed_deadline_leaves_the_rest_for_the_next_call(tmp_path: Path, parent: int) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    with pytest.raises(OSError, match="deadline") as caught:
        remove_tree(parent, "tree", after(-1))
    assert caught.value.errno == errno.ETIME
    remove_tree(parent, "tree", after(60))
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == []


@pytest.mark.threat(21)
def test_a_tree_goes_where_no_directory_can_be_moved(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two project ids rename(2) fails with EXDEV, on XFS and ext4; users can set the ids of their own files."""

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    (tmp_path / "tree").mkdir()
    nest(tmp_path / "tree", 120)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuses)
        remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == []


@pytest.mark.threat(21)
def test_a_directory_that_is_moved_meanwhile_costs_its_new_place_nothing(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back from it leads elsewhere, where nothing is removed; the next call removes what is left."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "a").mkdir(parents=True)
    (elsewhere / "precious").write_text("x")
    inner = tmp_path / "tree" / "a" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    real = os.unlink

    def unlink(name: str, **at: int) -> None:
        real(name, **at)
        if name == "file":
            os.rename(inner, elsewhere / "inner")

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(OSError, match="moved") as caught:
        remove_tree(parent, "tree", after(60))
    assert caught.value.errno == errno.EAGAIN
    assert sorted(os.listdir(elsewhere)) == ["a", "inner", "precious"]
    remove_tree(parent, "tree", after(60))
    assert os.listdir(tmp_path) == ["elsewhere"]


# The one helper that takes file locks.


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Give two descriptors of one file, each with a lock of its own."""
    with ExitStack() as opened:
        yield opened.enter_context(descriptor(tmp_path / "lock")), opened.enter_context(descriptor(tmp_path / "lock"))


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def test_one_holder_at_a_time(two: tuple[int, int]) -> None:
    """Whoever tries once learns that somebody holds it; a lock that is held can be taken again by its descriptor."""
    first, second = two
    assert files.try_flock(first)
    assert files.try_flock(first)
    assert not files.try_flock(second)
    assert not files.try_flock(second, shared=True)
    files.unlock(first)
    assert files.try_flock(second)


@pytest.mark.report
@pytest.mark.parametrize(
    ("on_term", "seconds", "status"), [("import sys; sys.exit(7)", 20.0, 7), ("pass", 1.0, -signal.SIGKILL)]
)
def test_who_holds_a_lock_may_end_by_itself(tmp_path: Path, on_term: str, seconds: float, status: int) -> None:
    program = (
        f"import fcntl, signal, time\ndef end(*_):\n {on_term}\nsignal.signal(signal.SIGTERM, end)\n"
        f"file = open({str(tmp_path / 'lock')!r}, 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True)\nwhile True: time.sleep(1)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with descriptor(tmp_path / "lock") as fd:
            assert files.end_flock_holders(fd, after(seconds))
        assert holder.wait(5) == status


def test_readers_share_and_exclude_writers(two: tuple[int, int], tmp_path: Path) -> None:
    """LOCK_SH beside LOCK_SH, and never beside LOCK_EX."""
    first, second = two
    assert files.try_flock(first, shared=True)
    assert files.wait_flock(second, after(0), shared=True)
    with descriptor(tmp_path / "lock") as third:
        assert not files.try_flock(third)
        assert not files.wait_flock(third, after(0.01), 0.005)


def test_a_wait_ends_with_the_lock_or_at_the_deadline(two: tuple[int, int]) -> None:
    first, second = two
    assert files.wait_flock(first, after(0))
    started = time.monotonic()
    assert not files.wait_flock(second, after(0.05), 0.01)
    assert 0.05 <= time.monotonic() - started < 2
    holder = threading.Timer(0.05, files.unlock, [first])
    holder.start()
    assert files.wait_flock(second, after(60), 0.01)
    holder.join()


def test_a_file_system_without_locks_is_an_error(tmp_path: Path) -> None:
    """Never "somebody holds it": what cannot be locked is the caller's to judge, and no wait ends it."""
    fd = os.open(tmp_path, os.O_PATH)  # as ENOLCK or ENOTSUP would be: no lock on this descriptor
    try:
        with pytest.raises(OSError):
            files.wait_flock(fd, after(60))
    finally:
        os.close(fd)


@pytest.mark.parametrize("parts", [[], ["hole"], ["data"], ["data", "hole", "data"], ["hole", "data", "hole"]])
def test_a_copy_keeps_holes(tmp_path: Path, parts: list[str]) -> None:
    """Content, length and hash are those of the file; what is a hole takes no space."""
    size = 3 << 20
    whole = b""
    with open(tmp_path / "a", "wb") as file:
        for part in parts:
            if part == "data":
                file.write(b"x" * size)
            else:
                file.truncate(file.seek(size, os.SEEK_CUR))
            whole += (b"x" if part == "data" else b"\0") * size
    written: list[int] = []
    with open(tmp_path / "a", "rb") as source, open(tmp_path / "b", "wb") as target:
        copied = copying.copy_data(source.fileno(), target.fileno(), len(whole), written.append)
    assert copied == (len(whole), hashlib.sha256(whole).hexdigest())
    assert (tmp_path / "b").read_bytes() == whole
    data = parts.count("data") * size
    assert sum(written) == data
    assert (tmp_path / "b").stat().st_blocks * 512 <= data + 65536
