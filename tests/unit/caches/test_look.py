"""What a prolog is told of the store's caches: layers in order, names only where they are needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.caches.store import bundles, generations, look
from warmstart.caches.store.bundles import Draft
from warmstart.caches.store.layout import File, Namespace, content_digest
from warmstart.caches.store.look import Found, Generation, Layer, Want
from warmstart.caches.store.merge import Removal
from warmstart.store.layout import StoreFailed

SITE, USER = "site", "user-1"
SCOPES = [SITE, USER]
WANT = Want("numba", "ns")


class Store:
    """A store whose bundles are small and unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def where(self, scope: str) -> Namespace:
        return Namespace(self.path, scope, "numba", "ns")

    def publish(self, *entries: str, scope: str = USER, fresh: bool = False, removal: Removal = Removal()) -> str:  # noqa: B008
        fd = os.memfd_create("bundle")
        os.write(fd, os.urandom(20))
        files = {entry: {f"{entry}/{os.urandom(2).hex()}": File(1, "ab" * 32, 0)} for entry in entries}
        draft = Draft("a", 1, 7, files, fresh=fresh, removal=removal)
        made = bundles.publish(self.where(scope), "n1", fd if entries else None, draft, 0)
        os.close(fd)
        return made.sha256

    def look(self, want: Want = WANT) -> Found:
        (found,) = look.checked(look.look(self.path, SCOPES, [want]), SCOPES, [want])
        return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def taken(found: Found) -> list[tuple[str, str, list[str]]]:
    return [(layer.scope, layer.row.sha256, sorted(layer.names)) for layer in found.layers]


def test_of_one_scope_the_head_says_all(store: Store) -> None:
    first, second = store.publish("a", "b"), store.publish("b", "c", fresh=True)
    found = store.look()
    assert (taken(found), found.is_named, found.beyond) == ([(USER, second, []), (USER, first, [])], False, 0)
    assert [layer.row.number for layer in found.layers] == [2, 1]
    assert [path.partition("/")[0] for path in found.hidden] == ["b"]
    head = generations.read(store.where(USER), named=False)
    assert found.listings == {USER: Generation(head.number, head.identity), SITE: Generation(0, "")}


def test_a_narrower_scope_lies_on_top_and_wins(store: Store) -> None:
    shared = store.publish("a", "b", "c", scope=SITE)
    own = store.publish("b", "d")
    assert taken(store.look()) == [(USER, own, ["b", "d"]), (SITE, shared, ["a", "c"])]
    assert store.look().hidden == []
    store.publish(removal=Removal({}, ["a"]))
    assert taken(store.look()) == [(USER, own, ["b", "d"]), (SITE, shared, ["c"])]


def test_what_a_user_hides_is_hidden_without_bundles_of_their_own(store: Store) -> None:
    shared = store.publish("a", "b", scope=SITE)
    store.publish("x")
    held = bundles.entries(store.where(USER), store.look().layers[0].row.sha256)
    store.publish(removal=Removal({"x": content_digest(held["x"])}, ["a"]))
    assert taken(store.look()) == [(SITE, shared, ["b"])]


def test_more_than_can_be_shown_are_left_out_by_name(store: Store) -> None:
    made = [store.publish(name) for name in "abc"]
    found = store.look(WANT._replace(most=2))
    assert (taken(found), found.beyond) == ([(USER, made[0], ["a"]), (USER, made[1], ["b"])], 1)
    found = store.look(WANT._replace(without=[made[0]]))
    assert (taken(found), found.is_named) == ([(USER, made[1], ["b"]), (USER, made[2], ["c"])], True)


def test_a_generation_that_is_named_is_what_is_shown(store: Store) -> None:
    first = store.publish("a")
    listings = store.look().listings
    store.publish("b")
    assert taken(store.look(WANT._replace(at=listings))) == [(USER, first, [])]
    gone = {USER: Generation(1, "cd" * 32)}
    found = store.look(WANT._replace(at=gone))
    assert (found.layers, [*found.failed]) == ([], [USER])


def test_what_cannot_be_read_is_told_by_scope(store: Store) -> None:
    shared = store.publish("a", scope=SITE)
    store.publish("b")
    (listing,) = Path(store.where(USER).path, "listing").glob("0*")
    listing.chmod(0o666)
    found = store.look()
    assert (taken(found), [*found.failed], bool(look.own_failure(found))) == ([(SITE, shared, [])], [USER], True)


def test_nothing_published_and_no_store_are_not_the_same(store: Store) -> None:
    assert store.look() == Found([], [], False, 0, dict.fromkeys((USER, SITE), Generation(0, "")), {})
    with pytest.raises(StoreFailed):
        look.look(f"{store.path}/away", SCOPES, [WANT])


@pytest.mark.threat(6)
@pytest.mark.parametrize("change", [{"scope": "site-2"}, {"sha256": "../../x"}, {"size": -1}, {"hidden": "../x"}])
def test_an_answer_names_no_path_and_no_scope_of_others(store: Store, change: dict[str, object]) -> None:
    """Root uses the hash as a file's name on the node, and makes whiteouts."""
    store.publish("a")
    found = store.look()
    (layer,) = found.layers
    if "hidden" in change:
        found = found._replace(hidden=[str(change["hidden"])])
    elif "scope" in change:
        found = found._replace(layers=[Layer("site-2", layer.row)])
    else:
        found = found._replace(layers=[layer._replace(row=layer.row._replace(**change))])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a"):
        look.checked([found], SCOPES, [WANT])
    with pytest.raises(ValueError, match="not as many"):
        look.checked([], SCOPES, [WANT])
