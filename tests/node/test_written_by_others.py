"""A store that others could write: what they put there is in no job (docs/threats.md, row 6)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib import image_site
from tests.lib.bundles import memory_file, namespace, publish
from tests.lib.superblocks import image
from warmstart.caches.store import bundles, generations
from warmstart.caches.store.bundles import BundleDamaged
from warmstart.caches.store.layout import BUNDLE, FILES, LISTING
from warmstart.images.store import layout, published
from warmstart.store.layout import StoreFailed

pytestmark = [pytest.mark.threat(6), pytest.mark.usefixtures("capable_host")]

HEX = "ab" * 32
OTHER = 65534


def foreign(path: Path) -> None:
    """Put a copy of another user's in the place of a file, as who can write its directory can."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    os.chown(copy, OTHER, OTHER)
    copy.rename(path)


def writable(path: Path) -> None:
    path.chmod(0o666)


SPOILT: list[Callable[[Path], None]] = [foreign, writable]


@pytest.mark.parametrize("spoil", SPOILT)
def test_an_image_of_somebody_elses_is_none(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    images = tmp_path / "images"
    (images / layout.TAGS).mkdir(parents=True)
    path = images / f"{HEX}.{image_site.KIND}.sqsh"
    path.write_bytes(image())
    pointer = images / layout.TAGS / "key.json"
    pointer.write_text(f'{{"digest": "sha256:{HEX}", "resolved": 1.0}}')

    def find(digest: str = "") -> layout.Found | None:
        return layout.find(str(tmp_path), "key", digest, image_site.KIND, 0.0)

    found = find()
    assert found is not None
    assert found.invalid == ""
    spoil(path)
    found = find(f"sha256:{HEX}")
    assert found is not None
    assert found.invalid in (f"belongs to uid {OTHER}", "can be written by others")
    spoil(pointer)
    assert find() is None


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("what", ["files", "squashfs", "listing"])
def test_a_bundle_of_somebody_elses_is_in_no_job(tmp_path: Path, spoil: Callable[[Path], None], what: str) -> None:
    made, where = publish(tmp_path, "a"), namespace(tmp_path)
    names = {"files": made.sha256 + FILES, "squashfs": made.sha256 + BUNDLE, "listing": f"{LISTING}/{made.number:08}"}
    spoil(Path(where.path, names[what]))
    match = r"belongs to uid|can be written by others"
    if what == "listing":
        with pytest.raises(StoreFailed, match=match):
            generations.read(where)
        return
    with memory_file(b"") as fd, pytest.raises((BundleDamaged, StoreFailed), match=match):
        bundles.fetch(where, made.sha256, made.size, fd)


@pytest.mark.parametrize("spoil", SPOILT)
def test_such_an_image_makes_room_for_a_new_one(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    images = tmp_path / "images"
    images.mkdir()
    name = f"{HEX}.{image_site.KIND}"
    path = images / f"{name}.sqsh"
    path.write_bytes(image())
    assert not published.put_away(str(tmp_path), name)
    assert path.exists()
    spoil(path)
    assert published.put_away(str(tmp_path), name)
    assert not path.exists()
