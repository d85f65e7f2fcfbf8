"""Check what torch's `BytesWriter` wrote: a CRC-32, then fields of an eight-byte length and their bytes.

Read in torch 2.13 (`utils/_appending_byte_serializer.py`, `_inductor/standalone_compile.py`), tried on its real files.
The first field says what it is. The last field is a pickle that torch's reader loads; it is not looked into.
"""

from __future__ import annotations

import zlib

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

_PIECE = 1 << 20
_KINDS = {b"CacheCompiledArtifact": 4, b"AOTCompiledArtifact": 3}  # first field → number of fields


def check_artifact(files: EntryFiles, name: str) -> None:
    """Raise `EntryInvalid` unless the file is one whole artifact of torch's standalone compiler."""
    with files.open(name) as (file, size):
        said = file.read(4)
        crc = 0
        while piece := file.read(_PIECE):
            crc = zlib.crc32(piece, crc)
        if len(said) < 4 or int.from_bytes(said, "big") != crc:
            raise EntryInvalid("hash-differs")
        file.seek(4)
        kind = b""
        fields = 0
        while file.tell() < size:
            length = int.from_bytes(file.read(8), "big")
            if file.tell() + length > size:
                raise EntryInvalid("field-malformed")
            if not fields:
                kind = file.read(min(length, 64))
            file.seek(length - (len(kind) if not fields else 0), 1)
            fields += 1
    if _KINDS.get(kind) != fields:
        raise EntryInvalid("field-malformed")
