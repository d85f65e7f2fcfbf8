"""Check content against hashes in an entry's own names and manifests.

Inductor names files after the lower-case base32 of the SHA-256 of their content, without its constant last letter (from
the source of torch 2.13, `_inductor/cache_key.py`, checked on real files; docs/cache-formats.md, Inductor). TileLang's
manifest has sizes and hexadecimal SHA-256. CuPy's files begin with the SHA-1 of the rest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

from warmstart.host.files import Copied, copy_hashed
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

LARGEST_SOURCE = 64 << 20
_PIECE = 1 << 20


def check_content(files: EntryFiles, name: str) -> None:
    """Require a base name that is Inductor's hash of the content (fxgraph, aotautograd)."""
    if _letters(bytes.fromhex(size_and_sha256(files, name).sha256)) != name.rpartition("/")[2]:
        raise EntryInvalid("name-not-hash")


def size_and_sha256(files: EntryFiles, name: str) -> Copied:
    """Return a file's size in bytes and its SHA-256 in hexadecimal."""
    with files.open(name) as (file, _):
        return copy_hashed(file.fileno())


def check_leading_sha1(files: EntryFiles, name: str) -> None:
    """Require that the file begins with the SHA-1 of the rest in hexadecimal, and that there is a rest (CuPy)."""
    digest = hashlib.sha1(usedforsecurity=False)
    with files.open(name) as (file, size):
        recorded = file.read(2 * digest.digest_size)
        while piece := file.read(_PIECE):
            digest.update(piece)
    if size <= len(recorded) or digest.hexdigest().encode() != recorded:
        raise EntryInvalid("hash-differs")


def check_hex_name(files: EntryFiles, name: str) -> None:
    """Require a base name that begins with the content's SHA-256 in hexadecimal."""
    if not name.rpartition("/")[2].startswith(size_and_sha256(files, name).sha256):
        raise EntryInvalid("name-not-hash")


def of_parts(parts: Iterable[object]) -> str:
    """Return SGLang's hash of a list: 16 hex digits of the SHA-256 over each part's `repr` and a NUL."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode() + b"\0")
    return digest.hexdigest()[:16]


def check_source(files: EntryFiles, name: str) -> None:
    """Require a stem of `c` and Inductor's hash of the stripped text (`.py`)."""
    try:
        text = files.read(name, LARGEST_SOURCE).decode().strip()
    except UnicodeDecodeError as error:
        raise EntryInvalid("text-malformed") from error
    stem = name.rpartition("/")[2].removesuffix(".py")
    if "c" + _letters(hashlib.sha256(text.encode()).digest()) != stem:
        raise EntryInvalid("name-not-hash")


def _letters(digest: bytes) -> str:
    return base64.b32encode(digest)[:51].decode().lower()
