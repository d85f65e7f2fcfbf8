"""Four ways to damage files, for the tables of docs/reference/profiles.md."""

from __future__ import annotations

import random
from collections.abc import Callable

PAGE = 4096


def truncated(content: bytes, dice: random.Random) -> bytes:
    """Cut off the end."""
    return content[: dice.randrange(len(content))]


def zero_tailed(content: bytes, dice: random.Random) -> bytes:
    """Keep the length but zero the end, as a crash of a file system does."""
    length = dice.randrange(1, len(content))
    return content[:-length] + bytes(length)


def zero_paged(content: bytes, dice: random.Random) -> bytes:
    """Zero one page."""
    at = dice.randrange((len(content) + PAGE - 1) // PAGE) * PAGE
    length = min(PAGE, len(content) - at)
    return content[:at] + bytes(length) + content[at + length :]


def bit_flipped(content: bytes, dice: random.Random) -> bytes:
    """Flip one bit."""
    at = dice.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]


MUTATIONS: dict[str, tuple[Callable[[bytes, random.Random], bytes], int]] = {
    "truncate": (truncated, 29),
    "zero tail": (zero_tailed, 20),
    "zero page": (zero_paged, 20),
    "bit flip": (bit_flipped, 40),
}
