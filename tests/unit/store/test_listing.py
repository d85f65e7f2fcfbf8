"""Listings of guarded scopes: what is refused is of another form, or not what its name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bundles import OWNER, namespace, publish
from warmstart.store import bundles, index, listing
from warmstart.store.layout import StoreFailed
from warmstart.store.listing import LISTING, Listing


def test_a_listing_is_what_its_name_says(tmp_path: Path) -> None:
    """Its offers have the hash of their manifest; a listing that was changed, or is gone, is none."""
    where = namespace(tmp_path, "site")
    made = publish(tmp_path, "a", "b", scope="site")
    publish(tmp_path, "c", scope="site")
    listed = index.read(where.path, "").bundles[0]
    text = listing.encoded(Listing([listed], {str(made.bundle): "ef" * 32}))
    sha256 = index.sha256_of(text.encode())
    path = Path(where.path) / f"{sha256}{LISTING}"
    path.write_text(text)
    (offer,) = bundles.offers(str(tmp_path), ["site"], "numba", "ns", OWNER, {"site": sha256}).offers
    assert (offer.entries, offer.whole, offer.manifest) == (["a", "b"], True, "ef" * 32)
    assert bundles.offers(str(tmp_path), ["site"], "numba", "ns", OWNER, {"site": ""}).offers == []
    path.write_text(text.replace('"a"', '"x"'))
    refused = bundles.offers(str(tmp_path), ["site"], "numba", "ns", OWNER, {"site": sha256})
    assert (refused.offers, "not what its name says" in refused.refused["site/*"]) == ([], True)
    path.unlink()
    with pytest.raises(StoreFailed):
        listing.read(where, sha256)


@pytest.mark.parametrize(
    "text", ['{"format": 2, "bundles": [], "manifests": {}}', '{"format": 1, "bundles": [], "manifests": {"x": "y"}}']
)
def test_a_listing_of_another_form_is_none(text: str) -> None:
    """Each bundle has the hash of its manifest."""
    with pytest.raises(OSError, match=r"format|listing"):
        listing.decoded(text.encode())
