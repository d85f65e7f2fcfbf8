"""SGLang's caches (docs/cache-formats.md, SGLang; from the source of SGLang 0.5.23, not tried on a GPU).

Unless the job sets their variables, SGLang makes other tools use directories below `SGLANG_CACHE_DIR`: `triton/`,
`inductor/`, `tilelang/`, `deep_gemm/`, and Inductor's and Triton's again below
`torch_compile_cache/<hash>/rank_<r>_<dp>/`. Their own profiles validate these. SGLang's own entries:
`jit/<sm>/<module>/build-<16 hex>/deps-<16 hex>`: `<module>.so`, and `sgl_deps.json` with rows of anchor, path below it
and SHA-256. SGLang makes the directory by rename and names it after the hash of the rows, which each job computes again
before it uses the entry;
`cute_aot/<sha256>.o`.

The CUDA driver's cache would be `nv/`. It is not harvested, so it stays where the driver has it without SGLang.

Never harvested: `.staging-*`, `*.lock`, FlashInfer's directory (it needs the constant path), the index of SGLang's own
compile cache.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by
from warmstart.profiles.nested import NestedCaches

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_RANKS = r"torch_compile_cache/[0-9a-f]{8,64}/rank_[0-9]{1,6}_[0-9]{1,6}"
_DEPS = "sgl_deps.json"
_MODULE = (
    r"(jit/[A-Za-z0-9_.-]{1,60}/([A-Za-z0-9_]{1,150})/build-[0-9a-f]{16}/deps-[0-9a-f]{16})/"
    r"(?:sgl_deps\.json|\2\.so)"
)
_OBJECT = r"(cute_aot/[0-9a-f]{64}\.o)"
_NESTED = NestedCaches(
    named_by(_MODULE, _OBJECT),
    (
        ("triton/", "triton"),
        ("inductor/", "inductor"),
        ("tilelang/", "tilelang"),
        ("deep_gemm/", "deepgemm"),
        (rf"{_RANKS}/inductor_cache/", "inductor"),
        (rf"{_RANKS}/triton_cache/", "triton"),
    ),
)


def validate(files: EntryFiles) -> None:
    """Require a module with a whole library and the dependencies of its name, or a whole object.

    Catches: a missing file, a truncated or zeroed library or object, any change to the rows. Cannot catch: changed
    bytes inside code or data; rows that belong to another library.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain, self_hash

    if _NESTED.holds(files.entry):
        _NESTED.validate(files)
    elif files.entry.startswith("cute_aot/"):
        elf.check(files, files.entry, elf.RELOCATABLE)
    elif len(files.names) == 2:
        for name in files.names:
            if not name.endswith(f"/{_DEPS}"):
                elf.check(files, name, elf.SHARED)
            elif f"deps-{self_hash.of_parts(plain.read_rows(files, name))}" != files.entry.rpartition("/")[2]:
                raise EntryInvalid("name-not-hash")
    else:
        raise EntryInvalid("incomplete")


PROFILE = Profile(
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
    relocation="constant-path",  # Triton's
    facts=("image", "gpu", "cpu"),
    entry_of=_NESTED.entry_of,  # a module's directory, an object's path, or another tool's entry
    validate=validate,
    in_step=True,
    refers_to=("sglang", "triton"),  # Inductor's cache is in it
    experimental=True,
)
