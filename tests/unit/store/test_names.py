"""Names of files count in quotas, and are bounded for each bundle, user and namespace (docs/threats.md, row 24)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, memory_file, namespace
from warmstart.errors import UserError
from warmstart.store import bundles, index, manifest
from warmstart.store.bundles import Published, QuotaExceeded
from warmstart.store.manifest import Draft, File

pytestmark = pytest.mark.threat(24)


def long_names(count: int, *, user: str = "a", mark: str = "") -> Draft:
    """Return a draft of entries whose names are almost as long as they may be, with one file each."""
    rest = f"/{'n' * 249}" * 4
    names = [f"{mark}{number:06d}{rest}" for number in range(count)]
    made = draft()
    entries = {name: {f"{name}.nbi": File(3, "ab" * 32, 17)} for name in names}
    return made._replace(producer=made.producer._replace(user=user), entries=entries)


def publish(store: Path, made: Draft, *, quota: int = 0, scope: str = "user-1") -> Published:
    with memory_file(os.urandom(8)) as fd:
        return bundles.publish_bundle(namespace(store, scope), fd, made, OWNER, quota)


def stored(store: Path) -> int:
    return sum(path.stat().st_size for path in (store / "artifacts/user-1").rglob("*") if path.is_file())


def test_names_count_in_the_quota(tmp_path: Path) -> None:
    with pytest.raises(QuotaExceeded):
        publish(tmp_path, long_names(100), quota=100_000)
    publish(tmp_path, long_names(100, mark="x"))
    with pytest.raises(QuotaExceeded) as raised:
        bundles.check_quota(str(tmp_path), "user-1", 1, 100_000)
    assert int(str(raised.value.fields["used"])) > 100_000
    bundles.check_quota(str(tmp_path), "user-1", 0, stored(tmp_path))
    with pytest.raises(QuotaExceeded):
        bundles.check_quota(str(tmp_path), "user-1", 1, stored(tmp_path))


def test_what_is_announced_to_the_quota_is_what_is_stored(tmp_path: Path) -> None:
    """Otherwise each bundle would pass the quota by what was not announced."""
    with pytest.raises(QuotaExceeded) as raised:
        publish(tmp_path, long_names(100), quota=1)
    announced = int(str(raised.value.fields["more"]))
    publish(tmp_path, long_names(100))
    assert announced == pytest.approx(stored(tmp_path), rel=0.01)


def test_a_bundle_with_too_many_names_is_refused(tmp_path: Path) -> None:
    """The attack: 147 KB of squashfs, 47.6 MB of manifest and index. Nothing of it stays."""
    with pytest.raises(UserError, match="the bundle would have") as raised:
        publish(tmp_path, long_names(16_000))
    assert raised.value.code == "harvest-too-large"
    assert stored(tmp_path) < 1000
    assert publish(tmp_path, long_names(100)).bundle


def with_cache(name: str, entry: str = "a") -> Draft:
    """Return a draft of a job that has given its caches a name."""
    return draft(entry)._replace(facts={"cpu": "x", "cache": name})


@pytest.mark.report
def test_a_thousand_names_of_caches_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MOST_NAMESPACES", 3)

    def publish_in(number: int, made: Draft, profile: str = "numba") -> Published:
        where = namespace(tmp_path)._replace(name=f"ns{number}", profile=profile)
        with memory_file(os.urandom(8)) as fd:
            return bundles.publish_bundle(where, fd, made, OWNER)

    for number in range(3):
        assert publish_in(number, with_cache(str(number))).bundle
    with pytest.raises(UserError, match=r"cache=3.*user-1 has 3 of numba") as raised:
        publish_in(3, with_cache("3"))
    assert raised.value.code == "harvest-too-large"
    assert not (tmp_path / "artifacts/user-1/numba/ns3").exists()
    assert publish_in(2, with_cache("2", "b")).bundle  # it is there
    assert publish_in(3, with_cache("3"), "triton").bundle
    assert publish_in(5, draft("a")).bundle


def test_a_full_harvest_of_ordinary_names_has_room() -> None:
    entry = "f" * 64
    weight = manifest.entry_weight(entry, [f"{entry}/{'k' * 60}.{suffix}" for suffix in ("json", "cubin")])
    assert 50_000 * weight < manifest.MOST_PER_BUNDLE


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_PER_USER", 100_000)
    monkeypatch.setattr(index, "MOST_PER_NAMESPACE", 250_000)


@pytest.mark.usefixtures("small")
def test_one_users_names_leave_room_for_the_others(tmp_path: Path) -> None:
    publish(tmp_path, long_names(40, user="m", mark="m"), scope="site")
    with pytest.raises(index.HarvestTooLarge, match="m's part of the namespace"):
        publish(tmp_path, long_names(40, user="m", mark="n"), scope="site")
    assert publish(tmp_path, long_names(40, mark="a"), scope="site").bundle
    publish(tmp_path, long_names(20, user="b", mark="b"), scope="site")
    with pytest.raises(index.HarvestTooLarge, match="the namespace would have"):
        publish(tmp_path, long_names(40, user="third", mark="t"), scope="site")


@pytest.mark.usefixtures("small")
def test_a_harvest_that_could_not_be_published_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user is over the bound, for example because two publishers were let in at once."""
    publish(tmp_path, long_names(40))
    monkeypatch.setattr(index, "MOST_PER_USER", 80_000)
    with pytest.raises(index.HarvestTooLarge):
        bundles.known_entries(namespace(tmp_path), OWNER, "a", 1000)
    assert bundles.known_entries(namespace(tmp_path), OWNER, "b", 1000)


@pytest.mark.usefixtures("small")
def test_a_bundle_that_replaces_others_is_let_in(tmp_path: Path) -> None:
    sources = [publish(tmp_path, long_names(20, mark=mark)).bundle or "" for mark in "ab"]
    merged = {**long_names(20, mark="a").entries, **long_names(20, mark="b").entries}
    made = draft()._replace(entries=merged, replaces=sources)
    with memory_file(b"merged") as fd:
        assert bundles.publish_compacted(namespace(tmp_path), fd, made, OWNER).bundle


def test_the_index_is_never_larger_than_what_its_bundles_weigh(tmp_path: Path) -> None:
    odd = {'"' * 200: {'"' * 201: File(10**18, "ab" * 32, 17)}, "b": {"b": File(0, "ab" * 32, 17)}}
    publish(tmp_path, draft()._replace(entries=odd, fresh=True))
    publish(tmp_path, draft("c"))
    found = index.read(namespace(tmp_path).path, OWNER)
    weights = sum(listed.weight for listed in found.bundles)
    assert (Path(namespace(tmp_path).path) / index.NAME).stat().st_size <= weights
    for path in Path(namespace(tmp_path).path).glob("2*.json"):
        assert path.stat().st_size <= manifest.weight(manifest.decode(path.stem, path.read_bytes())) + 512
