"""Manifests: which are accepted and which are refused."""

import json
from typing import Any

import pytest

from tests.lib.bundles import PRODUCER
from warmstart.store import layout, manifest
from warmstart.store.manifest import File, Manifest, ManifestUnreadable, Origin

SHA = "ab" * 32


BUNDLE = layout.bundle_id(1_700_000_000_123_456, SHA)


A_MANIFEST = Manifest(
    BUNDLE, SHA, 4096, 1_700_000_000.123456, "user-1", "numba", "ns",
    producer=PRODUCER,
    facts={"cpu": "x"},
    entries={"a/k": {"a/k.nbi": File(3, SHA, 17), "a/k.nbc": File(0, SHA, 18), "a/other": File(1, SHA, 19)}},
)  # fmt: skip


def changed(**changes: Any) -> bytes:  # noqa: ANN401
    """Return the sample manifest's JSON with some top-level keys changed."""
    return json.dumps(json.loads(manifest.encode(A_MANIFEST)) | changes).encode()


@pytest.mark.threat(24)
def test_a_file_that_begins_as_its_entry_is_written_without() -> None:
    assert json.loads(manifest.encode(A_MANIFEST))["entries"] == {
        "a/k": {"/.nbc": [0, SHA, 18], "/.nbi": [3, SHA, 17], "a/other": [1, SHA, 19]}
    }


def test_a_manifest_of_a_merged_bundle_says_where_each_entry_is_from() -> None:
    origin = Origin(*PRODUCER, "site", BUNDLE)
    merged = A_MANIFEST._replace(origins={"a/k": origin}, replaces=[BUNDLE])
    data = manifest.encode(merged)
    assert manifest.decode(BUNDLE, data) == merged
    assert json.loads(data)["origins"]["a/k"] == {**PRODUCER._asdict(), "scope": "site", "bundle": BUNDLE}


def test_what_a_newer_release_added_is_ignored() -> None:
    bundle = json.loads(changed())["bundle"]
    added = changed(extra=1, producer=PRODUCER._asdict() | {"more": 1})
    assert manifest.decode(bundle, added) == manifest.decode(bundle, changed())


@pytest.mark.threat(6)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 200_000,
        b"\xff\xfe",
        changed(bundle="20250101T000000.000000Z-0000000000000000"),
        changed(sha256="AB" * 32),
        changed(sha256=7),
        changed(size=-1),
        changed(size="big"),
        changed(entries={"a/k": {}}),
        changed(entries={"a/k": {"../k": [1, SHA, 1]}}),
        changed(entries={"a/k": {"//../../k": [1, SHA, 1]}}),
        changed(entries={"a\nb": {"k": [1, SHA, 1]}}),
        changed(entries={entry: {"k": [1, SHA, 1]} for entry in ("a", "b")}),
        *(changed(entries={"a": {"/": json.loads(file)}}) for file in ("[]", "[1, 2]", "{}", "7", '"abc"', "null")),
        *(changed(entries={"a": {"/": [size, SHA, 1]}}) for size in (-1, "1", 1.5, True)),
        *(changed(entries={"a": {"/": [1, sha256, 1]}}) for sha256 in ("AB" * 32, 1)),
        *(changed(entries={"a": {"/": [1, SHA, mtime_ns]}}) for mtime_ns in (-1, 10**30, "1", 0.5)),
        *(changed(producer=PRODUCER._asdict() | wrong) for wrong in ({"uid": "7"}, {"user": None})),
        changed(producer={"user": "a", "uid": 1}),
        changed(producer=list(PRODUCER)),
        changed(facts={"cpu": 7}),
        changed(origins={"a/k": PRODUCER._asdict()}),
        changed(replaces=["../x"]),
        changed(entries=[1]),
        changed(entries={"a": 7}),
    ],
)
def test_damaged_and_foreign_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestUnreadable):
        manifest.decode(BUNDLE, data)
