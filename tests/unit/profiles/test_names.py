"""Which names belong to which entry; names are the job owner's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import NUMBA_BASE, STEM
from warmstart.profiles import registry

KEY = "ab" + "c" * 49
HASH = "d" * 51
TRITON = "A2" * 26
GEMM = "kernel.sm90_gemm.0123456789abcdef"
TILE = f"0.1.15/linux-x86_64/kernels/{'a' * 64}"
RANK = "torch_compile_cache/0123456789/rank_0_1_dev0"
AOT = f"torch_compile_cache/torch_aot_compile/{'a' * 64}"
JIT = f"jit/sm90a/mod_x/build-{'0' * 16}/deps-{'1' * 16}"
WARP = "1.19.0/wp_sim_0123456/wp_sim_0123456"
CHOICES = f"flashinfer_autotune_cache/0.7.2/90a/{'a' * 64}/autotune_configs.json"
CUBINS = f".cache/flashinfer/cubins/{'a' * 40}"
TUNED = ".cache/flashinfer/autotune/v2/0123456789abcdef"
OPS = ".cache/flashinfer/0.7.2.post1/90a_100a"

ENTRIES = {
    "cute-dsl": {
        f"quack/{'a' * 64}/{'b' * 64}.o": f"quack/{'a' * 64}/{'b' * 64}.o",
        f"flash-attention/{'a' * 64}/{'b' * 64}.o": f"flash-attention/{'a' * 64}/{'b' * 64}.o",
        f"flash-attention/{'a' * 64}/fwd/{'b' * 64}.o": f"flash-attention/{'a' * 64}/fwd/{'b' * 64}.o",
        f"quack/{TRITON}/gemm.autotune.json": f"quack/{TRITON}/gemm.autotune.json",
        f"quack/{'a' * 64}/{'b' * 64}.lock": None,
        f"quack/{'a' * 64}/{'b' * 64}.o.tmp.77": None,
        f"flash-attention/{'a' * 64}/.{'b' * 64}.77.tmp.o": None,
        f"{'a' * 64}/{'b' * 64}.o": None,
    },
    "cudnn-frontend": {
        f"plans/v2/{'a' * 24}/{'b' * 24}/kernel.o": f"plans/v2/{'a' * 24}/{'b' * 24}",
        f"plans/v2/{'a' * 24}/{'b' * 24}/entry.json": f"plans/v2/{'a' * 24}/{'b' * 24}",
        f"plans/v2/{'a' * 24}/manifest.json": f"plans/v2/{'a' * 24}/manifest.json",
        f"flex-attention/{'a' * 64}/{'b' * 64}.o": f"flex-attention/{'a' * 64}/{'b' * 64}.o",
        f"flex-attention/{'a' * 64}/fwd/{'b' * 64}.o": f"flex-attention/{'a' * 64}/fwd/{'b' * 64}.o",
        f"flex-attention/{'a' * 64}/fwd/{'b' * 64}.lock": None,
        f"plans/.locks/{'a' * 24}-{'b' * 24}.lock": None,
        f"plans/v2/{'a' * 24}/{'b' * 24}/kernel.o.7.8.{'c' * 32}.tmp": None,
        f"plans/v2/{'a' * 24}/{'b' * 24}/.entry.json.abcdefgh.7.tmp": None,
        f"plans/v1/{'a' * 24}/{'b' * 24}/kernel.o": None,
    },
    "hybrid-ep": {
        "deep_ep-1.2.1+94a9f8f_cuda-13.0_sm100/7168-8-8-1-uint16_t-1.so": (
            "deep_ep-1.2.1+94a9f8f_cuda-13.0_sm100/7168-8-8-1-uint16_t-1.so"
        ),
        "deep_ep-1.2.1_cuda-13.0_sm90/7168-8-8-1.so.77.tmp": None,
        "deep_ep-1.2.1_cuda-13.0_sm90/kernel.so": None,
        ".deepep/hybrid_ep/jit/proc-77/7168-8-8-1.so": None,
    },
    "helion": {
        f"{'a' * 64}.best_config": f"{'a' * 64}.best_config",
        f"triton/0/{TRITON}/k.cubin": f"triton/0/{TRITON}",
        "tmp.01234567-89ab": None,
        f"cute/0/cute_dsl_{'a' * 64}.mlir": None,
    },
    "tvm-ffi": {
        "answer_0123456789abcdef/answer.so": "answer_0123456789abcdef",
        "answer_0123456789abcdef/main.cpp": "answer_0123456789abcdef",
        "answer_0123456789abcdef/.ninja_log": "answer_0123456789abcdef",
        "answer_0123456789abcdef/lock": None,
        "answer_0123456789abcdef/cpp_0.o.d": None,
        "answer/answer.so": None,
    },
    "cupy": {
        f"{'a' * 40}.cubin": f"{'a' * 40}.cubin",
        f"{'a' * 40}.ltoir": f"{'a' * 40}.ltoir",
        f"{'a' * 40}.cubin.cu": None,
        f"{'a' * 32}_2.cubin": None,
        "tmpa1b2c3d4": None,
    },
    "warp": {
        f"{WARP}.cu": WARP.rpartition("/")[0],
        f"{WARP}.meta": WARP.rpartition("/")[0],
        f"{WARP}.cpu9e3c5285.o": WARP.rpartition("/")[0],
        f"{WARP}.sm90a.cubin": WARP.rpartition("/")[0],
        f"{WARP}.sm75.ptx": WARP.rpartition("/")[0],
        f"{WARP}.sm90.txt": None,
        "1.19.0/wp_sim_0123456/wp_other_0123456.meta": None,
        "1.19.0/wp_sim_0123456_p77_t1/wp_sim_0123456.meta": None,
        "1.19.0/wp_sim/wp_sim.meta": None,
        "1.19.0/lto/x.lto": None,
    },
    "trt-rtx": {
        "runtime_cache.bin": "runtime_cache.bin",
        "runtime_cache.bin.lock": None,
        "runtime_cache.bin.tmp": None,
        "deeper/runtime_cache.bin": None,
        "timing_cache.bin": None,
    },
    "numba": {
        f"{NUMBA_BASE}.nbi": NUMBA_BASE,
        f"{NUMBA_BASE}.1.nbc": NUMBA_BASE,
        f"{NUMBA_BASE}.12.nbc": NUMBA_BASE,
        f"rank_7/{NUMBA_BASE}.nbi": f"rank_7/{NUMBA_BASE}",
        f"rank_7/rank_7/{NUMBA_BASE}.nbi": None,
        f"rank_x/{NUMBA_BASE}.nbi": None,
        f"_{'0' * 40}/guf-m.gu-2.py313t.nbi": f"_{'0' * 40}/m.gu-2.py313t",
        f"_{'0' * 40}/guf-m.gu-2.py313t.3.nbc": f"_{'0' * 40}/m.gu-2.py313t",
        f"_{'0' * 40}/guf-guf-m.gu-2.py313t.nbi": f"_{'0' * 40}/m.gu-2.py313t",
        f"my project_{'0' * 40}/größe.Δt-2.py313t.nbi": f"my project_{'0' * 40}/größe.Δt-2.py313t",
        f"[x=1,seed=2]@v1_{'0' * 40}/\udcf6.f-2.py313t.nbi": f"[x=1,seed=2]@v1_{'0' * 40}/\udcf6.f-2.py313t",
        f"x_{'0' * 40}/m.f-1.py311.1.py311.nbi": None,
        f"{NUMBA_BASE}.nbi.tmp.0123456789abcdef": None,
        f"deeper/{NUMBA_BASE}.nbi": None,
        "mod.f-1.py311.nbi": None,
    },
    "inductor": {
        f"fxgraph/ab/f{KEY}/{HASH}": f"fxgraph/ab/f{KEY}",
        f"aotautograd/a{KEY}/{HASH}": f"aotautograd/a{KEY}",
        f"{STEM}.py": STEM,
        f"{STEM}.cpp": STEM,
        f"{STEM}.so": STEM,
        f"{STEM}.main.cpp": STEM,
        f"{STEM}.main.so": STEM,
        f"zz/c{HASH}.optimized.o": f"zz/c{HASH}.optimized.o",
        f"zz/{'0' * 64}.best_config": f"zz/{'0' * 64}.best_config",
        f"helion/{'0' * 64}.best_config": f"helion/{'0' * 64}.best_config",
        f"{STEM}.so.load_ok": None,
        f"quack/{'0' * 64}/{'0' * 64}.o": None,
        f"cutedsl_compile_cache/{'0' * 64}.o": None,
        f"zz/c{HASH}.py": None,
        f"fxgraph/zz/f{KEY}/{HASH}": None,
        f"fxgraph/ab/f{KEY}/.77.88.tmp": None,
        f"aotautograd/a{KEY}/entry": None,
        f"locks/c{HASH}.lock": None,
        f"uk/{STEM[3:]}_CxxBuild/x.o": None,
        "triton/0/KEY/k.cubin": None,
        "precompiled_headers/x.h.gch": None,
        "dynamo/code_state_x.pkl": None,
    },
    "triton": {
        f"{TRITON}/__grp__k.json": TRITON,
        f"{TRITON}/k.cubin": TRITON,
        f"{TRITON}/k.autotune.json": TRITON,
        f"{TRITON}/cuda_utils.cpython-313t-x86_64-linux-gnu.so": TRITON,
        f"{'a_-' * 14}b/k.source": f"{'a_-' * 14}b",
        f"{'a' * 64}/k.ttir": "a" * 64,
        f"{TRITON}/cuda_utils.so": None,
        f"{TRITON}/k.hsaco": TRITON,
        f"{TRITON}/k.amdgcn": TRITON,
        f"{TRITON}/k.spv": None,
        f"{TRITON}/tmp.pid_7_0123/k.cubin": None,
        f"{TRITON}/k.cubin.tmp.pid_7_1": None,
        f"{'a' * 32}/k.cubin": None,
        f"{TRITON}/lock": None,
    },
    "deepgemm": {
        f"cache/{GEMM}/kernel.cu": f"cache/{GEMM}",
        f"cache/{GEMM}/kernel.cubin": f"cache/{GEMM}",
        f"cache/{GEMM}/kernel.so": None,
        f"tmp/{'a' * 36}/kernel.cu": None,
        "cache/kernel.cu": None,
        # Of SGLang's forks: it vouches for kernels, of which any may be withheld or refused.
        f".sglang_precompile_markers/{'a' * 64}.done": None,
    },
    "tilelang": {
        f"{TILE}/manifest.json": TILE,
        f"{TILE}/kernel_lib.so": TILE,
        f"{TILE}/params.pkl": None,
        f"{TILE}/.kernel_lib.so.7_ab.tmp": None,
        f"0.1.15/linux-x86_64/.staging/{'a' * 64}_7_01234567/manifest.json": None,
        f"0.1.15/linux-x86_64/autotuner/{'a' * 64}/result.json": None,
    },
    "jax": {
        f"jit__lambda-{'0' * 64}-cache": f"jit__lambda-{'0' * 64}-cache",
        f"jit_größe_{'ñ' * 80}-{'0' * 64}-cache": f"jit_größe_{'ñ' * 80}-{'0' * 64}-cache",
        f"jit__lambda-{'0' * 64}-atime": None,
        ".lockfile": None,
        "xla_gpu_kernel_cache_file": None,
        "xla_gpu_per_fusion_autotune_cache_dir/x.textproto": None,
    },
    "vllm": {
        f"{RANK}/backbone/vllm_compile_cache.py": None,
        f"{RANK}/backbone/artifact_shape_None_subgraph_0": None,
        f"{RANK}/triton_cache/{TRITON}/k.cubin": f"{RANK}/triton_cache/{TRITON}",
        f"{RANK}/inductor_cache/{STEM}.so": f"{RANK}/inductor_cache/{STEM}",
        f"{AOT}/rank_0_0/model": None,
        f"{AOT}/inductor_cache/{STEM}.so": f"{AOT}/inductor_cache/{STEM}",
        f"deep_gemm/cache/{GEMM}/kernel.cu": f"deep_gemm/cache/{GEMM}",
        CHOICES: None,
        f"rocm_segmented_attention/{'a' * 64}.json": None,
        f"{RANK}/backbone/cache_key_factors.json": None,
        f"{RANK}/inductor_cache/locks/x.lock": None,
        "gpu_p2p_access_cache_for_0,1.json": None,
        "startup_plan/x.json": None,
        "modelinfos/x.json": None,
    },
    "sglang": {
        f"{JIT}/sgl_deps.json": JIT,
        f"{JIT}/mod_x.so": JIT,
        f"cute_aot/{'a' * 64}.o": f"cute_aot/{'a' * 64}.o",
        f"triton/{TRITON}/k.cubin": f"triton/{TRITON}",
        f"tilelang/{TILE}/manifest.json": f"tilelang/{TILE}",
        f"{JIT}/mod_y.so": None,
        f"{JIT}/build.ninja": None,
        f"jit/sm90a/mod_x/build-{'0' * 16}/.staging-01/mod_x.so": None,
        f"cute_aot/{'a' * 64}.lock": None,
        "nv/index": None,
        f"{OPS}/cached_ops/x/x.so": None,
    },
    "torch-extensions": {
        "ext/ext.so": "ext",
        "ext/.ninja_log": "ext",
        "ext/main.cpp": "ext",
        "größe/größe 2.cpp": "größe",
        "ext/lock": None,
        "ext/main.o.d": None,
        "ext/sub/x.so": None,
    },
    "flashinfer": {
        f"{OPS}/cached_ops/batch/batch.so": f"{OPS}/batch",
        f"{OPS}/cached_ops/batch/x.cuda.o": f"{OPS}/batch",
        f"{OPS}/generated/batch/x.cu": f"{OPS}/generated/batch/x.cu",
        f"{OPS}/generated/silu_and_mul.cu": f"{OPS}/generated/silu_and_mul.cu",
        f"{OPS}/generated/gen_gemm_sm90/a/x.inc": f"{OPS}/generated/gen_gemm_sm90/a/x.inc",
        f"{OPS}/cached_ops/add_sm90a_cute_dsl/n512.o": f"{OPS}/add_sm90a_cute_dsl",
        f"{OPS}/cached_ops/add_sm90a_cute_dsl/meta.json": f"{OPS}/add_sm90a_cute_dsl",
        f"{OPS}/cached_ops/add_sm90a_cute_dsl/n512.o.tmp.7": None,
        f"{TUNED}/entries/{'a' * 24}.json": f"{TUNED}/entries/{'a' * 24}.json",
        f"{TUNED}/entries/.autotune_x.tmp": None,
        f"{TUNED}/manifest.json": None,
        f"{OPS}/cached_ops/tmp/batch.lock": None,
        f"{OPS}/cached_ops/tmp/tmp.so": None,
        f"{OPS}/flashinfer_jit.log": None,
        f"{CUBINS}/fmha/trtllm-gen/x.cubin": f"{CUBINS}/fmha/trtllm-gen/x.cubin",
        f"{CUBINS}/fmha/x.cubin.lock": None,
        f"{CUBINS}/fmha/x.cubin.{'b' * 32}.tmp": None,
        ".cache/flashinfer/cubins/x.cubin": None,
        **dict.fromkeys(
            [f"{rank}/{CUBINS}/fmha/x.cubin" for rank in ("rank-", "rank-x", "rank_1", "rank-1/rank-2", "rank-1234567")]
        ),
    },
}


CASES = [(tool, path, entry) for tool, cases in ENTRIES.items() for path, entry in cases.items()]


@pytest.mark.parametrize(("tool", "path", "entry"), CASES)
def test_an_entry_is_the_smallest_thing_that_is_published_whole(tool: str, path: str, entry: str | None) -> None:
    assert registry.get(tool).entry_of(path) == entry


def test_every_profile_has_names_that_it_takes_and_names_that_it_leaves() -> None:
    assert {*ENTRIES} == {*registry.names()}
    assert all(any(cases.values()) and None in cases.values() for cases in ENTRIES.values())


@pytest.mark.parametrize("spoil", ["{}\n", "../{}", "./{}", "/{}", "{}/", "{}\udcff", "{}\0"])
@pytest.mark.parametrize(("tool", "path", "entry"), [case for case in CASES if case[2]])
def test_a_hostile_name_around_a_good_one_belongs_nowhere(spoil: str, tool: str, path: str, entry: str) -> None:
    assert registry.get(tool).entry_of(spoil.format(path)) is None


@given(st.data())
def test_any_name_and_any_near_a_real_one_stays_inside_its_entry(data: st.DataObject) -> None:
    tool, path, _ = data.draw(st.sampled_from([case for case in CASES if case[2]]))
    at = data.draw(st.integers(0, len(path) - 1))
    for name in (data.draw(st.text()), path[:at] + data.draw(st.characters()) + path[at + 1 :]):
        entry = registry.get(tool).entry_of(name)
        assert entry is None or (name.startswith(entry.rpartition("/")[0]) and ".." not in entry.split("/"))
