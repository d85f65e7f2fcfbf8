"""The blocklist: what is neither seeded nor published, on every node, from the next job on (docs/threats.md, row 19).

    <store>/artifacts/blocked.json      0444; absent while nothing is blocked

Every offer and every publish reads it; if nothing is blocked, that is one system call. A file that cannot be read
blocks everything, because damage must not lift a block. Runs as the store's owner. Hot path.
"""

from __future__ import annotations

import os

from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there
from warmstart.lean import TYPE_CHECKING, Iterable, NamedTuple, dumps, loads
from warmstart.store.layout import ARTIFACTS, LOCKS, store_errors

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

FORMAT = 1
NAME = "blocked.json"
LARGEST = 4 << 20


class BlocksUnreadable(StoreError):
    """The blocklist is damaged or of a newer format; nothing is seeded or published until it is repaired."""

    code = "blocks-unreadable"
    template = "{path}: {problem}"
    hint = "run `warmstart cache unblock --all`, then block again what must stay blocked"


class Block(NamedTuple):
    """A block of one user, a namespace or an entry of a profile, or all that is old; other fields are ""."""

    user: str = ""  # name or uid
    profile: str = ""
    namespace: str = ""
    entry: str = ""
    reason: str = ""
    by: str = ""  # the administrator
    at: float = 0.0  # seconds since the epoch
    before: str = ""  # bundles with smaller ids, so those published before a time

    @property
    def what(self) -> tuple[str, str, str, str, str]:
        """What it blocks, without reason and time."""
        return (self.user, self.profile, self.namespace, self.entry, self.before)


class Blocks(NamedTuple):
    """All blocks of a store."""

    blocks: tuple[Block, ...]

    def hides(self, bundle: str, user: str, uid: int) -> str:
        """Return why no job is seeded with a bundle of that id and user; "" if jobs may be."""
        if self.user(user, uid):
            return "its user is blocked"
        return "jobs start cold" if any(bundle < block.before for block in self.blocks) else ""

    def user(self, name: str, uid: int) -> bool:
        """Return whether a user is blocked by name or by uid."""
        return any(block.user in (name, str(uid)) for block in self.blocks if block.user)

    def namespace(self, profile: str, namespace: str) -> bool:
        """Return whether a namespace is blocked; a block holds in every scope."""
        return any((block.profile, block.namespace) == (profile, namespace) for block in self.blocks)

    def entries(self, profile: str) -> set[str]:
        """Return the blocked entries of a profile; a block holds in every namespace."""
        return {block.entry for block in self.blocks if block.entry and block.profile == profile}


def read(store: str) -> Blocks:
    """Return all blocks; raises `BlocksUnreadable` or `OSError`."""
    path = os.path.join(store, ARTIFACTS, NAME)
    try:
        data = read_small(path, LARGEST)
    except FileNotFoundError:
        return Blocks(())
    try:
        raw = loads(data)
        if raw["format"] != FORMAT:
            raise ValueError(f"its format is {raw['format']!r}, known is {FORMAT}")
        if any(block.keys() - set(Block._fields) for block in raw["blocks"]):
            raise ValueError("it has fields that this release does not know")
        return Blocks(tuple(wire.from_object(Block, block) for block in raw["blocks"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BlocksUnreadable(path=path, problem=f"{error}"[:200]) from error


def listed(store: str) -> list[Block]:
    """Return all blocks as a list; raises `BlocksUnreadable` or `StoreFailed`."""
    with store_errors("read the blocklist"):
        return list(read(store).blocks)


def block(store: str, new: Block, writer: str) -> bool:
    """Add a block; return False if the same is blocked already. Raises `BlocksUnreadable` or `StoreFailed`."""
    with store_errors("change the blocklist"), _exclusive(store):
        blocks = read(store).blocks
        if new.what in (known.what for known in blocks):
            return False
        _write(store, (*blocks, new), writer)
        return True


def unblock(store: str, unwanted: Block, writer: str) -> bool:
    """Remove a block, whatever its reason; return whether it existed."""
    with store_errors("change the blocklist"), _exclusive(store):
        blocks = read(store).blocks
        left = tuple(known for known in blocks if known.what != unwanted.what)
        if left == blocks:
            return False
        _write(store, left, writer)
        return True


def unblock_all(store: str) -> bool:
    """Remove the blocklist, readable or not; return whether it existed."""
    with store_errors("change the blocklist"), _exclusive(store), opened_dir(os.path.join(store, ARTIFACTS)) as fd:
        return unlink_if_there(NAME, fd)


def _write(store: str, blocks: Iterable[Block], writer: str) -> None:
    from warmstart.store.atomic import replace

    data = dumps({"format": FORMAT, "blocks": [known._asdict() for known in blocks]}).encode()
    with opened_dir(os.path.join(store, ARTIFACTS)) as fd:
        replace(fd, writer, NAME, data)


def _exclusive(store: str) -> AbstractContextManager[None]:
    from warmstart.store.locks import lock_or_proceed

    ensure_dir(os.path.join(store, ARTIFACTS), 0o700)
    return lock_or_proceed(os.path.join(store, ARTIFACTS, LOCKS), "blocks")
