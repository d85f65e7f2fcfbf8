"""Layers, from a registry to one tree: in each form, few and many, bounded, with credentials that nothing else has."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lib.accounts import IMPORT
from tests.lib.image_place import Place
from tests.lib.image_site import CAPS
from tests.lib.layer_registry import LayerRegistry, layer, serving
from tests.lib.layer_stacks import SUFFIXES, Item, Tree, archive, random_stack, tree_of, write_layout
from tests.lib.slow_relay import slowed
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images import scratch
from warmstart.images.credentials import Login
from warmstart.images.importers import base as importers
from warmstart.images.importers import flatten, image_config, oci, oci_layout
from warmstart.images.importers.base import ImageMalformed, ImageNotForMachine, RegistryUnreachable
from warmstart.images.importers.oci import Oci
from warmstart.images.importers.unpacked import finish
from warmstart.images.reference import parse
from warmstart.images.scratch import Caps, ImageTooLarge

TWICE = [Item("d/f", content=b"old"), Item("d/f", content=b"new"), Item("l", "hardlink", target="d/f")]
IMPORTER = Identity("importer", 60001, 60001)
MOUNT_POINT = "/var/cache/warmstart"
DEPTHS = (2, 3, 5, 8, 13, 21, 34, 55, 89, 126)


@pytest.fixture
def registry() -> Iterator[LayerRegistry]:
    with serving() as made:
        yield made


def imported(place: Place, registry: LayerRegistry, layout: Path, to: Path) -> Tree:
    """Serve the image of a layout; return the tree that its import becomes."""
    identity, digest = place.identity(IMPORT), registry.add_layout(layout)
    reference = parse(f"{registry.url}/team/tool@{digest}")
    importer = Oci(identity, (registry.url,), mount_point=MOUNT_POINT)
    with scratch.opened(str(place.base / "workspace"), "r1", identity, CAPS) as work:
        name = importer.import_image(reference, digest, work, after(60))
        shutil.copy(f"{work.path}/{name}", f"{to}.sqsh")
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-d", to, f"{to}.sqsh"], check=True)
    return tree_of(to)


@pytest.mark.threat(45)
def test_unpacking_takes_no_longer_than_an_honest_image(
    place: Place, registry: LayerRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It walks a directory each time that a layer empties it, and keeps what the layer itself has put there."""
    files = [Item(f"d/{number}") for number in range(2500)]
    write_layout(tmp_path / "layout", [archive([*files, *[Item("d/.wh..wh..opq")] * 2500, *TWICE])])
    command = flatten.command
    read = ["/bin/sh", "-c", '"$@" >/dev/null; status=$?; echo 2; exit $status', "sh"]
    monkeypatch.setattr(flatten, "command", lambda *arguments: [*read, *command(*arguments)])
    with pytest.raises(ImageMalformed, match="more time than its size explains"):
        imported(place, registry, tmp_path / "layout", tmp_path / "tree")


@pytest.mark.parametrize(
    ("layers", "said", "kind", "fetched"),
    [
        pytest.param(1001, {}, ImageMalformed, False, marks=pytest.mark.threat(46)),
        (1, {"urls": ["https://example.com/layer"]}, ImageMalformed, False),
        (1, {"architecture": "s390x"}, ImageNotForMachine, True),
    ],
)
def test_an_image_of_which_none_can_be_made_is_refused(  # noqa: PLR0917 - a row of the table
    place: Place, registry: LayerRegistry, layers: int, said: dict[str, Any], kind: type[WarmstartError], fetched: bool
) -> None:
    """By what its manifest says, before a layer is fetched; by its configuration, which comes with the layers."""
    identity = place.identity(IMPORT)
    digest = registry.add_image([gzip.compress(archive([Item("f")]))] * layers, "1", **said)
    reference, before = parse(f"{registry.url}/team/tool@{digest}"), registry.sent
    with scratch.opened(str(place.base / "workspace"), "r2", identity, CAPS) as work, pytest.raises(kind):
        Oci(identity, (registry.url,)).import_image(reference, digest, work, after(60))
    assert (registry.sent > before) is fetched


def unpacked(layout: Path, to: Path) -> Tree:
    """Return the tree that umoci unpacks, as owners can read it."""
    umoci = ["umoci", "raw", "unpack", "--rootless", "--image", f"{layout}:import", str(to)]
    subprocess.run(umoci, check=True, capture_output=True)
    config = oci_layout.read(str(layout), "import").config
    finish(str(to), image_config.additions(config, MOUNT_POINT))
    return tree_of(to)


@pytest.mark.parametrize("depth", [0, 1, 40, 127, *(pytest.param(depth, marks=pytest.mark.sweep) for depth in DEPTHS)])
def test_each_form_becomes_the_tree_that_umoci_unpacks(
    place: Place, registry: LayerRegistry, tmp_path: Path, depth: int
) -> None:
    """Umoci 0.4.7 reads no zstd, so it unpacks the gzip twin. Without a depth: one that only umoci can unpack."""
    stack = random_stack(random.Random(depth), depth) if depth else [TWICE, [Item("d/g")]]
    archives = [archive(items) for items in stack]
    for form in SUFFIXES:
        write_layout(tmp_path / form, archives, form=form)
    expected = unpacked(tmp_path / "gzip", tmp_path / "umoci")
    for form in SUFFIXES:
        assert imported(place, registry, tmp_path / form, tmp_path / f"{form}-tree") == expected
    assert os.listdir(place.base / "workspace") == []


# How they are fetched.


@pytest.fixture(params=["a file system", "a directory"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give imports a file system of their own, or a directory that is measured."""
    if request.param == "a directory":
        monkeypatch.setattr(scratch, "mount_loop_filesystem", lambda *_: False)


def run_import(
    base: Path,
    registry: LayerRegistry,
    digest: str,
    make: Callable[[Identity, tuple[str, ...]], Oci] = Oci,
    caps: Caps = CAPS,
) -> list[tuple[str, int]]:
    told: list[tuple[str, int]] = []
    importer = make(IMPORTER, (registry.url,))
    with scratch.opened(str(base), "r1", IMPORTER, caps) as work:
        reference = parse(f"{registry.url}/team/tool@{digest}")
        name = importer.import_image(reference, digest, work, after(60), lambda *now: told.append(now))
        assert os.stat(name, dir_fd=work.fd).st_size > 0
    return told


def test_a_second_attempt_fetches_what_is_missing(
    registry: LayerRegistry, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers, "PAUSES_S", (0.0,))
    skopeo, parts = base / "skopeo", [layer(f"file{number}", 300_000) for number in range(3)]
    # The first copy has all layers, and then fails as if the registry had gone.
    skopeo.write_text(
        f'#!/bin/sh\n{oci.SKOPEO} "$@" || exit\ncase "$*" in *" copy "*) [ -e again ] || '
        "{ touch again; echo timeout >&2; exit 1; }; esac\n"
    )
    skopeo.chmod(0o755)
    monkeypatch.setattr(oci, "SKOPEO", str(skopeo))
    run_import(base, registry, registry.add_image(parts, "1"))
    assert sum(map(len, parts)) < registry.sent < sum(map(len, parts)) + 3000  # and the configuration, twice


@pytest.mark.threat(31)
def test_credentials_are_gone_before_a_layer_is_unpacked(
    registry: LayerRegistry, base: Path, monkeypatch: pytest.MonkeyPatch
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
    assert run_import(base, registry, image, importer)


def test_a_layer_larger_than_its_manifest_says(registry: LayerRegistry, base: Path) -> None:
    part = layer("file", 100_000)
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    with pytest.raises(ImageMalformed, match="another size than its manifest says"):
        run_import(base, registry, registry.add_image([part], "1", {digest: 100}))


@pytest.mark.usefixtures("disk")
def test_an_endless_layer_is_noticed_while_it_comes(registry: LayerRegistry, base: Path) -> None:
    part = layer("file", 8 << 20)
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    image = registry.add_image([part], "1", {digest: 100})
    registry.stop_after(6 << 20)
    with pytest.raises(ImageTooLarge):
        run_import(base, registry, image, caps=Caps(4 << 20, 100))


@pytest.mark.threat(46)
@pytest.mark.usefixtures("disk")
@pytest.mark.real_time
def test_a_registry_that_trickles_is_given_up(
    registry: LayerRegistry, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a little now and then, and would hold a slot of the node until the import's deadline."""
    monkeypatch.setattr(oci, "PACE_S", 1.0)
    monkeypatch.setattr(importers, "PAUSES_S", ())
    image = registry.add_image([layer("file", 8 << 20)], "1")
    registry.stop_after(1 << 20)
    with pytest.raises(RegistryUnreachable, match="too little"):
        run_import(base, registry, image)


@pytest.mark.usefixtures("disk")
@pytest.mark.real_time
def test_a_slow_registry_is_not_given_up(registry: LayerRegistry, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "PACE_S", 1.0)
    monkeypatch.setattr(oci, "LEAST_FETCHED", 1000)
    part = layer("file", 2 << 20)
    image = registry.add_image([part], "1")
    with slowed(registry.url, 400_000) as registry.url:
        told = run_import(base, registry, image)
    fetched = [done for phase, done in told if phase == "fetching"]
    assert len({*fetched}) > 3
    assert max(fetched) <= len(part)


def test_an_image_that_says_it_is_too_large_is_not_fetched(registry: LayerRegistry, base: Path) -> None:
    part = layer("file", 1000)
    digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
    with pytest.raises(ImageTooLarge):
        run_import(base, registry, registry.add_image([part], "1", {digest: CAPS.size + 1}))
    assert registry.sent == 0
