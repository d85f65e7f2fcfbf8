"""The profiles that come with warmstart, in the form in which a site writes its own in the policy. Hot path.

`contract.Profile` says what each key means, docs/cache-formats.md what the tools' files look like and which releases
were read or run. What is not named here is never harvested; where that is not obvious, it is said.
"""

from __future__ import annotations

from warmstart.profiles.contract import Profile

_NINJA = ["build.ninja", ".ninja_log", "*.so", "*.o"]
_BUILT = {"*.so": "library", "*.o": "object", "*.cubin": "cubin", ".ninja_*": "written", "*": "text"}

PROFILES = (
    # Objects hold code for the CPU that compiled them, which no key says. A plan's record is written last.
    Profile(
        name="cudnn-frontend",
        variables={
            "CUDNN_FRONTEND_COMPILED_CACHE": "{dir}/plans",
            "FLEX_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
            "FLEX_ATTENTION_CUTE_DSL_CACHE_DIR": "{dir}/flex-attention",
        },
        defaults={
            "CUDNN_FRONTEND_COMPILED_CACHE": "{XDG_CACHE_HOME:~/.cache}/cudnn_frontend/compiled_plans",
            "FLEX_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
            "FLEX_ATTENTION_CUTE_DSL_CACHE_DIR": "{TMPDIR:/tmp}/{user}/flex_attention_cute_dsl_cache",
        },
        entries={
            "plans/v2/*/*/{kernel.o,entry.json}": ["kernel.o", "entry.json"],
            "plans/v2/*/manifest.json": [],
            "flex-attention/**/*.o": [],
        },
        formats={"*.o": "object", "*.json": "json"},
        facts=("driver", "gpu", "cpu"),
        relocation="relocatable",
        in_step=True,
    ),
    # CuPy compares the hash that each file begins with. `*.cubin.cu` are sources for debuggers.
    Profile(
        name="cupy",
        variables={"CUPY_CACHE_DIR": "{dir}"},
        defaults={"CUPY_CACHE_DIR": "~/.cupy/kernel_cache"},
        entries={"*.cubin": [], "*.ltoir": []},
        formats={"*": "written"},
        facts=("gpu",),
        relocation="relocatable",
    ),
    # FlashAttention 4 and QuACK. Objects hold code for the CPU that compiled them, which no key says.
    Profile(
        name="cute-dsl",
        variables={
            "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
            "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "{dir}/flash-attention",
            "QUACK_CACHE_DIR": "{dir}/quack",
        },
        defaults={
            "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
            "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "{TMPDIR:/tmp}/{user}/flash_attention_cute_dsl_cache",
            "QUACK_CACHE_DIR": "{TMPDIR:/tmp}/{user}/quack_cache",
        },
        entries={"flash-attention/**/*.o": [], "quack/*/*.o": [], "quack/*/*.autotune.json": []},
        formats={"*.o": "object", "*.json": "json"},
        facts=("gpu", "cpu"),
        relocation="relocatable",
        in_step=True,
        leaves_trace=True,  # a lock for each object that it looks up
    ),
    # Without one of the first two files jobs fail with an assertion.
    Profile(
        name="deepgemm",
        variables={"DG_JIT_CACHE_DIR": "{dir}"},
        defaults={"DG_JIT_CACHE_DIR": "~/.deep_gemm"},
        entries={"cache/kernel.*/{kernel.cu,kernel.cubin,kernel.ptx,kernel.sass}": ["kernel.cu", "kernel.cubin"]},
        formats={"*.cubin": "cubin", "*": "text"},
        facts=("gpu",),
        relocation="relocatable",
        in_step=True,
        experimental=True,
    ),
    # What ninja or CuTe DSL built, sources that ninja compares by mtime, downloads, and what the autotuner chose.
    # TensorRT-LLM gives each rank a workspace of its own.
    Profile(
        name="flashinfer",
        variables={"FLASHINFER_WORKSPACE_BASE": "{dir}"},
        defaults={"FLASHINFER_WORKSPACE_BASE": "~"},
        entries={
            ".cache/flashinfer/*/*/cached_ops/*_cute_dsl/{meta.json,*.o}": ["meta.json", "*.o"],
            ".cache/flashinfer/*/*/cached_ops/*/{build.ninja,.ninja_log,.ninja_deps,*.so,*.o}": _NINJA,
            ".cache/flashinfer/*/*/generated/**": [],
            ".cache/flashinfer/autotune/v2/*/entries/*.json": [],
            ".cache/flashinfer/cubins/**": [],
        },
        never=("tmp",),
        formats={".cache/flashinfer/cubins/*": "written", "*.json": "json", **_BUILT},
        nested={"rank-*/": "flashinfer"},
        facts=("gpu", "cpu"),
        in_step=True,
        exact_times=True,
        follows_links=True,  # build.ninja names what `Path.resolve()` makes of sources and outputs (jit/cpp_ext.py)
    ),
    # What hours of autotuning chose. The key of `cute/` names the job's working directory.
    Profile(
        name="helion",
        variables={"HELION_CACHE_DIR": "{dir}"},
        defaults={"HELION_CACHE_DIR": "{TMPDIR:/tmp}/torchinductor_{user}/helion"},
        entries={"*.best_config": []},
        formats={"*": "json"},
        nested={"triton/*/": "triton"},
        facts=("gpu", "machine"),
        in_step=True,
    ),
    # As NeMo Automodel keeps them: one that cannot be loaded ends every job, at its start.
    Profile(
        name="hybrid-ep",
        variables={"NEMO_HYBRIDEP_JIT_CACHE": "{dir}"},
        defaults={"NEMO_HYBRIDEP_JIT_CACHE": ""},  # without a directory Automodel keeps nothing
        entries={"deep_ep-*/*-*.so": []},
        formats={"*": "library"},
        facts=("gpu", "machine"),
        relocation="relocatable",
        in_step=True,
    ),
    # A library is the result of its source, and built in place: its existence is torch's only test. Each job rewrites
    # `cache/` and `dynamo/` in place; later jobs would believe `*.so.load_ok` unseen; of CuTe DSL's, QuACK's and other
    # kernels the names do not say enough. The CPU, as all is built with -march=native.
    Profile(
        name="inductor",
        variables={
            "TORCHINDUCTOR_CACHE_DIR": "{dir}",
            # With them every job builds 150 MB, also one that compiles nothing (docs/reference/profiles.md, times).
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        },
        defaults={
            "TORCHINDUCTOR_CACHE_DIR": "{TMPDIR:/tmp}/torchinductor_{user}",
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "1",
        },
        entries={
            "fxgraph/*/*/": [],
            "aotautograd/*/": [],
            "*/c*.py": [],
            "*/c*.optimized.o": [],  # of a kernel that is built apart from the C++ wrapper
            "*/c*{.cpp,.so,.o}": ["*.cpp", "*.so"],
            "*/*.best_config": [],
        },
        never=("*_CxxBuild", "*_compile_cache"),
        formats={
            "fxgraph/*": "base32-name",
            "aotautograd/*": "base32-name",
            "*.py": "base32-name",
            "*.cpp": "text",
            "*.so": "library",
            "*.o": "object",
            "*": "json",
        },
        facts=("cpu",),
        relocation="relocatable",
        in_step=True,
        leaves_trace=True,  # a lock for each code that it looks up
    ),
    # XLA's own caches are off: up to JAX 0.10 their path is part of each key. JAX writes in place, and never repairs.
    Profile(
        name="jax",
        variables={"JAX_COMPILATION_CACHE_DIR": "{dir}", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"},
        defaults={  # without a directory it keeps nothing
            "JAX_COMPILATION_CACHE_DIR": "",
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "xla_gpu_per_fusion_autotune_cache_dir",
        },
        entries={"*-cache": []},
        formats={"*": "compressed"},
        facts=("cpu", "gpu"),
        relocation="relocatable",
        in_step=True,
    ),
    # A function's index with its data, for kernels and wrappers alike. The CPU, although Numba's own key has it: the
    # index is one file for each function, and the first publisher's would keep every other CPU cold.
    Profile(
        name="numba",
        variables={"NUMBA_CACHE_DIR": "{dir}"},
        defaults={"NUMBA_CACHE_DIR": ""},  # __pycache__ beside each source
        entries={"*_*/{guf-,}*{.nbi,.*.nbc}": ["*.nbi", "*.nbc"]},
        nested={"rank_*/": "numba"},
        check="numba",
        facts=("cpu",),
        relocation="relocatable",
        leaves_trace=True,  # it tries whether it can write beside the index
    ),
    # Other tools' caches, and its own modules, whose directory is named after the hash of what they depend on.
    # FlashInfer's needs the constant path, and the CUDA driver's stays where it is without SGLang.
    Profile(
        name="sglang",
        variables={
            "SGLANG_CACHE_DIR": "{dir}",
            "SGLANG_DG_CACHE_DIR": "{dir}/deep_gemm",
            "SGLANG_JIT_CACHE_DIR": "{dir}/jit",
            "SGLANG_CUTE_AOT_CACHE_DIR": "{dir}/cute_aot",
            "CUDA_CACHE_PATH": "{home}/.nv/ComputeCache",
        },
        defaults={
            "SGLANG_CACHE_DIR": "~/.cache/sglang",
            "SGLANG_DG_CACHE_DIR": "~/.cache/sglang/deep_gemm",
            "SGLANG_JIT_CACHE_DIR": "~/.cache/sglang/jit",
            "SGLANG_CUTE_AOT_CACHE_DIR": "~/.cache/sglang/cute_aot",
            "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
        },
        entries={
            "jit/*/*/build-*/deps-*/{sgl_deps.json,*.so}": ["sgl_deps.json", "*.so"],
            "cute_aot/*.o": [],
        },
        formats={"*.json": "json", "*.so": "library", "*.o": "object"},
        nested={
            "triton/": "triton",
            "inductor/": "inductor",
            "tilelang/": "tilelang",
            "deep_gemm/": "deepgemm",
            "torch_compile_cache/*/rank_*/inductor_cache/": "inductor",
            "torch_compile_cache/*/rank_*/triton_cache/": "triton",
        },
        facts=("gpu", "cpu"),
        in_step=True,
        experimental=True,
    ),
    # Made in `.staging/` and renamed; TileLang compiles again what differs from its manifest. What its autotuner keeps
    # is cloudpickle: code that looks like data.
    Profile(
        name="tilelang",
        variables={"TILELANG_CACHE_DIR": "{dir}"},
        defaults={"TILELANG_CACHE_DIR": "~/.tilelang/cache"},
        entries={"*/linux-*/kernels/*/": ["manifest.json"]},
        never=("*.pkl",),
        formats={"*.so": "library", "*.json": "json"},
        facts=("gpu", "cpu"),
        relocation="relocatable",
        in_step=True,
        experimental=True,
    ),
    Profile(
        name="torch-extensions",
        variables={"TORCH_EXTENSIONS_DIR": "{dir}"},
        defaults={"TORCH_EXTENSIONS_DIR": "{XDG_CACHE_HOME:~/.cache}/torch_extensions"},
        entries={"*/{build.ninja,.ninja_log,.ninja_deps,*.so,*.o,*.cpp,*.cu,*.cuh,*.h,*.hpp}": _NINJA},
        formats=_BUILT,
        facts=("cpu", "gpu"),
        in_step=True,
        exact_times=True,
    ),
    # Kernels for NVIDIA's and AMD's GPUs, host modules with an ABI in their name (from 3.4 on), an autotuner's timings.
    Profile(
        name="triton",
        variables={"TRITON_CACHE_DIR": "{dir}"},
        defaults={"TRITON_CACHE_DIR": "{TRITON_HOME:~}/.triton/cache"},
        entries={
            "*/{*.json,*.source,*.ttir,*.ttgir,*.llir,*.ptx,*.cubin,*.amdgcn,*.hsaco,*.cpython-*-linux-gnu.so}": [],
        },
        formats={"*.json": "json", "*.cubin": "cubin", "*.hsaco": "hsaco", "*.so": "library", "*": "text"},
        check="triton",
        facts=("gpu", "machine"),
        in_step=True,
    ),
    # One file, whose format is not published, and which the job hands over: no variable of the tool names it. The tool
    # reads and writes it whole under an exclusive flock(2) of `<file>.lock`.
    Profile(
        name="trt-rtx",
        variables={"WARMSTART_TRT_RTX_CACHE": "{dir}/runtime_cache.bin"},
        defaults={"WARMSTART_TRT_RTX_CACHE": "{TMPDIR:/tmp}/runtime_cache.bin"},
        entries={"runtime_cache.bin": []},
        formats={"*": "written"},
        lock=".lock",
        max_size=8 << 30,
        facts=("gpu",),
        relocation="relocatable",
        in_step=True,
        experimental=True,
    ),
    Profile(
        name="tvm-ffi",
        variables={"TVM_FFI_CACHE_DIR": "{dir}"},
        defaults={"TVM_FFI_CACHE_DIR": "~/.cache/tvm-ffi"},
        entries={"*_*/{build.ninja,.ninja_log,.ninja_deps,*.so,*.o,*.cubin,*.c,*.cpp,*.cu}": _NINJA},
        formats=_BUILT,
        facts=("cpu", "gpu"),
        in_step=True,
        exact_times=True,
        follows_links=True,  # build.ninja names what `Path.resolve()` makes of inline sources (cpp/extension.py)
    ),
    # Other tools' caches. A directory's name is all that vLLM checks of what it keeps itself, and leaves out what
    # matters: jobs have died of another configuration's.
    Profile(
        name="vllm",
        variables={"VLLM_CACHE_ROOT": "{dir}"},
        defaults={"VLLM_CACHE_ROOT": "{XDG_CACHE_HOME:~/.cache}/vllm"},
        entries={},
        nested={
            "torch_compile_cache/**/inductor_cache/": "inductor",
            "torch_compile_cache/**/triton_cache/": "triton",
            "deep_gemm/": "deepgemm",
        },
        facts=("gpu", "cpu"),
        in_step=True,
        experimental=True,
    ),
    # Seven digits are all that Warp compares: of many users' modules two would soon have the same. Its directory is
    # renamed into place; a process that comes later moves single files into it.
    Profile(
        name="warp",
        variables={"WARP_CACHE_PATH": "{dir}"},
        defaults={"WARP_CACHE_PATH": "{XDG_CACHE_HOME:~/.cache}/warp"},
        entries={"*/wp_*_*/{*.meta,*.cpp,*.cu,*.o,*.cubin,*.ptx}": ["*.meta"]},
        formats={"*.meta": "json", "*.o": "object", "*.cubin": "cubin", "*": "text"},
        facts=("gpu", "cpu"),
        relocation="relocatable",
        user_scope=True,
    ),
)
