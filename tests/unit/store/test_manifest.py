"""Manifests: which are accepted and which are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bundles import PRODUCER
from warmstart.store import layout, manifest
from warmstart.store.manifest import File, Manifest, ManifestUnreadable, Origin

SHA = "ab" * 32


BUNDLE = layout.bundle_id(1_700_000_000_123_456, SHA)


A_MANIFEST = Manifest(
    *(BUNDLE, SHA, 4096, 1_700_000_000.123456, "user-1", "numba", "ns"),
    producer=PRODUCER,
    facts={"cpu": "x"},
    entries={"a/k": {"a/k.nbi": File(3, SHA, 17), "a/k.nbc": File(0, SHA, 18)}},
)


def changed(**changes: Any) -> bytes:  # noqa: ANN401
    """Return the sample manifest's JSON with some top-level keys changed."""
    return json.dumps(json.loads(manifest.encode(A_MANIFEST)) | changes).encode()


def test_a_manifest_survives_being_written_down() -> None:
    """Decoding returns what was encoded."""
    assert manifest.decode(BUNDLE, manifest.encode(A_MANIFEST)) == A_MANIFEST


def test_a_manifest_of_a_merged_bundle_says_where_each_entry_is_from() -> None:
    """Origins and replaced bundles are written, too, as documented."""
    origin = Origin(*PRODUCER, "site", BUNDLE)
    merged = A_MANIFEST._replace(origins={"a/k": origin}, replaces=[BUNDLE])
    data = manifest.encode(merged)
    assert manifest.decode(BUNDLE, data) == merged
    assert json.loads(data)["origins"]["a/k"] == {**PRODUCER._asdict(), "scope": "site", "bundle": BUNDLE}


def test_a_newer_format_is_refused_by_name() -> None:
    """The message names both formats, so that an administrator knows what to upgrade."""
    with pytest.raises(ManifestUnreadable, match="its format is 2, known is 1"):
        manifest.decode(BUNDLE, changed(format=2, something="new"))


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
        changed(extra=1),
        changed(entries={"a/k": {"files": {}}}),
        changed(entries={"a/k": {"files": {"../k": {"size": 1, "sha256": SHA, "mtime_ns": 1}}}}),
        changed(entries={"a\nb": {"files": {"k": {"size": 1, "sha256": SHA, "mtime_ns": 1}}}}),
        changed(entries={e: {"files": {"k": {"size": 1, "sha256": SHA, "mtime_ns": 1}}} for e in ("a", "b")}),
        *(
            changed(entries={"a": {"files": {"a": {"size": 1, "sha256": SHA, "mtime_ns": 1} | wrong}}})
            for wrong in (
                *({"size": -1}, {"size": "1"}, {"size": 1.5}, {"size": True}, {"sha256": "AB" * 32}, {"sha256": 1}),
                *({"mtime_ns": -1}, {"mtime_ns": 10**30}, {"mtime_ns": "1"}, {"mtime_ns": 0.5}),
            )
        ),
        *(changed(producer=PRODUCER._asdict() | wrong) for wrong in ({"uid": "7"}, {"user": None}, {"more": 1})),
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
    """Whatever is wrong with a manifest, the error is `manifest-unreadable`."""
    with pytest.raises(ManifestUnreadable):
        manifest.decode(BUNDLE, data)


@given(cut=st.integers(0, len(manifest.encode(A_MANIFEST)) - 1))
def test_no_part_of_a_manifest_is_one(cut: int) -> None:
    """A truncated manifest is refused, wherever it was cut."""
    with pytest.raises(ManifestUnreadable):
        manifest.decode(BUNDLE, manifest.encode(A_MANIFEST)[:cut])
