"""What maintenance decides, without doing it: which bundles are merged, which have to go, which are verified today."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bundles import OWNER, draft, namespace, publish
from warmstart.policy.compiled import Maintenance
from warmstart.repack import merge
from warmstart.seed import node_cache
from warmstart.store import blocklist, bundles, maintenance
from warmstart.store.blocklist import Block, BlocksUnreadable
from warmstart.store.bundles import PublishBlocked
from warmstart.store.index import Listed
from warmstart.store.layout import bundle_id, microseconds_of
from warmstart.store.maintenance import Bundle, Use

POLICY = Maintenance(keep=100, per_user=10, per_account=20, per_site=30)


def listed(age: int, *entries: str, user: str = "a", size: int = 1, replaces: tuple[str, ...] = ()) -> Listed:
    """Return a bundle of the index; a greater `age` is younger."""
    sha256 = hashlib.sha256(b"%d" % age).hexdigest()
    return Listed(bundle_id(age, sha256), sha256, size, dict.fromkeys(entries, 1), user, ord(user), list(replaces))


def bundle(name: str, used: float, size: int = 1, scope: str = "user-1-a") -> Bundle:
    """Return a bundle of the survey."""
    return Bundle(scope, "numba", "ns", name, hashlib.sha256(name.encode()).hexdigest(), size, 1, "a", used)


def test_only_first_publishers_entries_are_merged() -> None:
    """An entry that another user published first stays that user's, whatever the merged bundle's age."""
    found = [listed(1, "x", "y"), listed(2, "z", user="b"), listed(3, "z", "w"), listed(4, "x")]
    (merger,) = maintenance.mergers(found, 2, 1 << 30)
    assert merger.user == "a"
    assert merger.sources == [found[0].bundle, found[2].bundle, found[3].bundle]
    assert merger.entries == {found[0].bundle: ["x", "y"], found[2].bundle: ["w"]}


def test_what_was_merged_is_not_merged_again() -> None:
    """Sources that wait for their removal count for nothing."""
    old = [listed(number, f"e{number}") for number in (2, 3, 4)]
    new = listed(1, "e2", "e3", "e4", replaces=tuple(source.bundle for source in old))
    assert maintenance.mergers([new, *old], 2, 1 << 30) == []


def test_a_merged_bundle_has_bounds() -> None:
    """The small ones are merged; too few of them are left alone."""
    found = [listed(1, "a", size=9), listed(2, "b", size=4), listed(3, "c", size=5)]
    (merger,) = maintenance.mergers(found, 2, 10)
    assert merger.sources == [found[1].bundle, found[2].bundle]
    assert maintenance.mergers(found, 3, 10) == []


ROW = st.tuples(st.sets(st.sampled_from("pqrstu"), min_size=1), st.sampled_from("ab"))


@given(st.lists(ROW, min_size=1, max_size=8))
def test_merging_never_changes_what_a_reader_gets(rows: list[tuple[set[str], str]]) -> None:
    """Each entry comes from the bundle that it came from before, be it through a merged one."""
    found = [listed(10 * age, *sorted(entries), user=user) for age, (entries, user) in enumerate(rows, 1)]
    lying = [(one.bundle, dict.fromkeys(one.entries, one.bundle)) for one in found]
    before = read(lying)
    for merger in maintenance.mergers(found, 2, 1 << 30):
        made = bundle_id(microseconds_of(min(merger.sources)) - 1, "0" * 64)
        lying.append((made, {entry: source for source, entries in merger.entries.items() for entry in entries}))
    assert read(lying) == before


def read(lying: list[tuple[str, dict[str, str]]]) -> dict[str, str]:
    """Return where a reader has each entry from, who takes it from the oldest bundle."""
    taken: dict[str, str] = {}
    for _, entries in sorted(lying, key=lambda one: one[0]):
        taken = {**entries, **taken}
    return taken


def test_unused_bundles_go_first_then_the_least_used_of_a_scope() -> None:
    """Each scope has its own limit; nobody's excess costs another's bundles."""
    found = [
        *(bundle("unused", 0), bundle("older", 150, 6), bundle("newer", 160, 6), bundle("other", 120, 9, "user-2-b")),
        *(bundle("team", 120, 19, "account-t"), bundle("all", 130, 31, "site")),
    ]
    going = {one.bundle.bundle: one.reason for one in maintenance.expired(found, POLICY, 200)}
    assert going == {
        "unused": maintenance.UNUSED,
        "older": "its scope is close to maintenance.per_user",
        "all": "its scope is close to maintenance.per_site",
    }


def test_every_bundle_is_verified_once_in_thirty_days() -> None:
    """Chosen by hash and day alone."""
    found = [bundle(str(number), 0) for number in range(200)]
    days = Counter(one.bundle for day in range(1000, 1030) for one in found if merge.is_due(one, day))
    assert set(days.values()) == {1}
    assert len(days) == 200


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2, "blocks": []}', '{"format": 1, "blocks": [{"who": 1}]}']
)
def test_a_list_of_blocks_that_is_damaged_blocks_everything(tmp_path: Path, text: str) -> None:
    """Nothing is offered and nothing published until it is written anew; an empty list is no damage."""
    publish(tmp_path, "a")
    path = tmp_path / "artifacts" / blocklist.NAME
    path.write_text(text)
    with pytest.raises(BlocksUnreadable):
        bundles.offers(str(tmp_path), ["user-1"], "numba", "ns", OWNER)
    with pytest.raises(BlocksUnreadable):
        publish(tmp_path, "b")
    assert blocklist.unblock_all(str(tmp_path))
    publish(tmp_path, "b", content=b"2")


def test_what_is_blocked_is_not_harvested_or_published(tmp_path: Path) -> None:
    """A blocked entry counts as known; a blocked user's or namespace's bundle is refused with a reason."""
    publish(tmp_path, "a")
    store = str(tmp_path)
    assert blocklist.block(store, Block(profile="numba", entry="bad"), OWNER)
    assert bundles.known_entries(namespace(tmp_path), "a", 1000, OWNER) == ["a", "bad"]
    assert blocklist.block(store, Block(profile="numba", namespace="ns"), OWNER)
    with pytest.raises(PublishBlocked, match="namespace ns"):
        publish(tmp_path, "b")
    found = bundles.offers(store, ["user-1"], "numba", "ns", OWNER)
    assert found == bundles.Offers([], {"*": "the namespace is blocked"})
    assert blocklist.unblock(store, Block(profile="numba", namespace="ns", reason="another"), OWNER)
    blocklist.block(store, Block(user="1000"), OWNER)
    with pytest.raises(PublishBlocked, match="user a"):
        bundles.known_entries(namespace(tmp_path), "a", 1000, OWNER)


def test_the_survey_tells_the_last_use_and_uses_are_noted_once_a_day(tmp_path: Path) -> None:
    """A bundle id that is none leads nowhere; an older use changes nothing."""
    made = publish(tmp_path, "a").bundle or ""
    path = Path(namespace(tmp_path).path, f"{made}.sqsh")
    os.utime(path, (1_000_000, 1_000_000))
    use = Use("user-1", "numba", "ns", made, 1_050_000.0)
    assert maintenance.note_uses(str(tmp_path), [use, use._replace(bundle="../../x", at=9e9)]) == 0
    assert maintenance.note_uses(str(tmp_path), [use._replace(at=1_200_000.0), use._replace(at=1_200_001.0)]) == 1
    (row,) = maintenance.survey(str(tmp_path), OWNER)
    assert (row.bundle, row.used, row.user) == (made, 1_200_000.0, "a")


def test_a_bundle_of_which_a_source_is_gone_is_not_published(tmp_path: Path) -> None:
    """It was quarantined or removed meanwhile: what was made of it must not bring it back."""
    gone = publish(tmp_path, "a", content=b"1").bundle or ""
    left = publish(tmp_path, "b", content=b"2").bundle or ""
    maintenance.quarantine(namespace(tmp_path), gone, OWNER)
    fd = os.memfd_create("merged")
    made = bundles.publish_compacted(namespace(tmp_path), fd, draft("a", "b")._replace(replaces=[gone, left]), OWNER)
    os.close(fd)
    assert made.bundle is None


def test_the_stores_own_directories_are_swept(tmp_path: Path) -> None:
    """A temporary file after a day, an answer after a week; nothing else, and nothing that is younger."""
    publish(tmp_path, "a")
    (tmp_path / "rendezvous").mkdir()
    (tmp_path / "rendezvous" / "c.7.0.json").touch()
    (tmp_path / "artifacts" / ".tmp-n1-dead").touch()
    (tmp_path / "artifacts" / blocklist.NAME).touch()
    now = time.time()
    assert maintenance.sweep_top(str(tmp_path), now + 80_000) == []
    assert maintenance.sweep_top(str(tmp_path), now + 90_000) == ["artifacts/.tmp-n1-dead"]
    assert maintenance.sweep_top(str(tmp_path), now + 700_000) == ["rendezvous/c.7.0.json"]
    assert (tmp_path / "artifacts" / blocklist.NAME).exists()


def test_where_nothing_is_there_is_nothing_to_do(tmp_path: Path) -> None:
    """A node without copies or spool, a store without artifacts."""
    assert node_cache.prune(str(tmp_path / "none"), str(tmp_path / "layers"), 1, 0.0) == 0
    assert node_cache.uses(str(tmp_path / "none")) == []
    assert maintenance.survey(str(tmp_path), OWNER) == []
    assert os.listdir(tmp_path) == []
