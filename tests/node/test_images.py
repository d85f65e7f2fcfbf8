"""Images end to end: real registry, skopeo, umoci, mksquashfs and accounts, a store that refuses root. No Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lib import image_place, mounts, processes, registries
from tests.lib.accounts import ALICE, IMPORT, STORE, VALIDATE
from tests.lib.command_line import answer, installed, run
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
from warmstart.images import squashfs
from warmstart.images.choice import choose
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageMalformed,
    ImageNotFound,
    Report,
    unreported,
)
from warmstart.images.imports import making
from warmstart.images.imports.making import ImageNotOurs
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference, parse
from warmstart.images.scratch import Scratch
from warmstart.images.store import eviction, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import Charged
from warmstart.paths import Installation
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
def site(place: Place, store: Store) -> Site:
    return place.site(store.path)


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


@pytest.mark.parametrize("name", ["team/tool:nope", "team/nope:1", f"team/tool@sha256:{'ab' * 32}"])
def test_what_is_not_there_is_not_found_and_the_next_one_is_told(place: Place, site: Site, name: str) -> None:
    """A wrong tag, name or digest is the user's mistake. The registry is asked once."""
    for _ in range(2):
        with pytest.raises(ImageNotFound):
            making.obtain(place.image(name), site, after(60))
    path = f"/{name.replace('@', '/manifests/') if '@' in name else name.replace(':', '/manifests/')}"
    assert place.registry.requests("GET", path) == 1
    assert place.left_in_scratch() == []


@pytest.mark.threat(10)
def test_a_registry_that_wants_credentials_refuses(place: Place, site: Site) -> None:
    with registries.private(place.base) as host:
        importer = partial(choose, RULES._replace(registries=(f"http://{host}",)), place.identity(IMPORT), "")
        with pytest.raises(ImageForbidden):
            making.obtain(parse(f"{host}/team/tool:1"), site._replace(importer=importer), after(60))


MANY = 64
GENEROUS_S = 30.0  # far above what is measured; a wait that grew with their number took a minute


def in_children(sites: list[Site], place: Place, name: str) -> list[dict[str, Any]]:
    """Obtain an image in as many processes at once; return how, where and when each has it."""

    def obtain(site: Site) -> dict[str, Any]:
        found = making.obtain(place.image(name), site, after(90))
        return {"how": found.how, "path": found.path, "at": time.time()}

    return [result(child) for child in [in_child(partial(obtain, site)) for site in sites]]


def test_one_import_however_many_want_it(place: Place, store: Store) -> None:
    """The layers are fetched once, and who waits does not queue."""
    layout = build_image(place.base / "popular", {"/etc/popular": "1\n"})
    place.registry.push(layout, "latest", "team/popular:1")
    sites = [place.site(store.path, run_id=f"r{number}", node=f"n{number % 4}") for number in range(MANY)]
    results = in_children(sites, place, "team/popular:1")
    assert [row["how"] for row in results].count("imported") == 1
    assert {row["how"] for row in results} <= {"imported", "waited", "reused"}
    assert len({row["path"] for row in results}) == 1
    ends = sorted(row["at"] for row in results)
    assert ends[-1] - ends[0] < GENEROUS_S
    blobs = layout / "blobs" / "sha256"
    layers = [name for name in os.listdir(blobs) if (blobs / name).read_bytes()[:2] == b"\x1f\x8b"]  # gzip
    assert [place.registry.requests("GET", f"team/popular/blobs/sha256:{name}") for name in layers] == [1]


def test_locks_that_two_mounts_do_not_share(place: Place, ready: partial[Ready]) -> None:
    """At most two imports, one whole image."""
    source, owner = place.new_store("unshared-source"), place.accounts[STORE]
    slow = partial(ready, 1.5)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(mounts.squashed(place.base, source, place.base / name, owner))
            for name in ("mount-a", "mount-b")
        ]
        sites = [place.site(stores[number % 2], importer=slow, run_id=f"r{number}") for number in range(12)]
        results = in_children(sites, place, "team/twice:1")
        assert [row["how"] for row in results].count("imported") in (1, 2)
        for row in results:
            cat = subprocess.run(["cat", row["path"]], check=True, capture_output=True, user=owner.uid, group=owner.gid)
            assert cat.stdout == Path(ready.args[1]).read_bytes()
        client = ImageStoreClient.of(place.identity(STORE), str(stores[0]))
        assert client.run(after(30), published.check_bytes, Path(results[0]["path"]).stem, "t").problem == ""
    assert leftovers(source) == []


def acting(ready: partial[Ready], act: Callable[[Scratch, Deadline], object]) -> Callable[[], Ready]:
    """Return an importer that has its image, and then does something before it says so."""

    class Acting(Ready):
        def import_image(
            self,
            reference: Reference,
            digest: str,
            work: Scratch,
            deadline: Deadline,
            report: Report = unreported,
        ) -> str:
            name = super().import_image(reference, digest, work, deadline, report)
            act(work, deadline)
            return name

    return partial(Acting, *ready.args)


def run_script(script: str, identity: Identity) -> Callable[[Scratch, Deadline], object]:
    return lambda work, deadline: process.run_alone(
        ["/bin/sh", "-c", script], deadline=deadline, identity=identity, env={"PATH": "/usr/bin:/bin"}, cwd=work.path
    )


def test_a_killed_producer_is_replaced(place: Place, store: Store, ready: partial[Ready]) -> None:
    uid = place.accounts[IMPORT].uid

    def hang() -> None:
        # One starts another in a session of its own, and neither ends.
        sleep = run_script("/usr/bin/setsid /bin/sleep 300 & sleep 300", place.identity(IMPORT))
        site = place.site(store.path, importer=acting(ready, sleep))
        making.obtain(place.image(), site, after(60))

    child = in_child(hang)
    # sh, sleep and the sleep in a session of its own.
    processes.wait_until("the importer's programs", lambda: len(processes_of(uid, place.base)) >= 3, 20)
    os.kill(child[0], signal.SIGKILL)
    assert result(child) is None
    site = place.site(store.path, run_id="r2", importer=ready)
    assert making.obtain(place.image(), site, after(60)).how == "imported"
    assert place.left_in_scratch() == []
    assert processes_of(uid, place.base) == []
    assert not [name for name in files(store.source) if ".tmp-" in name or name.endswith(".producer")]


@pytest.mark.threat(11)
def test_nothing_of_the_importer_survives(place: Place, store: Store, ready: partial[Ready]) -> None:
    script = "(exec 3<>image.sqsh; exec setsid /bin/sh -c 'sleep 300; echo evil >&3') & sleep 0.2"
    site = place.site(store.path, importer=acting(ready, run_script(script, place.identity(IMPORT))))
    assert making.obtain(place.image(), site, after(60)).how == "imported"
    assert processes_of(place.accounts[IMPORT].uid, place.base) == []


@pytest.mark.threat(2, 11)
def test_an_image_that_somebody_can_still_write_is_not_taken(place: Place, store: Store, ready: partial[Ready]) -> None:
    def keep_open(work: Scratch, _deadline: Deadline) -> None:
        """As a process does that was handed a descriptor; it ends with the test's child."""
        os.open(f"{work.path}/image.sqsh", os.O_RDWR | os.O_CLOEXEC)

    def attempt() -> str:
        site = place.site(store.path, importer=acting(ready, keep_open))
        with pytest.raises(ImageNotOurs) as raised:
            making.obtain(place.image(), site, after(60))
        return str(raised.value.fields["problem"])

    assert result(in_child(attempt)) == "a process has it open for writing"
    assert published_files(store.source) == []


@pytest.mark.parametrize("limits", [{"size": "512k"}, {"inodes": 2}], ids=str)  # an inode even for the lock is missing
def test_a_full_store_is_said_and_left_clean(place: Place, ready: partial[Ready], limits: dict[str, Any]) -> None:
    with mounts.tmpfs(place.base / f"full-{len(limits)}-{next(iter(limits))}", **limits) as store:
        site = place.site(place.own(store), importer=ready)
        with pytest.raises(StoreFull):
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


def test_a_read_only_store_serves_what_it_has(place: Place, ready: partial[Ready]) -> None:
    store = place.new_store("read-only")
    site = place.site(store, importer=ready)
    making.obtain(place.image(), site, after(60))
    with mounts.read_only(store):
        fresh = place.site(store, importer=ready)
        assert making.obtain(place.image(), fresh, after(60)).how == "reused"
        with pytest.raises(StoreFailed):
            making.obtain(place.image("team/other:1"), fresh, after(60))


def test_a_damaged_image_is_put_away_and_imported_again(
    place: Place, site: Site, store: Store, ready: partial[Ready]
) -> None:
    """It is never removed under a job: what is damaged is renamed, and a mount of it stays readable."""
    site, target = site._replace(importer=ready), place.base / "mounted"
    first = making.obtain(place.image(), site, after(60))
    target.mkdir()
    mount = ["mount", "-t", "squashfs", "-o", "loop,ro,nosuid,nodev", str(store.file(first.path)), str(target)]
    subprocess.run(mount, check=True)
    try:
        with store.file(first.path).open("r+b") as stream:
            stream.write(b"x")
        again = making.obtain(place.image(), site, after(60))
        assert (again.how, again.size) == ("imported", first.size)
        assert again.missing.damaged
        assert store.file(again.path).read_bytes() == Path(ready.args[1]).read_bytes()
        assert len(list(target.iterdir())) == 20
        assert (target / "d0" / "file").stat().st_size == 50_000
    finally:
        subprocess.run(["umount", str(target)], check=True)
    os.truncate(store.file(again.path), 4096)
    assert making.obtain(place.image(), site, after(60)).missing.damaged.startswith("cut short: 4096 of ")
    assert len([name for name in files(store.source) if "/.damaged-" in name]) == 2
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


@pytest.mark.report
def test_an_image_that_cannot_be_listed_is_refused(place: Place, site: Site, warm: Warm) -> None:
    """Another attempt would fetch and pack the same bytes; a program that was killed says nothing of the image."""
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


@pytest.mark.threat(16)
def test_waiting_expires_and_says_who_imports_and_how_far_it_is(
    place: Place, store: Store, ready: partial[Ready]
) -> None:
    image = ready.args[1]
    slow = partial(Ready, ready.args[0], image, 60.0, f"cp {image} image.sqsh;")

    def hang() -> None:
        site = place.site(store.path, importer=slow, job_id=42)
        making.obtain(place.image(), site, after(60))

    child, said = in_child(hang), ""

    def hears() -> bool:
        nonlocal said
        site = place.site(store.path, run_id="r2")
        with pytest.raises(ImageWaitExpired) as raised:
            making.obtain(place.image(), site, after(1.1))
        said = str(raised.value)
        return "KiB so far" in said

    try:
        processes.wait_until("the producer", lambda: any(store.source.rglob("*.producer")), 20)
        processes.wait_until("the producer's words", hears, 30)
    finally:
        os.kill(child[0], signal.SIGKILL)
        result(child)
    assert f"pid {child[0]} on n1 for job 42 since" in said
    processes.wait_until("the programs' end", lambda: not processes_of(place.accounts[IMPORT].uid, place.base), 10)


@pytest.mark.threat(15)
def test_a_users_quota_is_that_users_matter(
    place: Place, site: Site, ready: partial[Ready], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over quota a user is refused; the next user of the same image does not get that refusal."""
    size = os.stat(ready.args[1]).st_size
    monkeypatch.setattr(eviction, "_space", lambda _: (4 * size, 2 * size))
    monkeypatch.setattr(eviction, "USER_PERCENT", 30)
    alice = site._replace(importer=ready, charged=Charged("ws-alice", place.accounts[ALICE].uid))
    assert making.obtain(place.image("team/a:1"), alice, after(30)).how == "imported"
    with pytest.raises(eviction.ImageQuotaExceeded):
        making.obtain(place.image("team/a:2"), alice, after(30))
    bob = alice._replace(charged=Charged("ws-bob", 64202))
    assert making.obtain(place.image("team/a:2"), bob, after(30)).how == "imported"


# The command line.


POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {path}, audit: {base}/log/audit.jsonl}}
store_user: {store}
import_user: {importer}
validate_user: {validator}
images:
  importer: oci
  registries: ["http://{registry}"]
  keep: {{high: 99%, low: 98%}}
"""


@pytest.fixture
def prefix(place: Place, store: Store) -> Iterator[Installation]:
    """Return an installation with the test's store."""
    policy = POLICY.format(
        base=place.base, path=store.path, store=STORE, importer=IMPORT, validator=VALIDATE, registry=place.registry.url
    )
    yield installed(place.base / "prefix", policy)
    shutil.rmtree(place.base / "prefix")


def test_import_list_show(prefix: Installation, place: Place) -> None:
    reference = f"{place.registry.url}/team/tool:1"
    first = answer(prefix, "images", "import", reference)
    assert first["how"] == "imported"
    assert answer(prefix, "images", "import", reference) == {**first, "how": "reused"}
    (entry,) = answer(prefix, "images", "list")
    assert (entry["reference"], entry["bytes"], entry["path"]) == (reference, first["bytes"], first["path"])
    assert (entry["uid"], entry["protected"], entry["nodes"]) == (-1, "in use", [os.uname().nodename])
    for text in (reference, first["digest"], entry["name"][:8]):
        assert answer(prefix, "images", "show", text) == entry
    listed = run(prefix, "images", "list")
    assert listed.exit_code == 0
    assert reference in listed.stdout
    assert "1 images, " in listed.stderr
    assert "sha256:" in run(prefix, "images", "show", reference).stdout
    assert run(prefix, "images", "show", "no/such:1").exit_code == 1


def test_refresh_asks_the_registry_again(prefix: Installation, place: Place, tmp_path: Path) -> None:
    name = "team/moving:1"
    reference = f"{place.registry.url}/{name}"
    for number in (1, 2):
        place.registry.push(build_image(tmp_path / str(number), {"/etc/number": f"{number}\n"}), "latest", name)
        if number == 1:
            first = answer(prefix, "images", "import", reference)
    assert answer(prefix, "images", "import", reference) == {**first, "how": "reused"}
    second = answer(prefix, "images", "import", "--refresh", reference)
    assert (second["how"], second["digest"] != first["digest"]) == ("imported", True)
    assert answer(prefix, "images", "import", "--refresh", reference) == {**second, "how": "reused"}
    assert answer(prefix, "images", "import", reference) == {**second, "how": "reused"}
    with place.registry.silent():
        silent = run(prefix, "images", "import", "--refresh", reference)
    assert (silent.exit_code, reference in silent.stderr) == (1, True)
    assert answer(prefix, "images", "import", reference)["digest"] == second["digest"]
