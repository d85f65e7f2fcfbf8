"""The form of signed lists: what is refused is of another form; and the listings that are written with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.bundles import OWNER, namespace, publish
from warmstart.store import index, listing
from warmstart.store.layout import StoreFailed
from warmstart.store.listing import Listing
from warmstart.wings.signing import stored
from warmstart.wings.signing.stored import Envelope, SignedList

LIST = SignedList(1, "ab" * 16, "site", 7, 1.0, 2.0, {"numba/ns": "cd" * 32})


def written(**changes: object) -> str:
    """Return the text of a list, with some fields changed."""
    return json.dumps({**LIST._asdict(), **changes})


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    """None while there is none; anything else is empty, which no key has stored."""
    (tmp_path / "artifacts").mkdir()
    assert stored.read(str(tmp_path), "site") is None
    stored.write(str(tmp_path), "site", Envelope(written(), "signature"), OWNER)
    there = stored.read(str(tmp_path), "site")
    assert there == Envelope(written(), "signature")
    assert stored.checked(there.text) == LIST
    for data in (b"", b"[]", b'{"text": 1, "signature": ""}', rb'{"text": "\ud800", "signature": ""}', b"[" * 100_000):
        (tmp_path / "artifacts/site/signed.json").unlink()
        (tmp_path / "artifacts/site/signed.json").write_bytes(data)
        assert stored.read(str(tmp_path), "site") == Envelope("", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"serial": "7"},
        {"namespaces": {"numba": "cd" * 32}},
        {"namespaces": {"numba/../x": "cd" * 32}},
        {"namespaces": {"numba/ns": "../../x"}},
        {"namespaces": []},
    ],
)
def test_a_list_of_another_form_is_none(changes: dict[str, object]) -> None:
    """Also one that was signed: another release may have made it."""
    with pytest.raises(ValueError, match=r"."):
        stored.checked(written(**changes))


def test_listings_are_written_and_the_last_ones_stay(tmp_path: Path) -> None:
    """Readers of the last list need them; the others go."""
    where = namespace(tmp_path, "site")
    made = publish(tmp_path, "a", scope="site")
    rows = index.read(where.path, "").bundles
    first, second = (
        stored.write_listing(where, OWNER, listing.encoded(Listing(rows, {str(made.bundle): sha256 * 32})))
        for sha256 in ("ef", "ab")
    )
    stored.remove_listings(where, [second])
    assert listing.read(where, second).bundles == rows
    with pytest.raises(StoreFailed):
        listing.read(where, first)
