"""Images of few and many layers, in each form that registries have them: one tree, and the one that umoci unpacks.

umoci 0.4.7 reads no zstd, so it unpacks the gzip twin.
"""

from __future__ import annotations

import gzip
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
from tests.lib.layer_registry import LayerRegistry, serving
from tests.lib.layer_stacks import SUFFIXES, Item, Tree, archive, random_stack, tree_of, write_layout
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.images import scratch
from warmstart.images.importers import flatten, image_config, oci_layout
from warmstart.images.importers.base import ImageMalformed, ImageNotForMachine
from warmstart.images.importers.oci import Oci
from warmstart.images.importers.unpacked import finish
from warmstart.images.reference import parse

TWICE = [Item("d/f", content=b"old"), Item("d/f", content=b"new"), Item("l", "hardlink", target="d/f")]
MOUNT_POINT = "/var/cache/warmstart"
DEPTHS = (2, 3, 5, 8, 13, 21, 34, 55, 89, 126)


def _of_depth(depth: int) -> list[list[Item]]:
    return random_stack(random.Random(depth), depth)


STACKS: dict[str, Callable[[], list[list[Item]]]] = {
    "1 layer": lambda: random_stack(random.Random(1), 1),
    "40 layers": lambda: random_stack(random.Random(2), 40),
    "127 layers": lambda: random_stack(random.Random(3), 127),
    "a name twice": lambda: [TWICE, [Item("d/g")]],
}
SWEPT = {f"{depth} layers": partial(_of_depth, depth) for depth in DEPTHS}
STACKS |= SWEPT


@pytest.fixture(scope="module")
def registry(place: Place) -> Iterator[LayerRegistry]:
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


@pytest.mark.parametrize("stack", [pytest.param(name, marks=[pytest.mark.sweep] * (name in SWEPT)) for name in STACKS])
def test_each_form_becomes_one_tree(place: Place, registry: LayerRegistry, tmp_path: Path, stack: str) -> None:
    archives = [archive(items) for items in STACKS[stack]()]
    for form in SUFFIXES:
        write_layout(tmp_path / form, archives, form=form)
    expected = unpacked(tmp_path / "gzip", tmp_path / "umoci")
    for form in SUFFIXES:
        assert imported(place, registry, tmp_path / form, tmp_path / f"{form}-tree") == expected
    assert os.listdir(place.base / "workspace") == []
