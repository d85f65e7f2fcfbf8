"""Small real and built contents for the validators' tests."""

from __future__ import annotations

import base64
import hashlib
import pickle
import struct
import sysconfig
from pathlib import Path

NUMBA_BASE = "src_" + "0ff860c1" * 5 + "/mod.outer.locals.f-17.py311"
STEM = "uk/cuk" + "a" * 49


def letters(content: bytes) -> str:
    """Return the name that Inductor gives to a content."""
    return base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()


def numba_files(signatures: int = 2) -> dict[str, bytes]:
    """Return the files of one function as Numba's `IndexDataCacheFile` writes them."""
    names = {
        (("array", number), ("x86_64-linux", "znver3", "+avx2")): f"mod.outer.locals.f-17.py311.{number}.nbc"
        for number in range(1, signatures + 1)
    }
    files = {f"{NUMBA_BASE}.nbi": pickle.dumps("0.68.1", -1) + pickle.dumps(("stamp" * 12, names), -1)}
    for number in range(1, signatures + 1):
        data = (b"key", {"name": f"f{number}", "args": [1, 2.5, None, True], "set": {1, 2}}, relocatable())
        files[f"{NUMBA_BASE}.{number}.nbc"] = pickle.dumps(data, -1)
    return files


def relocatable(payload: bytes = b"\x90" * 70_000) -> bytes:
    """Return a minimal relocatable ELF object: one section of code and the section names."""
    names = b"\0.text\0.shstrtab\0"
    code_at = 64
    names_at = code_at + len(payload)
    table_at = names_at + len(names)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 1, 62, 1, 0, 0, table_at, 0, 64, 0, 0, 64, 3, 2
    )
    section = struct.Struct("<IIQQQQIIQQ")
    table = [
        section.pack(*(0,) * 10),
        section.pack(1, 1, 6, 0, code_at, len(payload), 0, 0, 16, 0),
        section.pack(7, 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
    ]
    return header + payload + names + b"".join(table)


def shared() -> bytes:
    """Return a real shared object: an extension module of the standard library, or libm."""
    dynload = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    candidates = [*sorted(dynload.glob("_heapq*.so")), *sorted(dynload.glob("*.so"))]
    candidates += sorted(Path("/usr/lib").glob("*/libm.so.6"))
    return candidates[0].read_bytes()
