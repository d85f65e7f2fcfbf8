"""Images end to end: real registry, skopeo, umoci, mksquashfs and accounts, a store that refuses root. No Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import config, image_place, mounts, processes, registries
from tests.lib.accounts import IMPORT, STORE, VALIDATE
from tests.lib.image_place import (
    KIND,
    Place,
    Ready,
    Store,
    files,
    in_child,
    leftovers,
    processes_of,
    published_files,
    result,
)
from tests.lib.image_site import RULES
from tests.lib.registry import build_image
from warmstart.host import process
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.images import scratch, squashfs
from warmstart.images.choice import choose
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageMalformed,
    ImageNotFound,
    RegistryUnreachable,
    Report,
    unreported,
)
from warmstart.images.importers.oci import RESULT, Oci
from warmstart.images.imports import making, verify
from warmstart.images.imports.making import ImageNotOurs
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference, parse
from warmstart.store.layout import StoreFailed, StoreFull

pytestmark = pytest.mark.threat(6)


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty store for one test, which refuses every uid but its owner's."""
    with place.squashed(request.node.name, coherent=True) as made:
        with pytest.raises(PermissionError):
            os.listdir(made.path)
        yield made


@pytest.fixture
def site(place: Place, store: Store) -> Iterator[Site]:
    made = place.site(store.path)
    with made.store:
        yield made


class Warm(NamedTuple):
    """A store that has `team/tool:1`, and how a node finds it. What tests add to it does no harm to others."""

    store: Store
    site: Site
    found: Obtained


@pytest.fixture(scope="module")
def warm(place: Place) -> Iterator[Warm]:
    """Return such a store, for the tests that leave it as it is."""
    with place.squashed("warm", coherent=True) as store:
        site = place.site(store.path)
        with site.store:
            yield Warm(store, site, making.obtain(place.image(), site, after(60)))


@pytest.fixture(scope="module")
def ready(place: Place) -> partial[Ready]:
    """Return an importer that has its image already, for the tests of what comes before and after an import."""
    return partial(Ready, place.identity(IMPORT), str(image_place.squashfs(place.base / "ready.sqsh", 1_000_000)))


def test_imports_once_and_is_warm_then(place: Place, site: Site, store: Store) -> None:
    first = making.obtain(place.image(), site, after(60))
    assert first.how == "imported"
    assert making.obtain(place.image(), site, after(60)) == first._replace(how="reused")
    hexes = first.digest.removeprefix("sha256:")
    name = f"images/{hexes}.{KIND}"
    assert files(store.source)[:2] == [f"{name}.json", f"{name}.sqsh"]
    status = store.file(first.path).stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (place.accounts[STORE].uid, 0o444)
    meta = json.loads((store.source / f"{name}.json").read_text())
    assert (meta["reference"], meta["job_id"]) == (place.image().canonical(), 7)
    assert place.left_in_scratch() == []


def test_the_image_holds_what_the_layers_hold(warm: Warm) -> None:
    path = warm.store.file(warm.found.path)
    listed = subprocess.run(["unsquashfs", "-lln", str(path)], check=True, capture_output=True, text=True).stdout
    rows = {line.split("squashfs-root", 1)[1]: line.split() for line in listed.splitlines() if "squashfs-root" in line}
    assert rows["/bin/sudo"][:3] == ["-r-s--x--x", "0/0", "10"]
    assert rows["/etc/hello"][1:3] == ["0/0", "6"]
    meta = json.loads(path.with_suffix(".json").read_text())
    assert (meta["files"], meta["unpacked"]) == (
        len(rows),
        sum(int(row[2]) for row in rows.values() if row[2].isdecimal()),
    )


def test_a_digest_needs_no_registry_once_it_is_there(place: Place, warm: Warm) -> None:
    digest = warm.found.digest
    asked = place.registry.requests("GET", "manifests")
    found = making.obtain(place.image(f"team/tool@{digest}"), warm.site, after(60))
    assert (found.how, found.digest) == ("reused", digest)
    assert place.registry.requests("GET", "manifests") == asked


def test_what_is_not_there_is_not_found(place: Place, site: Site) -> None:
    for name in ("team/tool:nope", "team/nope:1", f"team/tool@sha256:{'ab' * 32}"):
        with pytest.raises(ImageNotFound):
            making.obtain(place.image(name), site, after(60))
    assert place.left_in_scratch() == []


def test_a_failure_is_told_to_the_next_one(place: Place, site: Site) -> None:
    for _ in range(2):
        with pytest.raises(ImageNotFound):
            making.obtain(place.image("team/absent:1"), site, after(60))
    assert place.registry.requests("GET", "/team/absent/manifests/1") == 1


@pytest.mark.threat(10)
def test_a_registry_that_wants_credentials_refuses(place: Place, site: Site) -> None:
    with registries.private(place.base) as host:
        importer = partial(choose, RULES._replace(insecure=(host,)), place.identity(IMPORT), "")
        with pytest.raises(ImageForbidden):
            making.obtain(parse(f"{host}/team/tool:1"), site._replace(importer=importer), after(60))


def test_a_registry_that_is_down_is_unreachable(place: Place, site: Site) -> None:
    port = config.free_ports(1)[0]
    with pytest.raises(RegistryUnreachable):
        making.obtain(parse(f"127.0.0.1:{port}/team/tool:1"), site, after(1))
    assert place.left_in_scratch() == []


def test_eight_at_once_make_one_import(place: Place, store: Store) -> None:
    layout = build_image(place.base / "popular", {"/etc/popular": "1\n"})
    place.registry.push(layout, "latest", "team/popular:1")

    def obtain(number: int) -> list[str]:
        site = place.site(store.path, run_id=f"r{number}", node=f"n{number % 4 + 1}")
        with site.store:
            found = making.obtain(place.image("team/popular:1"), site, after(60))
            return [found.how, found.digest]

    # One at a time is forked, all run at once.
    running = [in_child(lambda number=number: obtain(number)) for number in range(8)]  # type: ignore[misc]
    results = [result(child) for child in running]
    assert sorted(how for how, _ in results if how == "imported") == ["imported"]
    assert len({digest for _, digest in results}) == 1
    blobs = [name for name in os.listdir(layout / "blobs" / "sha256") if _is_layer(layout, name)]
    assert [place.registry.requests("GET", f"team/popular/blobs/sha256:{name}") for name in blobs] == [1]


def _is_layer(layout: Path, name: str) -> bool:
    return (layout / "blobs" / "sha256" / name).read_bytes()[:2] == b"\x1f\x8b"  # gzip


class Sleeper(Oci):
    """An importer whose program starts, writes, starts another one in a session of its own, and never ends."""

    def import_image(
        self,
        reference: Reference,  # noqa: ARG002
        digest: str,  # noqa: ARG002
        work: scratch.Scratch,
        deadline: Deadline,
        report: Report = unreported,  # noqa: ARG002
    ) -> str:
        process.run_alone(
            ["/bin/sh", "-c", "echo half > image.sqsh; /usr/bin/setsid /bin/sleep 300 & sleep 300"],
            deadline=deadline, identity=self.identity, env={}, cwd=work.path,
        )  # fmt: skip
        return RESULT


def test_a_killed_producer_is_replaced(place: Place, store: Store, ready: partial[Ready]) -> None:
    uid = place.accounts[IMPORT].uid

    def hang() -> None:
        site = place.site(store.path, importer=partial(Sleeper, place.identity(IMPORT), (place.registry.url,)))
        with site.store:
            making.obtain(place.image(), site, after(60))

    child = in_child(hang)
    # sh, sleep and the sleep in a session of its own.
    processes.wait_until("the importer's programs", lambda: len(processes_of(uid, place.base)) >= 3, 20)
    os.kill(child[0], signal.SIGKILL)
    assert result(child) is None
    site = place.site(store.path, run_id="r2", importer=ready)
    with site.store:
        assert making.obtain(place.image(), site, after(60)).how == "imported"
    assert place.left_in_scratch() == []
    assert processes_of(uid, place.base) == []
    assert not [name for name in files(store.source) if ".tmp-" in name or name.endswith(".producer")]


class Leftover(Ready):
    """An importer that leaves a process behind, which would write into the image later."""

    def import_image(
        self,
        reference: Reference,
        digest: str,
        work: scratch.Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        """Import, and leave a process that has the result open for writing."""
        name = super().import_image(reference, digest, work, deadline, report)
        script = f"(exec 3<>{name}; exec setsid /bin/sh -c 'sleep 300; echo evil >&3') & sleep 0.2"
        process.run_alone(
            ["/bin/sh", "-c", script],
            deadline=deadline, identity=self.identity, env={"PATH": "/usr/bin:/bin"}, cwd=work.path,
        )  # fmt: skip
        return name


@pytest.mark.threat(11)
def test_nothing_of_the_importer_survives(place: Place, store: Store, ready: partial[Ready]) -> None:
    site = place.site(store.path, importer=partial(Leftover, *ready.args))
    with site.store:
        assert making.obtain(place.image(), site, after(60)).how == "imported"
    assert processes_of(place.accounts[IMPORT].uid, place.base) == []


class Accomplice(Ready):
    """An importer with an outside process that has the result open for writing."""

    def import_image(
        self,
        reference: Reference,
        digest: str,
        work: scratch.Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        """Import, and keep the result open, as a process that was handed a descriptor would."""
        name = super().import_image(reference, digest, work, deadline, report)
        os.open(f"{work.path}/{name}", os.O_RDWR | os.O_CLOEXEC)  # this test's child ends, and it with it
        return name


@pytest.mark.threat(2, 11)
def test_an_image_that_somebody_can_still_write_is_not_taken(place: Place, store: Store, ready: partial[Ready]) -> None:
    def attempt() -> str:
        site = place.site(store.path, importer=partial(Accomplice, *ready.args))
        with site.store, pytest.raises(ImageNotOurs) as raised:
            making.obtain(place.image(), site, after(60))
        return str(raised.value.fields["problem"])

    assert result(in_child(attempt)) == "a process has it open for writing"
    assert published_files(store.source) == []


def test_a_full_store_is_said_and_left_clean(place: Place, ready: partial[Ready]) -> None:
    with mounts.tmpfs(place.base / "full", size="512k") as store:
        site = place.site(place.own(store), importer=ready)
        with site.store, pytest.raises(StoreFull):
            making.obtain(place.image(), site, after(60))
        assert published_files(store) == []
    assert place.left_in_scratch() == []


def test_a_store_above_its_mark_lets_the_unused_go(place: Place, ready: partial[Ready]) -> None:
    with (
        mounts.tmpfs(place.base / "small", size="8m") as small,
        mounts.squashed(
            place.base, source := place.own(small / "store"), place.base / "evicting", place.accounts[STORE],
            coherent=True,
        ) as path,
    ):  # fmt: skip
        store = Store(path, source)
        site = place.site(path, importer=ready)
        with site.store:
            names = ("team/idle:1", "team/used:1")
            paths = [store.file(making.obtain(place.image(name), site, after(60)).path) for name in names]
            for image in paths:
                os.utime(image, (0, 0))
            os.utime(source / "images" / "used" / paths[0].stem / "n1", (0, 0))
            keep = RULES.keep._replace(high=20, low=1)
            crowded = site._replace(rules=RULES._replace(keep=keep))
            found = making.obtain(place.image(), crowded, after(60))
        assert (found.how, found.missing.evicted) == ("imported", (paths[0].stem,))
        assert [image.exists() for image in (*paths, store.file(found.path))] == [False, True, True]
        assert leftovers(source) == []


def test_a_store_without_inodes_is_full(place: Place) -> None:
    with mounts.tmpfs(place.base / "inodes", inodes=2) as store:
        site = place.site(place.own(store))
        with site.store, pytest.raises(StoreFull):
            making.obtain(place.image(), site, after(60))


def test_a_read_only_store_serves_what_it_has(place: Place, ready: partial[Ready]) -> None:
    store = place.new_store("read-only")
    site = place.site(store, importer=ready)
    with site.store:
        making.obtain(place.image(), site, after(60))
    with mounts.read_only(store):
        fresh = place.site(store, importer=ready)
        with fresh.store:
            assert making.obtain(place.image(), fresh, after(60)).how == "reused"
            with pytest.raises(StoreFailed):
                making.obtain(place.image("team/other:1"), fresh, after(60))


def test_a_damaged_image_is_put_away_and_imported_again(
    place: Place, site: Site, store: Store, ready: partial[Ready]
) -> None:
    site = site._replace(importer=ready)
    first = making.obtain(place.image(), site, after(60))
    os.truncate(store.file(first.path), 4096)
    again = making.obtain(place.image(), site, after(60))
    assert (again.how, again.size) == ("imported", first.size)
    assert again.missing.damaged.startswith("cut short: 4096 of ")
    assert [name for name in files(store.source) if "/.damaged-" in name]
    assert making.obtain(place.image(), site, after(60)).missing.damaged == ""


def test_every_kind_of_image_has_a_good_superblock(place: Place, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    (tree / "small").write_text("x")
    (tree / "large").write_bytes(os.urandom(300_000))
    os.setxattr(tree / "small", "user.key", b"value")
    variants: list[tuple[Path, list[str]]] = [
        *((tree, ["-comp", name]) for name in ("gzip", "lzo", "lz4", "xz", "zstd")),
        *((tree, options) for options in (["-no-xattrs"], ["-no-exports"], ["-no-fragments"], ["-nopad"])),
        *((tree, ["-b", size]) for size in ("4096", "1M")),
        *((empty, options) for options in ([], ["-no-exports", "-nopad"])),
    ]
    for number, (source, options) in enumerate(variants):
        path = tmp_path / f"{number}.sqsh"
        argv = ["mksquashfs", str(source), str(path), "-no-progress", "-quiet", *options]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        data = path.read_bytes()
        assert squashfs.parse(data[:96], len(data)).magic == squashfs.MAGIC, options


@pytest.mark.report
def test_an_image_that_nothing_mounts_is_none(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    path = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", str(tmp_path / "tree"), str(path), "-quiet", "-comp", "lzma"], check=True)
    data = path.read_bytes()
    with pytest.raises(squashfs.ImageInvalid, match="lzma"):
        squashfs.parse(data[:96], len(data))


def test_listing_finds_what_the_superblock_does_not(place: Place, warm: Warm) -> None:
    good = warm.store.file(warm.found.path).read_bytes()
    block = squashfs.parse(good[:96], len(good))
    zeroed = bytearray(good)
    zeroed[block.inode_table : block.directory_table] = bytes(block.directory_table - block.inode_table)
    squashfs.parse(bytes(zeroed[:96]), len(zeroed))
    for data, is_good in ((good, True), (zeroed, False)):
        path = place.base / "candidate"
        path.write_bytes(data)
        path.chmod(0o444)
        fd = os.open(path, os.O_RDONLY)
        try:
            assert _lists(fd, place.identity(VALIDATE)) is is_good
        finally:
            os.close(fd)
            path.unlink()


@pytest.mark.report
def test_an_image_that_cannot_be_listed_is_refused(place: Place, site: Site, warm: Warm) -> None:
    good = warm.store.file(warm.found.path).read_bytes()
    block = squashfs.parse(good[:96], len(good))
    path = place.base / "unlistable.sqsh"
    tables = slice(block.inode_table, block.directory_table)
    path.write_bytes(good[: tables.start] + bytes(tables.stop - tables.start) + good[tables.stop :])
    path.chmod(0o644)
    unlistable = site._replace(importer=lambda: Ready(place.identity(IMPORT), str(path)))
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(ImageMalformed, match="unsquashfs can't list it"):
            making.obtain(place.image(), unlistable, after(60))
        path.unlink(missing_ok=True)
    assert place.left_in_scratch() == []


def _lists(fd: int, validator: Identity) -> bool:
    try:
        verify.check_listing(fd, validator, after(30))
    except squashfs.ImageInvalid:
        return False
    return True


@pytest.mark.threat(16)
def test_waiting_expires_and_names_the_producer(place: Place, store: Store) -> None:
    def hang() -> None:
        site = place.site(
            store.path, importer=partial(Sleeper, place.identity(IMPORT), (place.registry.url,)), job_id=42
        )
        with site.store:
            making.obtain(place.image(), site, after(60))

    child = in_child(hang)
    uid = place.accounts[IMPORT].uid
    try:
        processes.wait_until("the importer's programs", lambda: len(processes_of(uid, place.base)) >= 3, 20)
        site = place.site(store.path, run_id="r2")
        with site.store, pytest.raises(ImageWaitExpired) as raised:
            making.obtain(place.image(), site, after(1.5))
    finally:
        os.kill(child[0], signal.SIGKILL)
        result(child)
    assert f"pid {child[0]} on n1 for job 42" in str(raised.value)
    processes.wait_until("the programs' end", lambda: not processes_of(uid, place.base), 10)


def test_a_warm_look_up_is_a_few_system_calls(place: Place, warm: Warm) -> None:
    for number in range(500):
        (warm.store.source / "images" / f"{number:064x}.{KIND}.sqsh").touch()
    trace = place.base / "trace"
    counts = {}
    for name in ("team/tool:1", f"team/tool@{warm.found.digest}"):
        traced = _traced(place, warm.store.path, name, trace)
        assert not [line for line in traced if "getdents" in line]
        counts[name] = len(traced)
    assert list(counts.values()) == [8, 4]


def _traced(place: Place, store: Path, name: str, trace: Path) -> list[str]:
    """Return the system calls of a warm look-up that concern the store: by its path, or on its descriptors."""
    site = place.site(store)
    with site.store:
        worker = site.store.worker
        making.obtain(place.image(), site, after(60))
        assert worker._pid
        strace = subprocess.Popen(
            ["/usr/bin/strace", "-qq", "-y", "-p", str(worker._pid), "-o", str(trace)],
            stderr=subprocess.DEVNULL,
        )
        processes.wait_until("strace", lambda: _is_traced(worker._pid), 10)
        found: Obtained = making.obtain(place.image(name), site, after(60))
        assert found.how == "reused"
        strace.terminate()
        strace.wait()
    return [line for line in trace.read_text().splitlines() if str(store) in line]


def _is_traced(pid: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
