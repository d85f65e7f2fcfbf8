"""Which bundles are merged, and that readers get the same entries afterwards."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib import packed
from tests.lib.alone import run_alone
from warmstart.host import process, untrusted
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed
from warmstart.host.identity import Identity
from warmstart.repack import rewrite
from warmstart.store import maintenance
from warmstart.store.client import StoreClient
from warmstart.store.index import Listed
from warmstart.store.layout import Namespace, bundle_id, microseconds_of
from warmstart.store.manifest import MOST_PER_BUNDLE

ME = Identity("me", os.getuid(), os.getgid())


def listed(
    age: int, *entries: str, user: str = "a", size: int = 1, replaces: tuple[str, ...] = (), weight: int = 0
) -> Listed:
    """Return a bundle of the index; a greater `age` is younger."""
    sha256 = hashlib.sha256(b"%d" % age).hexdigest()
    made = Listed(bundle_id(age, sha256), sha256, size, dict.fromkeys(entries, 1), user, ord(user), list(replaces))
    return made._replace(weight=weight)


def test_a_merged_bundle_has_bounds() -> None:
    found = [listed(1, "a", size=9), listed(2, "b", size=4), listed(3, "c", size=5)]
    (merger,) = maintenance.mergers(found, 2, 10)
    assert merger.sources == [found[1].bundle, found[2].bundle]
    assert maintenance.mergers(found, 3, 10) == []


@pytest.mark.threat(24)
def test_what_no_bundle_may_name_is_not_merged() -> None:
    found = [listed(age, f"e{age}", size=age, weight=MOST_PER_BUNDLE // 3) for age in (1, 2, 3, 4)]
    (merger,) = maintenance.mergers(found, 2, 1 << 30)
    assert merger.sources == [found[0].bundle, found[1].bundle]


ROW = st.tuples(st.sets(st.sampled_from("pqrstu"), min_size=1), st.sampled_from("ab"))


@given(st.lists(ROW, min_size=1, max_size=8))
def test_merging_never_changes_what_a_reader_gets(rows: list[tuple[set[str], str]]) -> None:
    found = [listed(10 * age, *sorted(entries), user=user) for age, (entries, user) in enumerate(rows, 1)]
    lying = [(one.bundle, dict.fromkeys(one.entries, one.bundle)) for one in found]
    before = read(lying)
    for merger in maintenance.mergers(found, 2, 1 << 30):
        made = bundle_id(microseconds_of(min(merger.sources)) - 1, "0" * 64)
        lying.append((made, {entry: source for source, entries in merger.entries.items() for entry in entries}))
    assert read(lying) == before


def read(lying: list[tuple[str, dict[str, str]]]) -> dict[str, str]:
    """Return for each entry the bundle from which a reader takes it: the oldest that has it."""
    taken: dict[str, str] = {}
    for _, entries in sorted(lying, key=lambda one: one[0]):
        taken = {**entries, **taken}
    return taken


def test_a_node_that_cannot_read_what_it_unpacked_says_nothing_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(process, "run_alone", run_alone)
    where = Namespace(str(tmp_path), "user-1", "numba", "ns")
    bundle = packed.publish(tmp_path, where, {"e": {"e.nbi": b"x"}}).bundle
    assert bundle
    with StoreClient(ME, where.store, "n1-test") as store:
        settings = rewrite.RepackSettings(str(tmp_path / "stage"), store, ME)
        assert rewrite.verify(settings, where, bundle, after(20)) == ""
        monkeypatch.setattr(untrusted, "mount_id", fails)
        with pytest.raises(DiskFailed):
            rewrite.verify(settings, where, bundle, after(20))
