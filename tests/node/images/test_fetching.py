"""How imports fetch layers: bounded, by a registry that keeps its word, with credentials that nothing else sees."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lib.image_site import CAPS
from tests.lib.layer_registry import LayerRegistry, layer, serving
from tests.lib.requirements import unavailable
from tests.lib.slow_relay import slowed
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images import scratch
from warmstart.images.credentials import Login
from warmstart.images.importers import base as importers
from warmstart.images.importers import flatten, oci
from warmstart.images.importers.base import ImageMalformed, RegistryUnreachable
from warmstart.images.importers.oci import Oci
from warmstart.images.reference import parse
from warmstart.images.scratch import Caps, ImageTooLarge

IMPORTER = Identity("importer", 60001, 60001)


@pytest.fixture
def registry() -> Iterator[LayerRegistry]:
    """Return an empty registry; skip without the programs of the importer."""
    if not all(os.access(program, os.X_OK) for program in oci.PROGRAMS):
        unavailable("needs skopeo and umoci")
    with serving() as made:
        yield made


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
def test_a_registry_that_trickles_is_given_up(
    registry: LayerRegistry, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci, "PACE_S", 1.0)
    monkeypatch.setattr(importers, "PAUSES_S", ())
    image = registry.add_image([layer("file", 8 << 20)], "1")
    registry.stop_after(1 << 20)
    with pytest.raises(RegistryUnreachable, match="too little"):
        run_import(base, registry, image)


@pytest.mark.usefixtures("disk")
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
