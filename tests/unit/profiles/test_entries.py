"""What each profile's validator takes, as its tool writes it, and what it refuses. Its names are in test_names.

What is wrong with a file of one format is in test_formats; here one is cut, to show that its format is looked at.
"""

from __future__ import annotations

import json
import os
import pickle
import zlib
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.built_entries import (
    BUILT,
    BUILT_ELSEWHERE,
    GEMM,
    OPS,
    RANK,
    SGLANG,
    SHARED,
    TILE,
    below,
    operation,
)
from tests.lib.cache_files import (
    CONTENT,
    NUMBA_DATA,
    NUMBA_INDEX,
    STEM,
    TRITON_RELEASES,
    ZSTD,
    letters,
    numba_files,
    of_tool,
    relocatable,
    triton_kernel,
    zstd,
)
from tests.lib.judging import MTIME, SAME_STAGE, Judge
from warmstart.profiles import naming, registry
from warmstart.profiles.entry_files import REASONS
from warmstart.profiles.judge import judge

Files = dict[str, bytes]


def named(files: Files, end: str) -> str:
    (name,) = (name for name in files if name.endswith(end))
    return name


def only(files: Files, *parts: str) -> Files:
    """Return the files with one of these parts in their names."""
    return {name: content for name, content in files.items() if any(part in name for part in parts)}


def lack(files: Files, *ends: str) -> Files:
    return {name: content for name, content in files.items() if not name.endswith(ends)}


def put(files: Files, end: str, content: bytes) -> Files:
    """Return an entry with another content of the file that ends so."""
    return files | {named(files, end): content}


def cut(files: Files, end: str) -> Files:
    """Return an entry with the file that ends so one byte shorter."""
    return put(files, end, files[named(files, end)][:-1])


def swap(files: Files, end: str, old: bytes, new: bytes) -> Files:
    """Return an entry with other bytes in the file that ends so."""
    content = files[named(files, end)]
    assert old in content
    return put(files, end, content.replace(old, new))


def edit(files: Files, end: str, **changes: object) -> Files:
    """Return an entry with other values in a JSON object; None takes a key away."""
    data = json.loads(files[named(files, end)]) | changes
    return put(files, end, json.dumps({key: value for key, value in data.items() if value is not None}).encode())


def graph(content: bytes) -> str:
    """Return the name of Inductor's file of a graph with this content."""
    return f"fxgraph/ab/fab{'c' * 49}/{letters(content)}"


def source(content: str) -> str:
    """Return the name of a Python file that Inductor generates."""
    hashed = letters(content.strip().encode())
    return f"{hashed[:2]}/c{hashed}.py"


def index(*pickles: object, protocol: int = 5) -> Files:
    return numba_files(1) | {NUMBA_INDEX: b"".join(pickle.dumps(value, protocol) for value in pickles)}


def extension(changes: Files | None = None, *missing: str) -> Files:
    """Return an extension `x` as torch builds it, with changed files and without some."""
    return lack(below("x/", BUILT | {"main.cpp": b"int x;\n"} | (changes or {})), *missing)


CUDNN = of_tool("cudnn-frontend")
PLAN, FLEX, ENVIRONMENT = (only(CUDNN, *parts) for parts in (("entry.json", "kernel.o"), ("flex",), ("manifest.json",)))
CUPY = only(of_tool("cupy"), "7f2679cd")
QUACK, FLASH = (only(of_tool("cute-dsl"), part) for part in ("quack/", "flash-attention/"))
TIMED = b'{"key": [1], "configs_timings": [[{"tile": 128}, [0.1]]]}'
QUACK_TIMES = {f"quack/{'A2' * 26}/gemm.autotune.json": TIMED}
TWICE, CHOICE = (only(of_tool("flashinfer"), part) for part in ("_cute_dsl/", "/autotune/"))
DOWNLOAD = {f".cache/flashinfer/cubins/{'a' * 40}/fmha/x.cubin": b"anything"}
GENERATED = {f"{OPS}/generated/trtllm_export/gemm/a/x.h": b"x"}
HELION = of_tool("helion")
HYBRID_EP = of_tool("hybrid-ep")
CPP = {f"{STEM}.main.cpp": b"// AOT ID\n#include <Python.h>\n", f"{STEM}.main.so": SHARED}
CONSTANTS = f"ab/c{'d' * 51}.optimized.o"
BEST = f"ab/{'0' * 64}.best_config"
EXECUTABLE = f"jit__lambda-{'0' * 64}-cache"
NUMBA, NUMBA_CUDA = numba_files(2), of_tool("numba-cuda")
RTX = "runtime_cache.bin"
TRITON = triton_kernel("3.9")
KEY = next(iter(TRITON)).partition("/")[0]
GROUP, META, CODE, PTX = "__grp__add_kernel.json", "/add_kernel.json", ".cubin", ".ptx"
MODULE = f"{KEY}/cuda_utils.cpython-311-x86_64-linux-gnu.so"
TIMES = f"{KEY}/f.autotune.json"
TRITON_CACHE = next(iter(json.loads(TRITON[f"{KEY}/{GROUP}"])["child_paths"].values())).partition(KEY)[0].encode()
AMD = only(of_tool("triton-amd"), "QRY7LU")
TVM_FFI = of_tool("tvm-ffi")
WARP_CPU, WARP_GPU = (only(of_tool("warp"), part) for part in ("_3ece880/", "_583bcb4/"))
WARP_STEM = named(WARP_GPU, ".meta").removesuffix(".meta")


TAKEN: dict[str, list[Files]] = {
    "cudnn-frontend": [PLAN, FLEX, ENVIRONMENT],
    "cupy": [{name: content} for name, content in of_tool("cupy").items()],
    "cute-dsl": [QUACK, FLASH, QUACK_TIMES],
    "deepgemm": [GEMM, GEMM | {named(GEMM, ".cu").replace(".cu", ".sass"): b"MOV R1"}],
    "flashinfer": [operation(BUILT), TWICE, CHOICE, DOWNLOAD, GENERATED],
    "helion": [HELION, below("triton/0/", TRITON)],
    "hybrid-ep": [HYBRID_EP],
    "inductor": [
        {graph(b"pickle"): b"pickle", graph(b"other guards"): b"other guards"},
        {f"aotautograd/a{'c' * 51}/{letters(b'x')}": b"x"},
        {source("\n\nimport torch  # é\n"): "\n\nimport torch  # é\n".encode()},
        {f"{STEM}.cpp": b"int x;", f"{STEM}.so": SHARED},
        CPP | {f"{STEM}.main.o": relocatable()},
        {CONSTANTS: relocatable()},
        {BEST: b'{"XBLOCK": 128, "num_warps": 4}'},
        below("helion/", HELION),
    ],
    "jax": [{EXECUTABLE: content} for content in (zlib.compress(CONTENT), zstd(b"01234", b"56789"), ZSTD)],
    "numba": [NUMBA, NUMBA_CUDA],
    "sglang": [SGLANG, {f"cute_aot/{'a' * 64}.o": relocatable()}, below("triton/", TRITON)],
    "tilelang": [TILE],
    "torch-extensions": [
        extension(),
        extension(None, "main.cpp"),
        # Sources may lie anywhere else: in a user's home, or in a run's other directories.
        *(
            extension({"build.ninja": b"build main.o: compile " + path + b"\nbuild x.so: link main.o\n"})
            for path in (b"/home/a/17.0a1b2c3d/x.cpp", b"/x/cache/torch-extensions/x.cpp", b"/t/17.0a1b2c3d/tmp/x.cpp")
        ),
    ],
    "triton": [*map(triton_kernel, TRITON_RELEASES), AMD, {MODULE: SHARED}, {TIMES: TIMED}],
    "trt-rtx": [{RTX: content} for content in (b"x", b"RTX" + bytes(4095), bytes(9000) + b"x")],
    "tvm-ffi": [TVM_FFI],
    "vllm": [below(f"{RANK}/triton_cache/", TRITON), below(f"{RANK}/inductor_cache/", CPP), below("deep_gemm/", GEMM)],
    "warp": [WARP_CPU, WARP_GPU],
}
# What no generic check finds, and what is the same for none or several of a profile's files.
REFUSED: list[tuple[str, str, Files]] = [
    ("cupy", "not-written", put(CUPY, ".cubin", CUPY[named(CUPY, ".cubin")][:99] + bytes(9000))),
    ("flashinfer", "made-elsewhere", operation(BUILT | BUILT_ELSEWHERE)),
    ("inductor", "hash-differs", {graph(b"pickle"): b"pickle", graph(b"x"): b"y"}),
    ("inductor", "hash-differs", {source("import torch"): b"import torchs"}),
    ("inductor", "too-large", {BEST: b" " * (2 << 20)}),
    ("numba", "incomplete", lack(NUMBA, ".1.nbc")),
    ("numba", "incomplete", index("0.68", ("stamp", {}))),
    ("numba", "incomplete", index("0.68", ("stamp", {1: "f.1.nbc", 2: "f.2.nbc"}))),
    ("numba", "pickle-malformed", index("0.68")),
    ("numba", "pickle-malformed", index("0.68", ("stamp", {1: "f.1.nbc"}), 1)),
    ("numba", "pickle-malformed", cut(NUMBA, ".1.nbc")),
    ("numba", "two-writers", swap(NUMBA_CUDA, ".nbi", b"array(float32, 1d, C)", b"array(float64, 1d, C)")),
    ("torch-extensions", "made-elsewhere", extension(BUILT_ELSEWHERE)),
    *(("triton", "incomplete", lack(TRITON, name)) for name in sorted(TRITON)),
    ("triton", "json-malformed", put(TRITON, GROUP, b'{"child_paths": ["add_kernel.cubin"]}')),
    ("triton", "made-elsewhere", edit(TRITON, GROUP, child_paths={"add_kernel.json": "/etc/shadow"})),
    ("triton", "made-elsewhere", swap(TRITON, GROUP, TRITON_CACHE, b"/var/tmp/w/17.0a1b2c3d/cache/triton/")),
    ("triton", "two-writers", edit(TRITON, GROUP, child_paths={"add_kernel.json": f"/c/{KEY}/add_kernel.json"})),
    ("triton", "two-writers", TRITON | {f"{KEY}/__grp__sub_kernel.json": TRITON[named(TRITON, GROUP)]}),
    ("triton", "two-writers", TRITON | {f"{KEY}/sub_kernel.cubin": TRITON[named(TRITON, CODE)]}),
    ("triton", "elf-malformed", put(TRITON, CODE, TRITON[named(TRITON, CODE)] + b"\0")),
    # Nobody has published the format of RTX: little can be proved.
    ("trt-rtx", "not-written", {RTX: b"RTX" + bytes(4096)}),
    ("tvm-ffi", "made-elsewhere", put(TVM_FFI, "build.ninja", b"build x: /w/n1/17.0a1b2c3d/cache/tvm-ffi/x.cpp\n")),
]
GOOD = [(profile, files) for profile, entries in TAKEN.items() for files in entries]


def test_every_profile_has_entries() -> None:
    assert TAKEN.keys() == {*registry.names()}


@pytest.mark.parametrize(("profile", "files"), GOOD)
def test_what_the_tool_writes_is_taken(verdict: Judge, profile: str, files: Files) -> None:
    assert verdict(profile, files) is None


@pytest.mark.parametrize(("profile", "files"), GOOD)
def test_an_entry_is_refused_without_what_completes_it(verdict: Judge, profile: str, files: Files) -> None:
    found = naming.find(registry.get(profile), next(iter(files)))
    assert found
    for needed in found.needed:
        others = {name: content for name, content in files.items() if not fnmatchcase(Path(name).name, needed)}
        assert others != files
        assert not others or verdict(profile, others) == "incomplete"


@pytest.mark.parametrize(("profile", "files"), GOOD)
def test_zeroes_in_place_of_any_file_are_found(verdict: Judge, profile: str, files: Files) -> None:
    """Of TileLang's sources nothing is looked at: it compares them with its manifest."""
    for name, content in files.items():
        is_seen = (profile, Path(name).suffix) != ("tilelang", ".cu")
        assert bool(verdict(profile, files | {name: bytes(len(content))})) is is_seen


@pytest.mark.parametrize(("profile", "reason", "files"), REFUSED)
def test_what_is_damaged_or_mixed_is_refused(verdict: Judge, profile: str, reason: str, files: Files) -> None:
    assert verdict(profile, files) == reason


@SAME_STAGE
@given(
    entry=st.sampled_from([(profile, files, name) for profile, files in GOOD for name in files]),
    changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_a_changed_file_gets_a_documented_reason(
    verdict: Judge, entry: tuple[str, Files, str], changes: list[tuple[int, int]]
) -> None:
    profile, files, name = entry
    content = bytearray(files[name])
    for at, value in changes:
        content[at % len(content)] = value
    assert verdict(profile, files | {name: bytes(content)}) in {None, *REASONS} - {"validator-failed"}


def test_a_file_younger_than_its_group_is_a_second_writers(verdict: Judge, stage: Path, stage_fd: int) -> None:
    """Two processes' files in one group gave wrong numbers without an error (triton#11319)."""
    assert verdict("triton", TRITON) is None
    os.utime(stage / named(TRITON, CODE), ns=(MTIME, MTIME + 1))
    assert dict(judge("triton", stage_fd, {KEY: list(TRITON)})) == {KEY: "two-writers"}
    os.utime(stage / named(TRITON, GROUP), ns=(MTIME, MTIME + 1))
    assert dict(judge("triton", stage_fd, {KEY: list(TRITON)})) == {KEY: None}


def test_a_pickle_is_never_loaded(verdict: Judge, tmp_path: Path) -> None:
    """One that would run a command is walked like any other: a validator does not make it safe."""

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    assert verdict("numba", numba_files(1) | {NUMBA_DATA: pickle.dumps(Payload(), 5)}) is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.report
@pytest.mark.parametrize("files", TAKEN["flashinfer"])
def test_a_rank_has_a_workspace_of_its_own(verdict: Judge, files: Files) -> None:
    """As TensorRT-LLM gives its ranks: all of it comes back, and is judged as what ranks share."""
    of_rank = below("rank-13/", files)
    entry_of = partial(naming.entry_of, registry.get("flashinfer"))
    assert {entry_of(name) for name in of_rank} == {f"rank-13/{entry_of(name)}" for name in files}
    assert verdict("flashinfer", of_rank) is None
    refused = [verdict("flashinfer", dict.fromkeys(names, b"")) for names in (of_rank, files)]
    assert refused[0] == refused[1] is not None
