"""The signed list of a scope, and what it names (docs/operations/signing.md, docs/store-format.md).

    artifacts/<scope>/signed.json                              replaced: the list as text, and its signature
    artifacts/<scope>/<profile>/<namespace>/<sha256>.listing   immutable: the bundles of one namespace

The list names each listing by its hash, and a listing each bundle and each manifest by theirs. Whoever can write the
store can remove all of that, and add nothing to it. Every identity uses the types; only the store's owner creates and
reads the files. Nothing here believes a signature: `store.verify` checks it. Hot path of jobs that read such a scope.
"""

from __future__ import annotations

import errno
import os

from warmstart.host import wire
from warmstart.host.files import opened_dir
from warmstart.lean import NamedTuple, dumps
from warmstart.policy.compiled import Trust
from warmstart.store import index
from warmstart.store.index import Listed
from warmstart.store.layout import ARTIFACTS, Namespace, is_component, store_errors
from warmstart.store.manifest import is_sha256

FORMAT = 1
NAME = "signed.json"
LISTING = ".listing"
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


class Listing(NamedTuple):
    """The bundles of one namespace."""

    bundles: list[Listed]  # oldest first
    manifests: dict[str, str]  # bundle → SHA-256 of its manifest, as it is in the store


def is_signed(scope: str, trust: Trust) -> bool:
    """Return whether the policy asks for a signed list of a scope; `scope` is the name of its directory."""
    return scope.partition("-")[0] in trust.signed


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


def read_listing(where: Namespace, sha256: str) -> Listing:
    """Return the listing of a namespace with this hash; raises `StoreFailed` if it is missing or another's."""
    with store_errors("read a signed listing", where.path):
        data = index.read_whole(os.path.join(where.path, sha256 + LISTING), index.LARGEST)
        if index.sha256_of(data) != sha256:
            raise OSError(errno.EBADMSG, "not what was signed", sha256 + LISTING)
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
