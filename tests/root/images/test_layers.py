"""Layers that imports keep: fetched once, checked before they are used, bounded, and nobody else's."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import mounts, processes
from tests.support.image_place import in_child, result
from tests.support.image_site import CAPS
from tests.support.layer_registry import LayerRegistry, layer, serving
from tests.support.requirements import unavailable
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images import layers, scratch
from warmstart.images.credentials import Login
from warmstart.images.importers import base as importers
from warmstart.images.importers import flatten, oci
from warmstart.images.importers.base import ImageMalformed, Progress, RegistryUnreachable
from warmstart.images.importers.oci import Oci
from warmstart.images.layers import KeptLayers, Layer, LayerPlace
from warmstart.images.reference import parse
from warmstart.images.scratch import ImageTooLarge, ScratchUnusable

IMPORTER = Identity("importer", 60001, 60001)
GIB = 1 << 30


@pytest.fixture
def registry() -> Iterator[LayerRegistry]:
    """Return an empty registry; skip without the programs of the importer."""
    if not all(os.access(program, os.X_OK) for program in oci.PROGRAMS):
        unavailable("needs skopeo and umoci")
    with serving() as made:
        yield made


@pytest.fixture
def place(base: Path) -> LayerPlace:
    """Return a place for layers below a node's directory."""
    return LayerPlace(str(base / "n1" / "layers"), "repository", GIB)


def run_import(
    base: Path,
    registry: LayerRegistry,
    digest: str,
    place: LayerPlace | None,
    make: Callable[[Identity, tuple[str, ...]], Oci] = Oci,
) -> list[Progress]:
    """Import an image of `team/tool`; return what was reported."""
    told: list[Progress] = []
    importer = make(IMPORTER, (registry.url,))
    with scratch.opened(str(base), "n1", "r1", IMPORTER, CAPS) as work:
        reference = parse(f"{registry.url}/team/tool@{digest}")
        name = importer.import_image(reference, digest, work, after(60), kept=place, report=told.append)
        assert os.stat(name, dir_fd=work.fd).st_size > 0
    return told


def blobs(place: LayerPlace) -> Path:
    """Return the directory of a repository's blobs."""
    return Path(place.directory, place.repository, "layout", "blobs", "sha256")


def kept(place: LayerPlace) -> set[str]:
    """Return the digests of what is kept."""
    return {f"sha256:{path.name}" for path in blobs(place).iterdir()}


def descendants(pid: int) -> set[int]:
    """Return the live processes below a process."""
    found: set[int] = set()
    while below := processes.children(pid, *found) - found:
        found |= below
    return found


def have_ended(pids: set[int]) -> bool:
    """Return whether none of the processes lives."""
    return pids.isdisjoint(processes.parents())


# What is fetched


def test_no_layer_is_fetched_twice_however_often_the_import_is_killed(
    registry: LayerRegistry, base: Path, place: LayerPlace
) -> None:
    """SIGKILL at five points: what had arrived whole is never asked for again, and nothing unfinished stays."""
    parts = [layer(f"file{number}", 200_000) for number in range(12)]
    image = registry.add_image(parts, "1")
    digests = {f"sha256:{hashlib.sha256(part).hexdigest()}": len(part) for part in parts}
    here: set[str] = set()
    for point in range(1, 11, 2):
        missing = sum(size for digest, size in digests.items() if digest not in here)
        registry.stop_after(missing * point // 12)
        before = registry.gets.copy()
        child = in_child(partial(run_import, base, registry, image, place))
        assert registry.stopped.wait(30)
        processes.wait_until("what was sent", lambda: registry.whole <= kept(place), 30)
        started = descendants(child[0])
        os.kill(child[0], signal.SIGKILL)
        assert result(child) is None
        # Its skopeo lives a moment longer, and would fetch in the next round.
        processes.wait_until("its programs to end", partial(have_ended, started), 30)
        registry.resume()
        assert all(registry.gets[digest] == before[digest] for digest in here)
        here = kept(place) & digests.keys()
    assert here
    before = registry.gets.copy()
    run_import(base, registry, image, place)
    assert {digest for digest in digests if registry.gets[digest] > before[digest]} == digests.keys() - here
    assert sorted(os.listdir(blobs(place).parents[1])) == ["blobs", "index.json", "oci-layout"]
    assert os.listdir(base / "n1") == ["layers"]


def test_a_second_tag_costs_the_layers_that_differ(registry: LayerRegistry, base: Path, place: LayerPlace) -> None:
    """And one of the same layers costs none. The progress has the bytes of all layers."""
    shared = [layer(f"shared{number}", 300_000) for number in range(3)]
    own = layer("own", 100_000)
    first = registry.add_image(shared, "1")
    second = registry.add_image([*shared, own], "2")
    told = run_import(base, registry, first, place)
    assert {progress.phase for progress in told} >= {"fetching", "packing"}
    assert {progress.total for progress in told if progress.phase == "fetching"} == {sum(map(len, shared))}
    before, sent = registry.gets.copy(), registry.sent
    told = run_import(base, registry, second, place)
    assert "checking" in {progress.phase for progress in told}
    assert [digest for digest in kept(place) if registry.gets[digest] > before[digest] > 0] == []
    assert len(own) < registry.sent - sent < len(own) + 1000  # and its configuration
    sent = registry.sent
    run_import(base, registry, second, place)
    assert registry.sent - sent < 1000


def test_another_repository_and_a_node_that_keeps_none(registry: LayerRegistry, base: Path, place: LayerPlace) -> None:
    """They fetch for themselves."""
    part = layer("file", 300_000)
    image = registry.add_image([part], "1")
    for each in (place, place._replace(repository="other"), None):
        sent = registry.sent
        run_import(base, registry, image, each)
        assert registry.sent - sent > len(part)
    assert sorted(os.listdir(place.directory)) == ["other", "repository"]


@pytest.mark.threat(31)
def test_credentials_are_gone_before_a_layer_is_unpacked(
    registry: LayerRegistry, base: Path, place: LayerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that takes over what reads it finds none."""
    skopeo, command = base / "skopeo", flatten.command
    skopeo.write_text(f'#!/bin/sh\ntest -e auth.json && exec {oci.SKOPEO} "$@"\n')
    skopeo.chmod(0o755)
    check = ["/bin/sh", "-c", '! test -e auth.json && exec "$@"', "check"]
    monkeypatch.setattr(oci, "SKOPEO", str(skopeo))
    monkeypatch.setattr(flatten, "command", lambda *arguments: [*check, *command(*arguments)])
    image = registry.add_image([layer("file", 1000)], "1")
    importer = partial(Oci, login=Login(registry.url, "carol", "open-sesame"))
    assert run_import(base, registry, image, place, importer)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_layer_larger_than_its_manifest_says(
    registry: LayerRegistry, base: Path, place: LayerPlace, keeps: bool
) -> None:
    """Makes no image, however small it says that it is."""
    part = layer("file", 100_000)
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    with pytest.raises(ImageMalformed, match="another size than its manifest says"):
        run_import(base, registry, registry.add_image([part], "1", {digest: 100}), place if keeps else None)


def test_an_endless_layer_is_noticed_while_it_comes(
    registry: LayerRegistry, base: Path, place: LayerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the room of what its manifest says, and a little more."""
    monkeypatch.setattr(layers, "EXTRA", 1 << 20)
    part = layer("file", 8 << 20)
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    image = registry.add_image([part], "1", {digest: 100})
    registry.stop_after(4 << 20)
    with pytest.raises(ImageTooLarge):
        run_import(base, registry, image, place)


@pytest.mark.threat(46)
@pytest.mark.parametrize("keeps", [True, False])
def test_a_registry_that_trickles_is_given_up(
    registry: LayerRegistry, base: Path, place: LayerPlace, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """It sends a little now and then, and would hold a slot of the node until the import's deadline."""
    monkeypatch.setattr(oci, "PACE_S", 1.0)
    monkeypatch.setattr(importers, "PAUSES_S", ())
    image = registry.add_image([layer("file", 8 << 20)], "1")
    registry.stop_after(1 << 20)
    with pytest.raises(RegistryUnreachable, match="too little"):
        run_import(base, registry, image, place if keeps else None)


def test_a_registry_that_sends_more_than_it_says_is_given_up_as_well(
    registry: LayerRegistry, base: Path, place: LayerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the manifest speaks of is here, and the answer doesn't end."""
    monkeypatch.setattr(oci, "PACE_S", 1.0)
    monkeypatch.setattr(importers, "PAUSES_S", ())
    part = layer("file", 8 << 20)
    image = registry.add_image([part], "1", {f"sha256:{hashlib.sha256(part).hexdigest()}": 100})
    registry.stop_after(1 << 20)
    with pytest.raises(RegistryUnreachable, match="too little"):
        run_import(base, registry, image, place)


def test_an_image_that_says_it_is_too_large_is_not_fetched(
    registry: LayerRegistry, base: Path, place: LayerPlace
) -> None:
    """It fails before the first byte of it."""
    part = layer("file", 1000)
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    with pytest.raises(ImageTooLarge):
        run_import(base, registry, registry.add_image([part], "1", {digest: CAPS.size + 1}), place)
    assert registry.sent == 0


# What is used


@contextmanager
def opened(place: LayerPlace) -> Iterator[KeptLayers]:
    """Open the layers of a repository, which no other import has."""
    with layers.opened(place, IMPORTER, after(0), lambda: None) as found:
        assert found is not None
        yield found


def put(place: LayerPlace, content: bytes, age: float = 0.0) -> Layer:
    """Keep a layer, last used `age` seconds ago."""
    found = Layer(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))
    with opened(place):
        path = blobs(place) / found.name
        path.write_bytes(content)
        os.utime(path, (time.time() - age,) * 2)
    return found


def truncate(path: Path) -> None:
    """Leave what a download that was cut leaves."""
    os.truncate(path, 500)


def change(path: Path) -> None:
    """Poison a layer; its size stays."""
    path.write_bytes(b"evil" + path.read_bytes()[4:])


def lead_elsewhere(path: Path) -> None:
    """Make a link to a file with the right content."""
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to("../../elsewhere")


def make_fifo(path: Path) -> None:
    """Make what blocks whoever opens it."""
    path.unlink()
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    """Make a directory with something in it."""
    path.unlink()
    (path / "deep").mkdir(parents=True)


@pytest.mark.threat(31)
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("spoil", [truncate, change, lead_elsewhere, make_fifo, make_directory])
def test_only_what_the_manifest_says_is_used(place: LayerPlace, spoil: Callable[[Path], None], is_open: bool) -> None:
    """Anything else is removed, whether it was there before the import began or not; a whole layer beside it stays."""
    good, bad = put(place, b"good" * 1000), put(place, b"bad!" * 1000)
    if not is_open:
        spoil(blobs(place) / bad.name)
    with opened(place) as found:
        if is_open:
            spoil(blobs(place) / bad.name)
        assert found.check([good, bad], after(9), lambda _: None) == [good]
        assert not os.path.lexists(blobs(place) / bad.name)
        assert (blobs(place) / good.name).is_file()


def test_a_layer_with_another_name_is_not_used(place: LayerPlace) -> None:
    """It could be changed by that name."""
    good = put(place, b"good" * 1000)
    with opened(place) as found:
        os.link(blobs(place) / good.name, blobs(place).parent / "second")
        assert found.check([good], after(9), lambda _: None) == []


@pytest.mark.threat(31)
def test_what_programs_left_besides_layers_goes(place: LayerPlace) -> None:
    """Unfinished downloads, an index that names something else, links in the place of directories."""
    good = put(place, b"good" * 1000)
    layout = blobs(place).parents[1]
    (layout / "oci-put-blob123").write_bytes(b"x" * 1000)
    (layout / "index.json").write_text("{}")
    (layout / "blobs" / "sha512").symlink_to("/usr")
    (blobs(place) / "notes").touch()
    with opened(place):
        assert os.listdir(layout) == ["blobs"]
        assert os.listdir(layout / "blobs") == ["sha256"]
    assert kept(place) == {good.digest}
    blobs(place).rename(layout / "moved")
    blobs(place).symlink_to("../moved")
    with opened(place):
        assert blobs(place).is_dir()
        assert not blobs(place).is_symlink()
        assert blobs(place).stat().st_uid == IMPORTER.uid
    assert kept(place) == set()


# How much is kept, and for whom


def test_the_least_recently_used_layers_go(place: LayerPlace, base: Path) -> None:
    """Of all repositories; none that the import wants, even if its image is larger than the limit."""
    place = place._replace(limit=110_000)
    other = place._replace(repository="other")
    old, young = put(other, os.urandom(40_000), 300), put(other, os.urandom(40_000), 100)
    mine, future = put(place, os.urandom(40_000), 200), put(place, os.urandom(8192), -3600)
    with opened(place) as found:
        found.make_room([mine], 20_000)
        assert (kept(place), kept(other)) == ({mine.digest}, {young.digest})
        found.make_room([mine], 90_000)
        assert (kept(place), os.listdir(place.directory)) == ({mine.digest}, ["repository"])
        found.make_room()
        assert kept(place) == {mine.digest}
    assert {old.digest, future.digest}.isdisjoint(kept(place))
    layers.tidy(place.directory, 0)
    assert os.listdir(place.directory) == []


def test_a_full_disk_is_said_before_anything_is_fetched(base: Path, place: LayerPlace) -> None:
    """After everything else that is kept has gone: it is the node's matter."""
    with mounts.tmpfs(base / "small", size="8m") as small:
        place = LayerPlace(str(small / "n1" / "layers"), "repository", GIB)
        other = place._replace(repository="other")
        put(other, b"x" * (2 << 20))
        with opened(place) as found:
            found.make_room([], 6 << 20)
            assert os.listdir(place.directory) == ["repository"]
            with pytest.raises(ScratchUnusable):
                found.make_room([], 8 << 20)


def test_a_node_keeps_no_more_than_its_share_of_the_disk(base: Path) -> None:
    """Whatever the limit says."""
    with mounts.tmpfs(base / "small", size="8m") as small:
        place = LayerPlace(str(small / "n1" / "layers"), "repository", GIB)
        old, young = put(place, b"x" * (1 << 20), 100), put(place, b"y" * (3 << 19))
        layers.tidy(place.directory, GIB)
        assert kept(place) == {young.digest}
        assert old.digest != young.digest


def test_one_import_of_a_repository_at_a_time(place: LayerPlace) -> None:
    """The second waits, and goes on without when it has waited long enough; nobody removes what is in use."""
    told: list[str] = []
    good = put(place, b"good" * 1000)
    with opened(place):
        with layers.opened(place, IMPORTER, after(0.1), lambda: told.append("waiting")) as second:
            assert second is None
        (blobs(place).parents[1] / "oci-put-blob1").touch()
        layers.tidy(place.directory, 0)
        assert (blobs(place).parents[1] / "oci-put-blob1").exists()
    assert told == ["waiting"]
    assert kept(place) == {good.digest}


def test_an_import_account_that_changed_starts_anew(place: LayerPlace) -> None:
    """It could not write what the other one left."""
    put(place, b"good" * 1000)
    with layers.opened(place, Identity("next", 60002, 60002), after(0), lambda: None):
        assert kept(place) == set()
        assert blobs(place).stat().st_uid == 60002
