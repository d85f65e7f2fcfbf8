"""Entries built by hand, in the formats of tools that need a GPU or a compiler."""

from __future__ import annotations

from tests.lib.cache_files import cubin, relocatable, shared


def below(prefix: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files in a directory."""
    return {prefix + name: content for name, content in files.items()}


SHARED = shared()
BUILT = {
    "build.ninja": b"build x.so: link main.o\n",
    ".ninja_log": b"# ninja log v5\n0\t36721\t1795207062665183497\tmain.o\te8c90a8ab269e656\n",
    ".ninja_deps": b"# ninjadeps\n" + (4).to_bytes(4, "little"),
    "main.o": relocatable(),
    "x.so": SHARED,
}
BUILT_ELSEWHERE = {
    "build.ninja": b"build main.o: compile /var/tmp/warmstart/n1/17.0a1b2c3d/cache/torch-extensions/x/main.cpp\n"
}
OPS = ".cache/flashinfer/0.7.2/90a"
GEMM = below(
    "cache/kernel.sm90_fp8_gemm_1d2d." + "0123456789abcdef" * 2,
    {"/kernel.cu": b"// hash\n#include <x>\n", "/kernel.cubin": cubin()},
)
TILE = below(
    f"0.1.15/linux-x86_64/kernels/{'a' * 64}/",
    {"device_kernel.cu": b"__global__ void f() {}\n", "kernel_lib.so": SHARED}
    | {"params.json": b'{"x": [1]}', "manifest.json": b'{"version": 1, "files": {}}'},
)
RANK = "torch_compile_cache/0123456789/rank_0_0"
SGLANG = below(
    f"jit/sm90a/sgl_kernel_x/build-{'0' * 16}/deps-{'1' * 16}/",
    {"sgl_deps.json": b'[["sys", "include/stdio.h", "1"]]', "sgl_kernel_x.so": SHARED},
)


def operation(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return FlashInfer's op `x`."""
    return below(f"{OPS}/cached_ops/x/", files)
