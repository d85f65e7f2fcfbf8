"""Entries built by hand, in the formats of tools that need a GPU or a compiler."""

from __future__ import annotations

import hashlib
import json

from tests.lib.cache_files import cubin, relocatable, shared

SHARED = shared()
NINJA_LOG = b"# ninja log v5\n0\t36721\t1795207062665183497\tmain.o\te8c90a8ab269e656\n"
NINJA_LOG += b"36721\t37197\t17\tx.so\t33753f2231f7f121\n"
NINJA_DEPS = b"# ninjadeps\n" + (4).to_bytes(4, "little") + (12).to_bytes(4, "little") + b"main.o\0\0" + b"\xff" * 4
NINJA_DEPS += (0x80000000 | 12).to_bytes(4, "little") + bytes(12)
BUILT = {
    "build.ninja": b"build x.so: link main.o\n",
    ".ninja_log": NINJA_LOG,
    ".ninja_deps": NINJA_DEPS,
    "main.o": relocatable(),
    "x.so": SHARED,
}
_ELSEWHERE = b"/var/tmp/warmstart/n1/17.0a1b2c3d/cache/torch-extensions/x/main.cpp"
BUILT_ELSEWHERE = {"build.ninja": b"build main.o: compile " + _ELSEWHERE + b"\nbuild x.so: link main.o\n"}
OPS = ".cache/flashinfer/0.7.2/90a"
KERNEL = "cache/kernel.sm90_fp8_gemm_1d2d." + "0123456789abcdef" * 2
GEMM = {f"{KERNEL}/kernel.cu": b"// hash\n#include <x>\n", f"{KERNEL}/kernel.cubin": cubin()}
TILE = f"0.1.15/linux-x86_64/kernels/{'a' * 64}"
SOURCES = {"device_kernel.cu": b"__global__ void f() {}\n", "kernel_lib.so": SHARED, "params.json": b'{"x": [1]}'}
RANK = "torch_compile_cache/0123456789/rank_0_0"


def operation(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return FlashInfer's op `x`."""
    return {f"{OPS}/cached_ops/x/{name}": content for name, content in files.items()}


def tile_manifest(files: dict[str, bytes], /, **changes: object) -> bytes:
    """Return a manifest as TileLang writes it."""
    said = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    return json.dumps({"version": 1, "files": said} | changes).encode()


def tile(files: dict[str, bytes], said: bytes | None = None) -> dict[str, bytes]:
    """Return an entry of TileLang."""
    return {
        f"{TILE}/{name}": data for name, data in (files | {"manifest.json": said or tile_manifest(SOURCES)}).items()
    }


SGLANG_ROWS = [["kernels", "csrc/x.cuh", "0" * 64], ["sys", "include/stdio.h", "1" * 64]]


def sglang_leaf(rows: list[list[str]]) -> str:
    """Return the directory that SGLang gives to a module with these dependencies (its `_hash_parts`)."""
    digest = hashlib.sha256(b"".join(repr(tuple(row)).encode() + b"\0" for row in rows)).hexdigest()
    return f"jit/sm90a/sgl_kernel_x/build-{'0' * 16}/deps-{digest[:16]}"


SGLANG_LEAF = sglang_leaf(SGLANG_ROWS)
SGLANG = {f"{SGLANG_LEAF}/sgl_deps.json": json.dumps(SGLANG_ROWS).encode(), f"{SGLANG_LEAF}/sgl_kernel_x.so": SHARED}


def below(prefix: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files in a directory."""
    return {prefix + name: content for name, content in files.items()}
