"""Inductor's names: the lower-case base32 of a content's SHA-256, without its constant last letter.

Read in torch 2.13 (`_inductor/cache_key.py`) and checked on its real files (cache-formats, section 2).
"""

from __future__ import annotations

import base64
import hashlib

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

_PIECE = 1 << 20
LARGEST_SOURCE = 64 << 20


def check_content(files: EntryFiles, name: str) -> None:
    """Require a base name that is the hash of all bytes (fxgraph, aotautograd)."""
    digest = hashlib.sha256()
    with files.open(name) as (file, _):
        while piece := file.read(_PIECE):
            digest.update(piece)
    if _letters(digest.digest()) != name.rpartition("/")[2]:
        raise EntryInvalid("name-not-hash")


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
