"""Names of the store and manifests: what is accepted, what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bundles import PRODUCER
from tests.support.runs import a_job
from warmstart.policy.match import scope_key
from warmstart.store import layout, manifest
from warmstart.store.layout import Namespace
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
    """What is decoded is what was encoded."""
    assert manifest.decode(BUNDLE, manifest.encode(A_MANIFEST)) == A_MANIFEST


def test_a_manifest_of_a_merged_bundle_says_where_each_entry_is_from() -> None:
    """Origins and what it replaces are written down, too, as the documentation has them."""
    origin = Origin(*PRODUCER, "site", BUNDLE)
    merged = A_MANIFEST._replace(origins={"a/k": origin}, replaces=[BUNDLE])
    data = manifest.encode(merged)
    assert manifest.decode(BUNDLE, data) == merged
    assert json.loads(data)["origins"]["a/k"] == {**PRODUCER._asdict(), "scope": "site", "bundle": BUNDLE}


def test_a_newer_format_is_refused_by_name() -> None:
    """The reason tells both formats, so that an admin knows what to upgrade."""
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
    """Whatever is wrong with it, it is one documented error and no bundle."""
    with pytest.raises(ManifestUnreadable):
        manifest.decode(BUNDLE, data)


@given(cut=st.integers(0, len(manifest.encode(A_MANIFEST)) - 1))
def test_no_part_of_a_manifest_is_one(cut: int) -> None:
    """A manifest that was cut anywhere is refused."""
    with pytest.raises(ManifestUnreadable):
        manifest.decode(BUNDLE, manifest.encode(A_MANIFEST)[:cut])


@pytest.mark.parametrize("path", ["a", "a/b.c", "m/f.<locals>.g-1.py311.nbi", "a b/c", "x" * 1024, "-rf", "a#b"])
def test_ordinary_paths_are_plain(path: str) -> None:
    """What tools really write can be published."""
    assert layout.is_plain_path(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/a", "a/", "a//b", ".", "a/./b", "..", "a/../b", " a", "a ", "#a", "a\\b"),
        *("a\nb", "a\tb", "ä", "\udcff", "x" * 1025, "a\n", "a\0b"),
    ],
)
def test_odd_paths_are_not(path: str) -> None:
    """Names that lead elsewhere, that a list of unsquashfs takes otherwise, or that nobody can print."""
    assert not layout.is_plain_path(path)


@given(st.integers(0, 4_000_000_000_000_000))
def test_a_bundle_id_tells_its_time(microseconds: int) -> None:
    """Time to id and back; the id has the documented form."""
    bundle = layout.bundle_id(microseconds, SHA)
    assert layout.is_bundle_id(bundle)
    assert layout.microseconds_of(bundle) == microseconds


@given(st.integers(0, 4_000_000_000_000_000), st.integers(1, 10**15))
def test_ids_sort_by_age(microseconds: int, later: int) -> None:
    """Whatever the hashes, the older bundle's id comes first."""
    assert layout.bundle_id(microseconds, "ff" * 32) < layout.bundle_id(microseconds + later, "00" * 32)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0", "é", ".hidden", "a" * 201])
def test_no_name_leads_out_of_the_store(name: str, tmp_path: Path) -> None:
    """A scope, profile or namespace that is not one plain name is a bug of the caller."""
    for parts in ((name, "p", "n"), ("s", name, "n"), ("s", "p", name)):
        with pytest.raises(ValueError, match="not a name"):
            _ = Namespace(str(tmp_path), *parts).path


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """An unmounted store must not turn into a directory of the node's own disk."""
    with pytest.raises(FileNotFoundError):
        layout.make_namespace(Namespace(str(tmp_path / "store"), "s", "p", "n"))
    assert list(tmp_path.iterdir()) == []


def test_artifacts_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Bundles of scope `user` can't be read on the shared file system by other users."""
    os.close(layout.make_namespace(Namespace(str(tmp_path), "s", "p", "n")))
    assert (tmp_path / "artifacts").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "artifacts/s/p/n").stat().st_mode & 0o7777 == 0o755


def test_a_scope_of_any_user_and_account_has_a_place(tmp_path: Path) -> None:
    """What the policy makes of a name with odd characters is a name of the layout: `user@domain` is a common one."""
    job = a_job(user="ann@example.com", account="équipe 7")
    for scope in ("user", "account", "site"):
        assert Namespace(str(tmp_path), scope_key(scope, job), "numba", "ns").path.startswith(str(tmp_path))
