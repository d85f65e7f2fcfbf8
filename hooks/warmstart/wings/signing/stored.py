"""The signed list of a scope (docs/wings/signing.md), and what is written with it. Runs as the store's owner.

    artifacts/<scope>/signed.json       replaced: the list as text, and its signature

The list names the listing of each namespace by its hash (`store.listing`). Whoever can write the store can remove all
of that, and add nothing to it. Every identity uses the types. Nothing here believes a signature: `lists` checks it. Hot
path of jobs that read such a scope.
"""

from __future__ import annotations

import os

from warmstart.host import wire
from warmstart.host.files import opened_dir
from warmstart.lean import NamedTuple, dumps
from warmstart.store import bundles, index, manifest
from warmstart.store.bundles import Published
from warmstart.store.index import Listed
from warmstart.store.layout import ARTIFACTS, Namespace, is_component, store_errors
from warmstart.store.listing import LISTING
from warmstart.store.manifest import Draft, is_sha256

FORMAT = 1
NAME = "signed.json"
LARGEST = 4 << 20  # bytes of a list: 100 for each namespace


class SignedList(NamedTuple):
    """What the holder of the key has signed. Times are in seconds since the epoch, by that host's clock."""

    format: int
    store: str  # the store's id
    scope: str
    serial: int  # a list replaces those of lower serials
    made: float
    expires: float
    namespaces: dict[str, str]  # PROFILE/NAMESPACE → SHA-256 of its listing


class Envelope(NamedTuple):
    """A list as it is stored."""

    text: str  # JSON of a `SignedList`: the signed bytes
    signature: str  # as `ssh-keygen -Y sign` writes it


class ToSign(NamedTuple):
    """A bundle that a list is to name, as its publisher knows it: the store is not asked again."""

    published: Published
    listed: Listed
    manifest: str  # SHA-256 of its manifest


def of(profile: str, namespace: str) -> str:
    """Return the name of a namespace in a list."""
    return f"{profile}/{namespace}"


def read(store: str, scope: str) -> Envelope | None:
    """Return the list of a scope, None if there is none; raises `StoreFailed`. One of another form is empty."""
    with store_errors("read the signed list"):
        try:
            data = index.read_whole(os.path.join(store, ARTIFACTS, scope, NAME), LARGEST)
        except FileNotFoundError:
            return None
    return _envelope(data)


def _envelope(data: bytes) -> Envelope:
    try:
        envelope = wire.from_object(Envelope, wire.parse(data))
        (envelope.text + envelope.signature).encode()  # JSON can name surrogates, which are no text
        return envelope
    except ValueError:
        return Envelope("", "")


def write(store: str, scope: str, envelope: Envelope, writer: str) -> None:
    """Replace the list of a scope; raises `StoreFull` or `StoreFailed`."""
    from warmstart.host.files import ensure_dir
    from warmstart.store.atomic import replace

    with store_errors("write the signed list"), opened_dir(os.path.join(store, ARTIFACTS)) as top:
        ensure_dir(scope, 0o755, top)
        with opened_dir(scope, top) as fd:
            replace(fd, writer, NAME, dumps(envelope._asdict()).encode())


def write_listing(where: Namespace, writer: str, text: str) -> str:
    """Store a listing; return its hash. Raises `StoreFull` or `StoreFailed`."""
    from warmstart.store.atomic import replace

    sha256 = index.sha256_of(text.encode())
    with store_errors("write a signed listing", where.path), opened_dir(where.path) as fd:
        replace(fd, writer, sha256 + LISTING, text.encode())
    return sha256


def remove_listings(where: Namespace, keep: list[str]) -> None:
    """Remove listings of a namespace but those with the hashes `keep`; raises `StoreFailed`."""
    with store_errors("remove old listings", where.path), opened_dir(where.path) as fd:
        for name in os.listdir(fd):
            stem = name.removesuffix(LISTING)
            if stem != name and is_sha256(stem) and stem not in keep:
                os.unlink(name, dir_fd=fd)


def publish(where: Namespace, fd: int, draft: Draft, writer: str) -> ToSign:
    """Publish the squashfs of the inherited descriptor `fd`, for a list to name; errors as `bundles.publish_bundle`.

    What else is in the namespace counts for nothing: any node can have written it.
    """
    published, made = bundles.publish_as(
        where, fd, draft, writer, lambda new, *_: index.with_youngest_id(new, index.Index([], {}))
    )
    if made is None:
        raise ValueError("a bundle without an id")
    return ToSign(published, index.listed_of(made), index.sha256_of(manifest.encode(made)))


def checked(text: str) -> SignedList:
    """Return the list of a text whose signature holds; raises `ValueError` if it is of another form."""
    made = wire.from_object(SignedList, wire.parse(text))
    if made.format != FORMAT:
        raise ValueError(f"its format is {made.format}, known is {FORMAT}")
    for name, sha256 in made.namespaces.items():
        profile, slash, namespace = name.partition("/")
        if not (slash and is_component(profile) and is_component(namespace) and is_sha256(sha256)):
            raise ValueError(f"not a namespace: {name!a}")
    return made
