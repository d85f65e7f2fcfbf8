"""vLLM's compile cache (docs/cache-formats.md, vLLM).

From the source of vLLM 0.33; its artifacts were tried with torch 2.13 on CPU.

Entries:
`torch_compile_cache/<10 hex>/rank_<r>_<dp>/<prefix>`: what one rank compiled of one part of a model (an encoder's has
the name of its class), i.e. the index `vllm_compile_cache.py` (a Python literal that names the artifacts), the
artifacts, and two listings of the graph. vLLM checks only the directory's name, so the files must come from one job;
`torch_compile_cache/torch_aot_compile/<64 hex>/rank_<r>_<dp>/model`: one pickle;
`flashinfer_autotune_cache/<version>/<architectures>/<sha256>/autotune_configs.json` and
`rocm_segmented_attention/<sha256>.json`: what autotuners chose. Ranks that find different choices wait for each other,
so they are only of use where all of a job's nodes show the same (`in_step`);
`inductor_cache/` and `triton_cache/` beside these, and `deep_gemm/`: entries of other tools, by their own profiles.

Never harvested: `cache_key_factors.json` (it contains values of the job's variables);
`gpu_p2p_access_cache_for_*.json` and `startup_plan/` (valid for one node or one run); `assets/`, `modelinfos/`;
artifacts of the `unpacked` format, which are directories that ranks write into.

The key covers paths and contents of the traced sources, so the namespace needs the image. vLLM always sets Inductor's
directory, and Triton's if the job does not.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by
from warmstart.profiles.nested import NestedCaches

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_RANK = r"rank_[0-9]{1,6}_[0-9]{1,6}(?:_dev[0-9]{1,6})?"
_RANKS = rf"torch_compile_cache/(?:[0-9a-f]{{10}}/{_RANK}|torch_aot_compile/[0-9a-f]{{64}}(?:/{_RANK})?)"
_INDEX = "vllm_compile_cache.py"
_ARTIFACT = r"artifact_[A-Za-z0-9_]{1,150}"
_PART = (
    rf"(torch_compile_cache/[0-9a-f]{{10}}/{_RANK}/(?!inductor_cache/|triton_cache/)[A-Za-z0-9_]{{1,150}})/"
    rf"(?:vllm_compile_cache\.py|computation_graph\.py|transformed_code\.py|{_ARTIFACT})"
)
_MODEL = rf"(torch_compile_cache/torch_aot_compile/[0-9a-f]{{64}}/{_RANK}/model)"
_CHOICES = (
    r"(flashinfer_autotune_cache/[0-9][A-Za-z0-9_.+-]{0,60}/[0-9][0-9a-f_]{0,60}/[0-9a-f]{64}/autotune_configs\.json"
    r"|rocm_segmented_attention/[0-9a-f]{64}\.json)"
)
_NESTED = NestedCaches(
    named_by(_PART, _MODEL, _CHOICES),
    (
        (rf"{_RANKS}/inductor_cache/", "inductor"),
        (rf"{_RANKS}/triton_cache/", "triton"),
        ("deep_gemm/", "deepgemm"),
    ),
)


def validate(files: EntryFiles) -> None:
    """Require an index and all artifacts that it names, a model that is one whole pickle, or an autotuner's choices.

    Catches: a part whose job died before it wrote the index; a missing or changed artifact (by torch's CRC-32); a
    truncated model. Cannot catch: a truncated listing (vLLM does not read it again); changed bytes inside a model's
    strings; a directory that belongs to another graph.
    """
    import re

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import literal, pickle_framing, plain

    if _NESTED.holds(files.entry):
        _NESTED.validate(files)
        return
    if files.entry.endswith("/model") and files.names == (files.entry,):
        pickle_framing.check(files, files.entry, pickles=1)
        return
    if files.names == (files.entry,):
        _check_choices(files)
        return
    index = f"{files.entry}/{_INDEX}"
    if index not in files.names:
        raise EntryInvalid("incomplete")
    artifacts = [name for name in files.names if re.fullmatch(_ARTIFACT, name.rpartition("/")[2])]
    index_names = _artifacts(literal.read_dict(files, index))
    if not index_names or not index_names <= {name.rpartition("/")[2] for name in artifacts}:
        raise EntryInvalid("incomplete")
    for name in artifacts:
        plain.check_artifact(files, name)
    for name in {*files.names} - {index, *artifacts}:
        plain.check_text(files, name)


def _check_choices(files: EntryFiles) -> None:
    """Require what FlashInfer's or vLLM's own autotuner keeps. Only the latter's name is a hash of what is inside."""
    import hashlib
    import json

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    content = plain.read_json(files, files.entry)
    if files.entry.startswith("flashinfer_autotune_cache/"):
        choices = [choice for name, choice in content.items() if not name.startswith("_")]
        runners = [choice[0] if isinstance(choice, list) and len(choice) > 1 else None for choice in choices]
        if not runners or not all(isinstance(runner, str) for runner in runners):
            raise EntryInvalid("field-malformed")
        return
    if not isinstance(content.get("records"), list) or "identity" not in content:
        raise EntryInvalid("field-malformed")
    digest = hashlib.sha256(json.dumps(content["identity"], sort_keys=True).encode()).hexdigest()
    if files.entry.rpartition("/")[2] != f"{digest}.json":
        raise EntryInvalid("name-not-hash")


def _artifacts(value: object) -> set[str]:
    """Return the base names of the artifacts in an index's values, whose structure depends on vLLM's release."""
    import re

    if isinstance(value, str):
        name = value.rpartition("/")[2]
        return {name} if re.fullmatch(_ARTIFACT, name) else set()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return {name for item in items for name in _artifacts(item)}


PROFILE = Profile(
    name="vllm",
    variables={"VLLM_CACHE_ROOT": "{dir}"},
    defaults={"VLLM_CACHE_ROOT": "{XDG_CACHE_HOME:~/.cache}/vllm"},
    relocation="constant-path",  # Triton's
    facts=("image", "gpu", "cpu"),
    entry_of=_NESTED.entry_of,  # a rank's directory of one part, a model's path, or another tool's entry
    validate=validate,
    in_step=True,
    refers_to=("vllm", "triton"),  # what is compiled of a model names artifacts, and those of the caches in it
    experimental=True,
)
