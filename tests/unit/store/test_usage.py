"""Quotas of scopes when something is published; what maintenance does about them is in test_upkeep_decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bundles import OWNER, draft, namespace, publish
from warmstart.policy.compiled import Maintenance
from warmstart.store import bundles
from warmstart.store.bundles import Published, QuotaExceeded

RULES = Maintenance(keep=1, per_user=10, per_account=20, per_site=30)


def publish_within(store: Path, quota: int, *entries: str) -> Published:
    """Publish a bundle of 10 bytes."""
    with (store / "bundle").open("w+b", buffering=0) as file:
        file.write(b"0123456789")
        return bundles.publish_bundle(namespace(store), file.fileno(), draft(*entries), OWNER, quota)


def test_the_last_byte_is_let_in_and_the_next_is_not(tmp_path: Path) -> None:
    """All namespaces of the scope count, none of another scope; a refused bundle leaves nothing behind."""
    publish(tmp_path, "theirs", scope="site", content=b"x" * 1000)
    publish_within(tmp_path, 20, "a")
    assert publish_within(tmp_path, 20, "b").bundle
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(QuotaExceeded, match="scope user-1 has 20 bytes of the 20"):
        publish_within(tmp_path, 20, "c")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert publish_within(tmp_path, 0, "c").bundle  # no quota


def test_a_bundle_that_is_larger_than_all_of_it(tmp_path: Path) -> None:
    """It is refused in an empty scope, too."""
    with pytest.raises(QuotaExceeded):
        publish_within(tmp_path, 9, "a")


def test_a_harvest_is_spared_where_nothing_more_may_come(tmp_path: Path) -> None:
    """The question for what is known says so before a byte is copied."""
    publish_within(tmp_path, 0, "a")
    where = (namespace(tmp_path), "a", 1000, OWNER)
    assert bundles.known_entries(*where, quota=11) == ["a"]
    with pytest.raises(QuotaExceeded):
        bundles.known_entries(*where, quota=10)


def test_what_is_no_bundle_does_not_count(tmp_path: Path) -> None:
    """Indexes, temporary files, quarantined bundles and strangers' names."""
    publish_within(tmp_path, 0, "a")
    folder = Path(namespace(tmp_path).path)
    (folder / ".tmp-x").write_bytes(b"x" * 100)
    (folder / "no-id.sqsh").write_bytes(b"x" * 100)
    (folder / "quarantine").mkdir()
    (folder.parent / "file").write_bytes(b"x" * 100)
    bundles.check(str(tmp_path), "user-1", 10, 20)
    with pytest.raises(QuotaExceeded):
        bundles.check(str(tmp_path), "user-1", 11, 20)


@pytest.mark.parametrize(("scope", "most"), [("user-7-a", 10), ("account-ml", 20), ("site", 30)])
def test_each_kind_of_scope_has_its_own(scope: str, most: int) -> None:
    """As the policy says."""
    assert bundles.quota(scope, RULES) == most
