"""The form of signed lists and of listings: what is refused is of another form, or not what its name says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.bundles import OWNER, namespace, publish
from warmstart.policy.compiled import Trust
from warmstart.store import bundles, index, signed
from warmstart.store.layout import StoreFailed
from warmstart.store.signed import Envelope, Listing, SignedList

LIST = SignedList(1, "ab" * 16, "site", 7, 1.0, 2.0, {"numba/ns": "cd" * 32})


def written(**changes: object) -> str:
    """Return the text of a list, with some fields changed."""
    return json.dumps({**LIST._asdict(), **changes})


@pytest.mark.parametrize(
    ("scope", "wanted"), [("site", True), ("account-x", False), ("user-1-site", False), ("sites", False)]
)
def test_which_scopes_are_signed(scope: str, wanted: bool) -> None:
    """By the kind of the scope."""
    assert signed.is_signed(scope, Trust("claimed", "claimed", ("site",))) is wanted


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    """None while there is none; anything else is empty, which no key has signed."""
    (tmp_path / "artifacts").mkdir()
    assert signed.read(str(tmp_path), "site") is None
    signed.write(str(tmp_path), "site", Envelope(written(), "signature"), OWNER)
    there = signed.read(str(tmp_path), "site")
    assert there == Envelope(written(), "signature")
    assert signed.checked(there.text) == LIST
    for data in (b"", b"[]", b'{"text": 1, "signature": ""}', rb'{"text": "\ud800", "signature": ""}', b"[" * 100_000):
        (tmp_path / "artifacts/site/signed.json").unlink()
        (tmp_path / "artifacts/site/signed.json").write_bytes(data)
        assert signed.read(str(tmp_path), "site") == Envelope("", "")


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
        signed.checked(written(**changes))


def test_a_listing_is_what_its_name_says(tmp_path: Path) -> None:
    """Its offers have the hash of their manifest; a listing that was changed, or is gone, is none."""
    where = namespace(tmp_path, "site")
    made = publish(tmp_path, "a", "b", scope="site")
    publish(tmp_path, "c", scope="site")
    listed = index.read(where.path, "").bundles[0]
    text = signed.encoded(Listing([listed], {str(made.bundle): "ef" * 32}))
    sha256 = signed.write_listing(where, OWNER, text)
    (offer,) = bundles.offers(str(tmp_path), ["site"], "numba", "ns", OWNER, {"site": sha256}).offers
    assert (offer.entries, offer.whole, offer.manifest) == (["a", "b"], True, "ef" * 32)
    assert bundles.offers(str(tmp_path), ["site"], "numba", "ns", OWNER, {"site": ""}).offers == []
    path = Path(where.path) / f"{sha256}.listing"
    path.chmod(0o644)
    path.write_text(text.replace('"a"', '"x"'))
    refused = bundles.offers(str(tmp_path), ["site"], "numba", "ns", OWNER, {"site": sha256})
    assert (refused.offers, "not what was signed" in refused.refused["site/*"]) == ([], True)
    signed.remove_listings(where, [])
    with pytest.raises(StoreFailed):
        signed.read_listing(where, sha256)


@pytest.mark.parametrize(
    "text", ['{"format": 2, "bundles": [], "manifests": {}}', '{"format": 1, "bundles": [], "manifests": {"x": "y"}}']
)
def test_a_listing_of_another_form_is_none(text: str) -> None:
    """Each bundle has the hash of its manifest."""
    with pytest.raises(OSError, match=r"format|listing"):
        signed.decoded(text.encode())
