"""Attacks of a registry on a node that imports from it, each of which fails (docs/threats.md, rows 11, 12, 15).

Layers that expand beyond an import's caps, links, and what takes over a parser.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import processes
from tests.lib.accounts import ALICE, IMPORT
from tests.lib.image_place import Place, files, in_child, leftovers, processes_of, result
from tests.lib.image_site import CAPS, RULES
from tests.lib.registry import build_image
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity, become
from warmstart.images import notes, scratch
from warmstart.images.importers import base, flatten
from warmstart.images.importers.base import Importer
from warmstart.images.importers.enroot import Enroot
from warmstart.images.importers.oci import Oci
from warmstart.images.imports import making
from warmstart.images.query import Site
from warmstart.images.reference import Reference, parse
from warmstart.images.scratch import Caps, ImageTooLarge, Scratch
from warmstart.images.user import own_images

SMALL = Caps(24 << 20, 300)
ZEROS = 50 << 20
FILES = 1000
METADATA = "http://169.254.169.254/latest/meta-data/"
IMPORTERS = ("oci", "enroot")


class Bombs(NamedTuple):
    """Small images that expand to much."""

    size: Reference
    files: Reference


@pytest.fixture(scope="module")
def bombs(place: Place) -> Bombs:
    """Push images that expand to more bytes, and to more files, than `SMALL` allows."""
    return Bombs(
        _pushed(place, "zeros", lambda tree: os.truncate(_touched(tree / "zeros"), ZEROS)),
        _pushed(place, "files", lambda tree: [_touched(tree / f"f{number}") for number in range(FILES)]),
    )


def _touched(path: Path) -> Path:
    path.touch()
    return path


def _pushed(place: Place, name: str, fill: Callable[[Path], object]) -> Reference:
    layout, tree = build_image(place.base / f"bomb-{name}", {}), place.base / f"tree-{name}"
    tree.mkdir()
    fill(tree)
    argv = ["umoci", "insert", "--image", f"{layout}:latest", str(tree), "/bomb"]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    place.push_as_docker(layout, f"bomb/{name}:1")
    return place.image(f"bomb/{name}:1")


class AloneEnroot(Enroot):
    """enroot that asks for a digest itself, where an import has skopeo ask first."""

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the reference's own digest, or what skopeo says of a tag."""
        return reference.digest or super().resolve(reference, scratch, deadline)


def importer(place: Place, kind: str, identity: Identity, registry: str) -> Importer:
    """Return each importer in turn, for a registry without TLS."""
    if kind == "oci":
        return Oci(identity, (registry,))
    return AloneEnroot(identity, (registry,), str(place.enroot()))


@pytest.fixture
def site(place: Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return node n1's view of an empty store, with small caps."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    monkeypatch.setattr(making, "Caps", partial(Caps, files=SMALL.files))
    return place.site(place.new_store(name), rules=RULES._replace(max_size=SMALL.size))


def nothing_left(place: Place, site: Site) -> None:
    """Assert that an import left no file, mount, loop device or process on the node, and no image in the store."""
    assert place.left_in_scratch() == []
    assert str(place.base) not in Path("/proc/self/mountinfo").read_text()
    processes.wait_until("the loop devices", lambda: str(place.base) not in _loops(), 10)
    assert at_work(place, IMPORT) == []
    assert leftovers(Path(site.store.path)) == []
    assert [name for name in files(Path(site.store.path)) if "failed/" not in name] == []


def at_work(place: Place, name: str) -> list[int]:
    return processes_of(place.accounts[name].uid, place.base)


def _loops() -> str:
    return subprocess.run(["/sbin/losetup", "-a"], check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=["file system", "measured"])
def measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether this test simulates a node without loop devices."""
    if request.param == "measured":
        monkeypatch.setattr(scratch, "mount_loop_filesystem", lambda *_: False)
    return bool(request.param == "measured")


@pytest.mark.threat(11, 12)
@pytest.mark.parametrize("bomb", Bombs._fields)
@pytest.mark.parametrize("kind", IMPORTERS)
def test_a_bomb_ends_at_its_caps(
    place: Place, site: Site, bombs: Bombs, kind: str, bomb: str, *, measured: bool
) -> None:
    with slow(place, measured):
        _meets_its_caps(place, site, getattr(bombs, bomb), kind)


@contextmanager
def slow(place: Place, wanted: bool) -> Iterator[None]:
    """Slow enroot down after it has unpacked the layers, because files may come and go between two checks."""
    pause = place.enroot().with_name("pause")
    if wanted:
        pause.touch()
    yield
    pause.unlink(missing_ok=True)


def _meets_its_caps(place: Place, site: Site, reference: Reference, kind: str) -> None:
    made = importer(place, kind, place.identity(IMPORT), place.registry.url)
    hostile = site._replace(importer=lambda: made, recipe=f"{kind}1")
    with pytest.raises(ImageTooLarge, match="300 files"):
        making.obtain(reference, hostile, after(60))
    nothing_left(place, site)
    asked = place.registry.requests("GET", "/v2/bomb/")
    with pytest.raises(ImageTooLarge, match="300 files"):
        making.obtain(reference, hostile, after(60))
    assert place.registry.requests("GET", "/v2/bomb/") == asked


def test_what_fits_is_imported(place: Place, site: Site, bombs: Bombs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "Caps", Caps)
    roomy = site._replace(rules=RULES)
    assert making.obtain(bombs.files, roomy, after(60)).how == "imported"
    assert place.left_in_scratch() == []


@pytest.mark.parametrize("bomb", Bombs._fields)
@pytest.mark.parametrize("kind", IMPORTERS)
def test_a_users_own_import_has_the_same_caps(place: Place, bombs: Bombs, kind: str, bomb: str) -> None:
    account = place.accounts[ALICE]
    me = Identity(ALICE, account.uid, account.gid)
    os.chown(account.home, account.uid, account.gid)

    def as_alice() -> str:
        become(me)
        where = own_images.directory_of(str(account.home), "7.0", SMALL)
        own = importer(place, kind, me, place.registry.url)
        try:
            return own_images.obtain(getattr(bombs, bomb), where, own, "", after(60))
        except WarmstartError as error:
            return error.code

    with slow(place, wanted=True):
        assert result(in_child(as_alice)) == "image-too-large"
    assert [name for name in os.listdir(account.home / notes.FOLDER) if not name.endswith(".lock")] == []
    assert at_work(place, ALICE) == []


@pytest.mark.threat(12)
def test_a_full_disk_below_the_scratch_is_not_the_images_fault(
    place: Place, site: Site, bombs: Bombs, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsupported = ["/bin/sh", "-c", f"echo 60; exit {flatten.UNSUPPORTED}"]
    monkeypatch.setattr(flatten, "command", lambda *_: unsupported)  # the image is unpacked, which takes room
    small = place.base / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m,mode=0755", "none", str(small)], check=True)
    try:
        crowded = site._replace(workspace=str(small), rules=RULES)
        with pytest.raises(scratch.ScratchUnusable):
            making.obtain(bombs.size, crowded, after(60))
        assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert [name for name in files(Path(site.store.path)) if name.endswith(".sqsh")] == []


def own_address() -> str:
    """Return an address of this host that is not on loopback."""
    return subprocess.run(["hostname", "-I"], check=True, capture_output=True, text=True).stdout.split()[0]


@pytest.mark.threat(11, 35)
@pytest.mark.parametrize("network", [False, True])
def test_what_parses_layers_has_no_network(place: Place, *, network: bool) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        script = (
            f"for host in 127.0.0.1 {own_address()}; do"
            f" (exec 3<>/dev/tcp/$host/{port}) 2>/dev/null && echo reached; done; ls /proc | grep -c '^[0-9]'"
        )
        with scratch.opened(str(place.base / "workspace"), "r1", place.identity(IMPORT), CAPS) as work:
            ended = base.run(
                ["/bin/bash", "-c", script], reference=parse("reg.io/a"), scratch=work, deadline=after(20),
                identity=place.identity(IMPORT), env={"PATH": "/usr/bin:/bin"}, network=network,
            )  # fmt: skip
    *reached, processes_seen = ended.stdout.decode().split()
    assert reached == ["reached", "reached"] * network
    assert int(processes_seen) <= 6
