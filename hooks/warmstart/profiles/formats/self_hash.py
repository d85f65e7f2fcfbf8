"""Hashes that an entry carries of itself.

Inductor names files by the lower-case base32 of the SHA-256 of their content, without its constant last letter
(read in torch 2.13, `_inductor/cache_key.py`, and checked on its real files; docs/cache-formats.md, Inductor).
TileLang's manifest has sizes and plain SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

from warmstart.host.files import Copied, copy_hashed
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

LARGEST_SOURCE = 64 << 20


def check_content(files: EntryFiles, name: str) -> None:
    """Require a base name that is the hash of all bytes (fxgraph, aotautograd)."""
    if _letters(bytes.fromhex(size_and_sha256(files, name).sha256)) != name.rpartition("/")[2]:
        raise EntryInvalid("name-not-hash")


def size_and_sha256(files: EntryFiles, name: str) -> Copied:
    """Return how many bytes a file has, and their SHA-256 in hexadecimal."""
    with files.open(name) as (file, _):
        return copy_hashed(file.fileno())


def check_hex_name(files: EntryFiles, name: str) -> None:
    """Require a base name that begins with the SHA-256 of all bytes in hexadecimal."""
    if not name.rpartition("/")[2].startswith(size_and_sha256(files, name).sha256):
        raise EntryInvalid("name-not-hash")


def of_parts(parts: Iterable[object]) -> str:
    """Return SGLang's hash of a list: sixteen digits of the SHA-256 of each part's `repr` and a NUL."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode() + b"\0")
    return digest.hexdigest()[:16]


def check_source(files: EntryFiles, name: str) -> None:
    """Require a stem of `c` and the hash of the text without the white space around it (`.py`)."""
    try:
        text = files.read(name, LARGEST_SOURCE).decode().strip()
    except UnicodeDecodeError as error:
        raise EntryInvalid("text-malformed") from error
    stem = name.rpartition("/")[2].removesuffix(".py")
    if "c" + _letters(hashlib.sha256(text.encode()).digest()) != stem:
        raise EntryInvalid("name-not-hash")


def _letters(digest: bytes) -> str:
    return base64.b32encode(digest)[:51].decode().lower()
