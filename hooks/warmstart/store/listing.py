"""The listing of a namespace in a guarded scope: the bundles that readers may take (docs/store-format.md).

    artifacts/<scope>/<profile>/<namespace>/<sha256>.listing   immutable

It is named by its hash, which the scope's guard says (`store.guards`), and has the hash of each bundle's manifest. So
whoever can write the store can remove a listing, and add nothing to it. Hot path of jobs that read such a scope.
"""

from __future__ import annotations

import errno
import os

from warmstart.host import wire
from warmstart.lean import NamedTuple, dumps
from warmstart.store import index
from warmstart.store.index import Listed
from warmstart.store.layout import Namespace, store_errors

FORMAT = 1
LISTING = ".listing"


class Listing(NamedTuple):
    """The bundles of one namespace."""

    bundles: list[Listed]  # oldest first
    manifests: dict[str, str]  # bundle → SHA-256 of its manifest, as it is in the store


def read(where: Namespace, sha256: str) -> Listing:
    """Return the listing of a namespace with this hash; raises `StoreFailed` if it is missing or another's."""
    with store_errors("read a listing", where.path):
        data = index.read_whole(os.path.join(where.path, sha256 + LISTING), index.LARGEST)
        if index.sha256_of(data) != sha256:
            raise OSError(errno.EBADMSG, "not what its name says", sha256 + LISTING)
        return decoded(data)


def decoded(data: bytes) -> Listing:
    """Return the listing that `encoded` made; raises `OSError` for anything else."""
    try:
        raw = wire.parse(data)
        if raw["format"] != FORMAT:
            raise OSError(errno.EBADMSG, f"its format is {raw['format']!r}, known is {FORMAT}")
        listing = Listing(
            [index.listed_row(row) for row in raw["bundles"]], wire.decode(dict[str, str], raw["manifests"])
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(errno.EBADMSG, "not a listing") from error
    if {listed.bundle for listed in listing.bundles} != listing.manifests.keys():
        raise OSError(errno.EBADMSG, "not a listing")
    return listing


def encoded(listing: Listing) -> str:
    """Return a listing as it is stored."""
    bundles = [listed._asdict() for listed in sorted(listing.bundles)]
    return dumps({"format": FORMAT, "bundles": bundles, "manifests": listing.manifests}, separators=(",", ":"))
