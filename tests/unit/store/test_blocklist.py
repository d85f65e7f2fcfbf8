"""What is blocked is neither offered nor published, and a damaged list blocks everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bundles import OWNER, namespace, publish
from warmstart.store import blocklist, bundles
from warmstart.store.blocklist import Block, BlocksUnreadable
from warmstart.store.bundles import PublishBlocked


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2, "blocks": []}', '{"format": 1, "blocks": [{"who": 1}]}']
)
def test_a_list_of_blocks_that_is_damaged_blocks_everything(tmp_path: Path, text: str) -> None:
    """Nothing is offered or published until the list is rewritten; an empty list is not damaged."""
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
    assert bundles.known_entries(namespace(tmp_path), OWNER, "a", 1000) == ["a", "bad"]
    assert blocklist.block(store, Block(profile="numba", namespace="ns"), OWNER)
    with pytest.raises(PublishBlocked, match="namespace ns"):
        publish(tmp_path, "b")
    found = bundles.offers(store, ["user-1"], "numba", "ns", OWNER)
    assert found == bundles.Offers([], {"*": "the namespace is blocked"})
    assert blocklist.unblock(store, Block(profile="numba", namespace="ns", reason="another"), OWNER)
    blocklist.block(store, Block(user="1000"), OWNER)
    with pytest.raises(PublishBlocked, match="user a"):
        bundles.known_entries(namespace(tmp_path), OWNER, "a", 1000)
