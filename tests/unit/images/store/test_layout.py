"""The warm look-up: which image it finds, and what it takes for missing, old or broken."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.superblocks import image
from warmstart.images.reference import ImageReferenceInvalid, parse
from warmstart.images.store import layout
from warmstart.images.store.layout import Found

HEX = "ab" * 32
DIGEST = f"sha256:{HEX}"
KEY = layout.key_of("reg.io/team/tool:1")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one image, and a tag that points to it since a minute ago."""
    (tmp_path / "images" / "tags").mkdir(parents=True)
    (tmp_path / "images" / f"{HEX}.x86_64.sqsh").write_bytes(image())
    point(tmp_path, {"digest": DIGEST, "resolved": time.time() - 60})
    return tmp_path


def point(store: Path, pointer: object) -> None:
    (store / "images" / "tags" / f"{KEY}.json").write_text(json.dumps(pointer))


def find(store: Path, digest: str = "", machine: str = "x86_64", age: float = 600) -> Found | None:
    """Look the sample image up, accepting pointers up to `age` seconds old."""
    return layout.find(str(store), KEY, digest, machine, time.time() - age)


def test_finds_by_tag_and_by_digest(store: Path) -> None:
    path = f"{store}/images/{HEX}.x86_64.sqsh"
    expected = Found(f"{HEX}.x86_64", path, DIGEST, 4096, invalid="")
    assert find(store) == expected
    assert find(store, DIGEST) == expected


def test_the_pointers_own_time_decides(store: Path) -> None:
    os.utime(store / "images" / "tags" / f"{KEY}.json", (0, 0))
    assert find(store, age=70) is not None
    assert find(store, age=50) is None


@pytest.mark.parametrize(
    "pointer",
    [
        [],
        {},
        {"digest": DIGEST},
        {"digest": DIGEST, "resolved": "soon"},
        {"digest": "../../etc/passwd", "resolved": time.time()},
        {"digest": DIGEST, "resolved": time.time() + 100_000},
        {"digest": DIGEST, "resolved": None},
    ],
)
def test_a_damaged_pointer_is_none(store: Path, pointer: object) -> None:
    point(store, pointer)
    assert find(store) is None


def test_tells_what_is_wrong_with_an_image(store: Path) -> None:
    path = store / "images" / f"{HEX}.x86_64.sqsh"
    os.truncate(path, 2048)
    assert find(store) == Found(f"{HEX}.x86_64", str(path), DIGEST, 2048, invalid="cut short: 2048 of 3000 bytes")
    path.unlink()
    path.mkdir()
    found = find(store)
    assert found is not None
    assert found.invalid == "not a regular file"


def test_follows_no_links(store: Path) -> None:
    path = store / "images" / f"{HEX}.x86_64.sqsh"
    path.rename(store / "elsewhere")
    path.symlink_to(store / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        find(store)


@given(st.lists(st.from_regex(r"[a-z.]{1,9}(:[0-9]{1,4})?/[a-z0-9._/-]{1,9}(:\w{1,9})?", fullmatch=True), min_size=2))
def test_keys_are_file_names_and_differ(texts: list[str]) -> None:
    canonical = set()
    for text in texts:
        try:
            canonical.add(parse(text).canonical())
        except ImageReferenceInvalid:
            continue
    keys = {layout.key_of(name) for name in canonical}
    assert len(keys) == len(canonical)
    assert all("/" not in key and not key.startswith(".") for key in keys)
    assert {layout.reference_of(key) for key in keys} == canonical


def test_long_references_have_short_keys() -> None:
    first, second = f"reg.io/{'a' * 250}:1", f"reg.io/{'a' * 250}:2"
    assert len(layout.key_of(first)) < 100
    assert layout.key_of(first) != layout.key_of(second)
