"""What a prolog asks of the store's caches: for all of a job's profiles, which layers to show. One question.

Of a namespace that one scope has anything in, the heads of the listings say all, however many entries there are. Names
of entries are read only where several scopes have some, or where not all rows can be shown. The layers of a narrower
scope lie on top: what a user's own jobs changed wins over what others share, and of a wider scope nothing is taken that
a narrower one names or hides. Runs as the store's owner. Hot path.
"""

from __future__ import annotations

import errno
import os

from warmstart.caches.store import generations
from warmstart.caches.store.layout import Namespace, is_sha256
from warmstart.caches.store.listing import Listing, Row
from warmstart.errors import StoreError
from warmstart.lean import NamedTuple
from warmstart.store.layout import is_plain_path, is_user_scope, store_errors


class Generation(NamedTuple):
    """One generation of a listing, which never changes."""

    number: int
    identity: str


class Want(NamedTuple):
    """What is wanted of one profile."""

    profile: str
    namespace: str
    at: dict[str, Generation] = {}  # noqa: RUF012 - by scope: these, and not the newest; never mutated
    most: int = 0  # layers that can be shown; 0: any number
    without: list[str] = []  # noqa: RUF012 - hashes of bundles that are not shown


class Layer(NamedTuple):
    """A bundle to show."""

    scope: str
    row: Row
    names: list[str] = []  # noqa: RUF012 - the entries to take from it, if names were read


class Found(NamedTuple):
    """What there is for one profile."""

    layers: list[Layer]  # topmost first
    hidden: list[str]  # paths to hide, where all of the layers are shown
    is_named: bool  # whether names were read: what to hide is then found by the files of the layers
    beyond: int  # layers that are left out because they are more than `most`
    listings: dict[str, Generation]  # by scope
    failed: dict[str, str]  # scopes whose listing cannot be read, with why; of the user's own nothing is known then


def look(store: str, scopes: list[str], wants: list[Want]) -> list[Found]:
    """Return what there is; `scopes` are ordered most trusted first, so the narrowest comes last.

    A missing namespace counts as empty. Raises `StoreFailed` if the store is not mounted.
    """
    found = [_found(store, scopes, want) for want in wants]
    if not any(one.layers for one in found):
        with store_errors("find the store"):
            if os.stat(store).st_uid != os.geteuid():  # its mount point is usually an empty directory of root's
                raise OSError(errno.ENODEV, "the store's owner does not own it; it may not be mounted", store)
    return found


def _found(store: str, scopes: list[str], want: Want) -> Found:
    failed: dict[str, str] = {}
    asked = [scope for scope in reversed(scopes) if not want.at or scope in want.at]
    there = _listings(store, asked, want, failed, named=False)
    known = {scope: Generation(listing.number, listing.identity) for scope, listing in there.items()}
    full = {scope: listing for scope, listing in there.items() if listing.rows or listing.hide}
    rows = sum(len(listing.rows) for listing in full.values())
    is_named = len(full) > 1 or bool(want.without) or 0 < want.most < rows
    if is_named:
        full = _listings(store, [*full], want._replace(at=known), failed, named=True)
    layers = [layer for layer in _layers(full, is_named) if layer.row.sha256 not in want.without]
    hidden = [] if is_named else [path for listing in full.values() for path in listing.hidden]
    most = want.most or len(layers)
    return Found(layers[:most], hidden, is_named, max(0, len(layers) - most), known, failed)


def _listings(store: str, scopes: list[str], want: Want, failed: dict[str, str], *, named: bool) -> dict[str, Listing]:
    there = {}
    for scope in scopes:
        where, at = Namespace(store, scope, want.profile, want.namespace), want.at.get(scope)
        try:
            there[scope] = generations.at(where, *at, named=named) if at else generations.read(where, named=False)
        except StoreError as error:
            failed[scope] = str(error)
    return there


def _layers(listings: dict[str, Listing], is_named: bool) -> list[Layer]:
    """Return the layers of listings, narrowest scope first."""
    layers: list[Layer] = []
    taken: set[str] = set()
    for scope, listing in listings.items():
        if not is_named:
            layers += [Layer(scope, row) for row in listing.rows]
            continue
        for row, names in zip(listing.rows, listing.names, strict=True):
            if new := [entry for entry in names if entry not in taken]:
                layers.append(Layer(scope, row, new))
        taken.update(listing.hide, *listing.names)
    return layers


def checked(found: list[Found], scopes: list[str], wants: list[Want]) -> list[Found]:
    """Return an answer if root can use it; raises `ValueError`. Hashes become names of files, `hidden` whiteouts."""
    if len(found) != len(wants):
        raise ValueError("not as many answers as questions")
    for one in found:
        for scope, row, _ in one.layers:
            if not is_sha256(row.sha256) or min(row.size, row.number) < 0 or scope not in scopes:
                raise ValueError(f"not a bundle: {row!a:.200}")
        if not all(map(is_plain_path, one.hidden)):
            raise ValueError("not a path to hide")
    return found


def own_failure(found: Found) -> str:
    """Return why the listing of the user's own scope cannot be read; "" if it can.

    What that hides in other scopes is not known then, and a job must not be given what it had removed.
    """
    return next((why for scope, why in found.failed.items() if is_user_scope(scope)), "")
