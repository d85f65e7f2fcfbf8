"""TileLang's kernels: the files of the manifest, byte for byte."""

from __future__ import annotations

import pytest

from tests.lib.built_entries import SOURCES, TILE, tile, tile_manifest
from tests.lib.judging import Judge


@pytest.mark.parametrize(
    "files",
    [
        tile(SOURCES),
    ],
)
def test_whole_entries_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """In the form that the tool writes."""
    assert verdict("tilelang", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({f"{TILE}/params.json": b"{}"}, "incomplete"),
        (tile(SOURCES | {"params.json": b'{"x": [2]}'}), "hash-differs"),
        (tile(SOURCES | {"params.json": b""}), "hash-differs"),
        (tile({"params.json": SOURCES["params.json"]}), "incomplete"),
        (tile(SOURCES | {"extra.json": b"{}"}), "unexpected-file"),
        (tile(SOURCES, tile_manifest(SOURCES, version=2)), "field-malformed"),
        (tile(SOURCES, tile_manifest(SOURCES, files={})), "field-malformed"),
        (tile({"a.json": b""}, tile_manifest({}, files={"a.json": "sha256"})), "field-malformed"),
        (tile({"k.so": b"x"}, tile_manifest({"k.so": b"x"})), "elf-truncated"),
    ],
)
def test_what_the_tool_would_stumble_on_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """Files that are missing or too many, hashes that differ, manifests of another form."""
    assert verdict("tilelang", files) == reason
