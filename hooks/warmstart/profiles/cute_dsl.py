"""Kernels that FlashAttention 4 and QuACK compile with CuTe DSL (docs/cache-formats.md, CuTe DSL).

`flash-attention/<fingerprint>/[<name>/]<sha256>.o` and `quack/<fingerprint>/<sha256>.o` are entries: objects with the
GPU's code and the host function `__tvm_ffi_func` that launches it. The fingerprint is of the package's sources, Python,
cutlass and tvm-ffi; the other hash is of the kernel's parameters. The host function is compiled for the CPU that
compiles it, which no key says, so the CPU is in the namespace.
`quack/<key>/<function>.autotune.json`: the timings of one autotuner (`QUACK_CACHE_AUTOTUNING=1`), by Triton's own code.

Never harvested: `*.lock`, `*.tmp`, and CuTe DSL's own `.mlir` files, whose key has the job's working directory.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_HASH = "[0-9a-f]{64}"
_OBJECT = rf"((?:quack|flash-attention)/{_HASH}/(?:[A-Za-z0-9_]{{1,100}}/)?{_HASH}\.o)"
_TIMINGS = r"(quack/[A-Z2-7]{52}/\w{1,150}\.autotune\.json)"


def validate(files: EntryFiles) -> None:
    """Require a whole object with the function that its tool calls, or an autotuner's timings.

    Catches: an empty or truncated object, one of another kind. Cannot catch: changed bytes inside code; an object that
    belongs to another key. Both tools compile again what they cannot load.
    """
    from warmstart.profiles.formats import elf, plain

    (name,) = files.names
    if name.endswith(".o"):
        elf.check_function(files, name, "__tvm_ffi_func")
    else:
        plain.check_timings(files, name)


PROFILE = Profile(
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
    relocation="relocatable",
    facts=("image", "gpu", "cpu"),
    entry_of=named_by(_OBJECT, _TIMINGS),  # the path of one kernel, or of one autotuner's timings
    validate=validate,
    leaves_trace=True,  # a lock for each object that it looks up
    in_step=True,
)
