"""Which names belong to which entry; names are the job owner's. Those of whole entries are in test_entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import NUMBA_BASE, STEM
from tests.unit.profiles.test_entries import TAKEN
from warmstart.profiles import naming, registry

KEY = "ab" + "c" * 49
HASH = "d" * 51
HEX, OTHER = "a" * 64, "b" * 64
PLANS = f"plans/v2/{'a' * 24}/{'b' * 24}"
TRITON = "A2" * 26
TILE = f"0.1.15/linux-x86_64/kernels/{HEX}"
RANK = "torch_compile_cache/0123456789/rank_0_1_dev0"
AOT = f"torch_compile_cache/torch_aot_compile/{HEX}"
JIT = f"jit/sm90a/mod_x/build-{'0' * 16}/deps-{'1' * 16}"
CUBINS = f".cache/flashinfer/cubins/{'a' * 40}"
TUNED = ".cache/flashinfer/autotune/v2/0123456789abcdef"
OPS = ".cache/flashinfer/0.7.2.post1/90a_100a"

# Further names of entries, for what is odd about them.
TAKEN_TOO = {
    "cute-dsl": {f"flash-attention/{HEX}/{OTHER}.o": f"flash-attention/{HEX}/{OTHER}.o"},
    "flashinfer": {f"{OPS}/generated/silu_and_mul.cu": f"{OPS}/generated/silu_and_mul.cu"},
    "jax": {f"jit_größe_{'ñ' * 80}-{'0' * 64}-cache": f"jit_größe_{'ñ' * 80}-{'0' * 64}-cache"},
    "numba": {
        f"{NUMBA_BASE}.12.nbc": NUMBA_BASE,
        f"rank_7/{NUMBA_BASE}.nbi": f"rank_7/{NUMBA_BASE}",
        f"_{'0' * 40}/guf-m.gu-2.py313t.3.nbc": f"_{'0' * 40}/m.gu-2.py313t",
        f"my project_{'0' * 40}/größe.Δt-2.py313t.nbi": f"my project_{'0' * 40}/größe.Δt-2.py313t",
        f"[x=1,seed=2]@v1_{'0' * 40}/\udcf6.f-2.py313t.nbi": f"[x=1,seed=2]@v1_{'0' * 40}/\udcf6.f-2.py313t",
    },
    "inductor": {f"{STEM}.main.{end}": f"{STEM}.main" for end in ("cpp", "so", "o")},
    "sglang": {f"tilelang/{TILE}/manifest.json": f"tilelang/{TILE}"},
    "torch-extensions": {"größe/größe 2.cpp": "größe"},
    "triton": {
        f"{'a_-' * 14}b/k.source": f"{'a_-' * 14}b",
        f"{TRITON}/cuda_utils.cpython-313t-x86_64-linux-gnu.so": TRITON,
    },
    "vllm": {f"{AOT}/inductor_cache/{STEM}.so": f"{AOT}/inductor_cache/{STEM}"},
    "warp": {"1.19.0/wp_a_0123456/wp_a_0123456.sm75.ptx": "1.19.0/wp_a_0123456"},
}
LEFT = {
    "cute-dsl": [
        f"quack/{HEX}/{OTHER}.o.tmp.77",
        f"flash-attention/{HEX}/.{OTHER}.77.tmp.o",
        f"{HEX}/{OTHER}.o",
    ],
    "cudnn-frontend": [f"{PLANS}/kernel.o".replace("v2", "v1"), f"{PLANS}/kernel.o.7.8"],
    "hybrid-ep": [
        *(f"deep_ep-1.2.1_cuda-13.0_sm90/{name}" for name in ("7168-8-8-1.so.77.tmp", "kernel.so")),
        ".deepep/hybrid_ep/jit/proc-77/7168-8-8-1.so",
    ],
    "helion": [f"cute/0/cute_dsl_{HEX}.mlir"],
    "tvm-ffi": ["answer_0123456789abcdef/cpp_0.o.d", "answer/answer.so"],
    "cupy": [f"{'a' * 40}.cubin.cu", "tmpa1b2c3d4"],
    "warp": [
        "1.19.0/wp_sim_0123456/wp_sim_0123456.sm90.txt",
        "1.19.0/wp_sim/wp_sim.meta",
        "1.19.0/lto/x.lto",
    ],
    "trt-rtx": ["deeper/runtime_cache.bin", "timing_cache.bin"],
    "numba": [
        *(f"{above}/{NUMBA_BASE}.nbi" for above in ("rank_7/rank_7", "deeper")),
        f"{NUMBA_BASE}.nbi.tmp.0123456789abcdef",
        "mod.f-1.py311.nbi",
    ],
    "inductor": [
        f"{STEM}.so.load_ok",
        f"quack/{'0' * 64}/{'0' * 64}.o",
        f"cutedsl_compile_cache/{'0' * 64}.o",
        f"uk/{STEM[3:]}_CxxBuild/x.o",
        "triton/0/KEY/k.cubin",
        "precompiled_headers/x.h.gch",
        "dynamo/code_state_x.pkl",
    ],
    "triton": [f"{TRITON}/{name}" for name in ("cuda_utils.so", "k.spv", "k.cubin.tmp.pid_7_1")],
    "deepgemm": [
        "cache/kernel.sm90_gemm.0123456789abcdef/kernel.so",
        f"tmp/{'a' * 36}/kernel.cu",
        "cache/kernel.cu",
        # Of SGLang's forks: it vouches for kernels, of which any may be withheld or refused.
        f".sglang_precompile_markers/{HEX}.done",
    ],
    "tilelang": [f"{TILE}/params.pkl", f"0.1.15/linux-x86_64/autotuner/{HEX}/result.json"],
    "jax": [
        f"jit__lambda-{'0' * 64}-atime",
        ".lockfile",
        "xla_gpu_kernel_cache_file",
        "xla_gpu_per_fusion_autotune_cache_dir/x.textproto",
    ],
    "vllm": [
        *(
            f"{RANK}/backbone/{name}"
            for name in ("vllm_compile_cache.py", "cache_key_factors.json", "artifact_shape_None")
        ),
        f"{AOT}/rank_0_0/model",
        f"flashinfer_autotune_cache/0.7.2/90a/{HEX}/autotune_configs.json",
        f"rocm_segmented_attention/{HEX}.json",
        *("gpu_p2p_access_cache_for_0,1.json", "startup_plan/x.json", "modelinfos/x.json"),
    ],
    "sglang": [
        f"{JIT}/build.ninja",
        "nv/index",
        f"{OPS}/cached_ops/x/x.so",
    ],
    "torch-extensions": ["ext/main.o.d", "ext/sub/x.so"],
    "flashinfer": [
        f"{OPS}/cached_ops/add_sm90a_cute_dsl/n512.o.tmp.7",
        f"{TUNED}/manifest.json",
        *(f"{OPS}/{name}" for name in ("cached_ops/tmp/tmp.so", "flashinfer_jit.log")),
        *(f"{rank}/{CUBINS}/x.cubin" for rank in ("rank_1", "rank-1/rank-2")),
    ],
}
GOOD = [(tool, name) for tool, entries in TAKEN.items() for files in entries for name in files]
GOOD += [(tool, name) for tool, names in TAKEN_TOO.items() for name in names]


def test_every_profile_leaves_names_of_its_tool() -> None:
    assert LEFT.keys() == {*registry.names()}


@pytest.mark.parametrize(
    ("tool", "path", "entry"), [(tool, *case) for tool, cases in TAKEN_TOO.items() for case in cases.items()]
)
def test_an_entry_is_the_smallest_thing_that_is_published_whole(tool: str, path: str, entry: str) -> None:
    assert naming.entry_of(registry.get(tool), path) == entry


@pytest.mark.parametrize(("tool", "path"), [(tool, path) for tool, paths in LEFT.items() for path in paths])
def test_what_is_no_cache_or_one_nodes_alone_is_no_entry(tool: str, path: str) -> None:
    assert naming.entry_of(registry.get(tool), path) is None


@given(st.data())
def test_any_name_and_any_near_a_real_one_stays_inside_its_entry(data: st.DataObject) -> None:
    tool, path = data.draw(st.sampled_from(GOOD))
    at = data.draw(st.integers(0, len(path) - 1))
    for name in (data.draw(st.text()), path[:at] + data.draw(st.characters()) + path[at + 1 :]):
        entry = naming.entry_of(registry.get(tool), name)
        assert entry is None or (name.startswith(entry.rpartition("/")[0]) and ".." not in entry.split("/"))
