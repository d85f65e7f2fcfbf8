"""The form of a listing: which bundles readers of a namespace take, and which entries of each.

A generation is a text of lines, immutable once it has a name (generations.py):

    <SHA-256 of the next line>                             its identity
    {"number", "base", "content", "rows", "hidden", …}     what a prolog needs; `content` is the hash of the rest
    [[entry, …], [entry, …]]                               for each row: what readers take of it, and what else it has

So a prolog that shows all rows of one listing reads two lines, however many entries there are, and knows that they are
what was written. These rules hold (merge.py keeps them):

- Rows are in the order of an overlay's layers, topmost first. An entry is taken from the topmost row whose bundle has
  it, or from none. So each entry is among the names of one row at most.
- `hidden` are the paths that an overlay of all rows must hide: of an entry, in whatever rows, all that its row lacks.
  Nothing that readers take is among them, or below one of them. They may be more than there is, of rows that left.

Pure. Hot path.
"""

from __future__ import annotations

from warmstart.caches.store.layout import Damaged, is_sha256, sealed, unsealed
from warmstart.errors import StoreError, UserError
from warmstart.host import wire
from warmstart.host.wire import Json
from warmstart.lean import NamedTuple, dumps, sha256
from warmstart.store.layout import is_plain_path

FORMAT = 1
LARGEST = 16 << 20  # bytes: who writes holds all of it in memory, and jobs choose the names (docs/threats.md, row 24)
MOST_OF_USER = LARGEST // 2  # of names of one user's rows, in a scope that several publish to
LINES_OF_HEAD = 2
_SHORT = 255  # bytes of a path of which no part can be too long


class OfOtherFormat(StoreError):
    """A listing is of a format that this release does not know."""

    code = "listing-of-other-format"
    template = "the listing of {where} is of format {found}, known is {known}"
    hint = "upgrade warmstart on this node"


class HarvestTooLarge(UserError):
    """A harvest would take more of every reader's memory, of the store or of names than one user's jobs may."""

    code = "harvest-too-large"
    template = "{problem}"
    hint = "the next job compiles what is missing; fewer entries or shorter names; maintenance removes what is not used"


class Row(NamedTuple):
    """A bundle in a listing."""

    sha256: str  # of the squashfs file
    size: int  # of the squashfs file, bytes
    number: int  # of the entries that readers take from it
    user: str  # name of the user whose job made it
    uid: int
    job: int
    at: int  # seconds since the epoch, the publisher's clock


class Listing(NamedTuple):
    """One generation of a namespace's listing; `names` and `lost` are empty if only its head was read."""

    number: int = 0  # 0: nothing was published yet
    identity: str = ""
    base: str = ""  # identity of the generation from which it was made
    rows: list[Row] = []  # noqa: RUF012 - never mutated, like the rest
    hidden: list[str] = []  # noqa: RUF012 - paths; none is below another
    hide: list[str] = []  # noqa: RUF012 - of a user's scope: entries that are not taken from wider scopes
    names: list[list[str]] = []  # noqa: RUF012 - of each row: the entries that readers take
    lost: list[list[str]] = []  # noqa: RUF012 - of each row: the other entries of its bundle


def encode(listing: Listing) -> tuple[Listing, bytes]:
    """Return a listing with its identity, and its text. Raises `HarvestTooLarge` if readers accept no such text."""
    content = b"".join(b"\n" + _line(lines) for lines in zip(listing.names, listing.lost, strict=True))
    head = {**listing._asdict(), "format": FORMAT, "content": sha256(content).hexdigest()}
    for field in ("identity", "names", "lost"):
        del head[field]
    text = sealed(_line(head)) + content
    if len(text) > LARGEST:
        problem = f"its namespace's listing would have {len(text)} bytes of names; {LARGEST} are allowed"
        raise HarvestTooLarge(problem=problem)
    return listing._replace(identity=text[:64].decode()), text


def _line(value: Json) -> bytes:
    return dumps(value, separators=(",", ":")).encode()


def decode(data: bytes, where: str, *, named: bool) -> Listing:
    """Return a listing, whole or by its first lines. Raises `Damaged`, and `OfOtherFormat` if it is whole but unknown.

    `where` is for errors.
    """
    identity, _, below = data.partition(b"\n")
    head, _, _ = below.partition(b"\n")
    try:
        raw = wire.parse(unsealed(identity + b"\n" + head))
        found = raw["format"]
        if found != FORMAT:
            raise OfOtherFormat(where=where, found=ascii(found)[:20], known=FORMAT)
        listing = wire.from_object(Listing, {**raw, "identity": identity.decode(), "names": [], "lost": []})
        content = below[len(head) :]
        if named:
            if sha256(content).hexdigest() != raw["content"]:
                raise Damaged("its lines of names are not those of its head")
            lines = [wire.decode(tuple[list[str], list[str]], wire.parse(line)) for line in content.split(b"\n")[1:]]
            listing = listing._replace(names=[names for names, _ in lines], lost=[lost for _, lost in lines])
        return checked(listing, named=named)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(f"not a listing: {error!r:.200}") from error


def checked(listing: Listing, *, named: bool) -> Listing:
    """Return a listing if it follows the rules; raises `ValueError`. Its names become paths on nodes, as root."""
    for row in listing.rows:
        if not is_sha256(row.sha256) or min(row.size, row.number) < 0:
            raise ValueError(f"not a bundle: {row!a:.200}")
    if listing.number < 0 or len({row.sha256 for row in listing.rows}) < len(listing.rows):
        raise ValueError("a bundle is in it twice")
    _check_paths(listing.hidden)
    _check_paths(listing.hide)
    if named:
        if [len(own) for own in listing.names] != [row.number for row in listing.rows]:
            raise ValueError("not as many entries as it says")
        every = [entry for names in listing.names for entry in names]
        _check_paths(every)
        if len({*every}) < len(every):
            raise ValueError("two rows provide an entry")
    return listing


def check_user(listing: Listing, user: str, uid: int) -> None:
    """Raise `HarvestTooLarge` if the names of a user's rows are too long: others of the scope publish there, too."""
    every = zip(listing.rows, listing.names, listing.lost, strict=True)
    own = [(*names, *lost) for row, names, lost in every if (row.user, row.uid) == (user, uid)]
    length = sum(len(entry) for entries in own for entry in entries)
    if length > MOST_OF_USER:
        problem = f"{user}'s entries of the namespace have names of {length} bytes; {MOST_OF_USER} are allowed"
        raise HarvestTooLarge(problem=problem)


def _check_paths(paths: list[str]) -> None:
    every = "/".join(paths)
    is_plain = every.isascii() and every.isprintable() and {"", ".", ".."}.isdisjoint(every.split("/"))
    if is_plain and max(map(len, paths)) <= _SHORT:  # fast path: a listing has fifty thousand
        return
    for path in paths:
        if not is_plain_path(path):
            raise ValueError(f"not a path: {path!a:.200}")
