"""Small real and built contents for the validators' tests."""

from __future__ import annotations

import base64
import hashlib
import pickle
import struct
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

NUMBA_BASE = "src_" + "0ff860c1" * 5 + "/mod.outer.locals.f-17.py311"
NUMBA_INDEX = f"{NUMBA_BASE}.nbi"
NUMBA_DATA = f"{NUMBA_BASE}.1.nbc"
STEM = "uk/cuk" + "a" * 49
# One kernel each of Triton 3.1 (sm_80), 3.2 and 3.4 (sm_90) and 3.9 (sm_120), compiled ahead of time without a GPU.
TRITON = Path(__file__).parent / "data/triton-entries.zip"
TRITON_RELEASES = ("3.1", "3.2", "3.4", "3.9")
# Entries as other tools wrote them without a GPU, in the jobs of tests/tools/jobs.
OF_TOOLS = Path(__file__).parent / "data/tool-entries.zip"


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


def relocatable(
    payload: bytes = b"\x90" * 70_000, defined: Sequence[bytes] = (), undefined: Sequence[bytes] = ()
) -> bytes:
    """Return a minimal relocatable ELF object: a section of code, names of sections, symbols and their names."""
    names = b"\0.text\0.shstrtab\0.symtab\0.strtab\0"
    strings = b"\0" + b"".join(name + b"\0" for name in (*defined, *undefined))
    symbols = [bytes(24)]
    at = 1
    for number, name in enumerate((*defined, *undefined)):
        symbols.append(struct.pack("<IBBHQQ", at, 0x12, 0, 1 if number < len(defined) else 0, 0, 0))
        at += len(name) + 1
    parts = [payload, names, b"".join(symbols), strings]
    starts = [64 + sum(map(len, parts[:number])) for number in range(len(parts) + 1)]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 1, 62, 1, 0, 0, starts[4], 0, 64, 0, 0, 64, 5, 2
    )
    section = struct.Struct("<IIQQQQIIQQ")
    table = [
        section.pack(*(0,) * 10),
        section.pack(1, 1, 6, 0, starts[0], len(payload), 0, 0, 16, 0),
        section.pack(7, 3, 0, 0, starts[1], len(names), 0, 0, 1, 0),
        section.pack(17, 2, 0, 0, starts[2], len(parts[2]), 4, 1, 8, 24),
        section.pack(25, 3, 0, 0, starts[3], len(strings), 0, 0, 1, 0),
    ]
    return header + b"".join(parts) + b"".join(table)


def shared() -> bytes:
    """Return a real shared object: an extension module of the standard library, or libm."""
    dynload = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    candidates = [*sorted(dynload.glob("_heapq*.so")), *sorted(dynload.glob("*.so"))]
    candidates += sorted(Path("/usr/lib").glob("*/libm.so.6"))
    return candidates[0].read_bytes()


def triton_kernel(release: str) -> dict[str, bytes]:
    """Return the files of one kernel that a release of Triton compiled."""
    with zipfile.ZipFile(TRITON) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{release}/")]
        return {name.partition("/")[2]: archive.read(name) for name in names}


def of_tool(tool: str) -> dict[str, bytes]:
    """Return the files of the entries that a tool's sample job left."""
    with zipfile.ZipFile(OF_TOOLS) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{tool}/")]
        return {name.partition("/")[2]: archive.read(name) for name in names}


def cubin(release: str = "3.9") -> bytes:
    """Return a real cubin: of ptxas 12.4 (ABI 7) for 3.1 to 3.4, of a newer one (ABI 8) for 3.9."""
    return next(content for name, content in triton_kernel(release).items() if name.endswith(".cubin"))


# What JAX compresses, as libzstd does it with 494 bytes: one compressed block with sequences, no checksum.
CONTENT = b"\0\0\0\7" + b"executable" * 500
ZSTD = b"\x28\xb5\x2f\xfd\x60\xee\x00\x1d\x02\x00\x74\x03\x00\x00\x00\x07executable " + bytes(range(40))
ZSTD += bytes.fromhex("0200c05e5ba96ab5d401")


def zstd(*blocks: bytes, header: bytes = b"\x24\x0a", last: bytes = b"\xaa\xbb\xcc\xdd") -> bytes:
    """Return a zstd frame of raw blocks with a checksum; its content is ten bytes long (RFC 8878, 3.1.1)."""
    data = b"\x28\xb5\x2f\xfd" + header
    for number, block in enumerate(blocks, 1):
        data += (len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block
    return data + last
