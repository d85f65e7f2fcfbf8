"""Other tools' caches in vLLM's compile cache (docs/cache-formats.md, vLLM; from the source of vLLM 0.33, not tried).

vLLM always sets Inductor's directory, and Triton's and DeepGEMM's if the job does not: below its cache's root, for each
rank of each model. Their own profiles name and validate these entries.

Never harvested: what vLLM itself keeps (`vllm_compile_cache.py`, its artifacts, `torch_aot_compile/*/model`, what
autotuners chose). A directory's name is all that vLLM checks, and leaves out what matters: jobs have died of another
configuration's. In a cache that is given to each retry these would be wrong for ever.
"""

from __future__ import annotations

from warmstart.profiles.contract import Profile, named_by
from warmstart.profiles.nested import NestedCaches

_RANK = r"rank_[0-9]{1,6}_[0-9]{1,6}(?:_dev[0-9]{1,6})?"
_RANKS = rf"torch_compile_cache/(?:[0-9a-f]{{10}}/{_RANK}|torch_aot_compile/[0-9a-f]{{64}}(?:/{_RANK})?)"
_NESTED = NestedCaches(
    named_by(),  # nothing of its own
    (
        (rf"{_RANKS}/inductor_cache/", "inductor"),
        (rf"{_RANKS}/triton_cache/", "triton"),
        ("deep_gemm/", "deepgemm"),
    ),
)

PROFILE = Profile(
    name="vllm",
    variables={"VLLM_CACHE_ROOT": "{dir}"},
    defaults={"VLLM_CACHE_ROOT": "{XDG_CACHE_HOME:~/.cache}/vllm"},
    relocation="constant-path",  # Triton's
    facts=("image", "gpu", "cpu"),
    entry_of=_NESTED.entry_of,
    validate=_NESTED.validate,
    in_step=True,
    refers_to=("vllm", "triton"),  # Inductor's cache is in it
    experimental=True,
)
