"""Kernels that cuDNN's Python frontend compiles with CuTe DSL (docs/cache-formats.md, cuDNN frontend).

`plans/v2/<environment>/<key>/` is an entry: `kernel.o`, an object with the function `__tvm_ffi_<symbol>`, and
`entry.json`, written last, with the key and that symbol. `plans/v2/<environment>/manifest.json` is an entry, too. The
environment is the hash of what is in there: the frontend's sources, CuTe DSL, tvm-ffi, the driver's CUDA, and the GPU.
`flex-attention/<fingerprint>/[<name>/]<sha256>.o` is an entry: FlexAttention's cache, as FlashAttention 4 keeps its
own, but written in place.

Objects hold code for the CPU that compiled them, which no key says.

Never harvested: `plans/.locks/`, `*.lock`, `*.tmp`.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_HASH = "[0-9a-f]{24}"
_PLAN = rf"(plans/v2/{_HASH}/{_HASH})/(?:kernel\.o|entry\.json)"
_MANIFEST = rf"(plans/v2/{_HASH}/manifest\.json)"
_OBJECT = r"(flex-attention/[0-9a-f]{64}/(?:[A-Za-z0-9_]{1,100}/)?[0-9a-f]{64}\.o)"


def validate(files: EntryFiles) -> None:
    """Require a plan's whole object with the function that its record names, a manifest of its hash, or an object.

    Catches: a plan without its record, a truncated object, any change to a manifest. Cannot catch: changed bytes
    inside code; an object that belongs to another key.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain

    if files.entry.endswith(".json"):
        _check_manifest(files)
    elif files.entry.endswith(".o"):
        elf.check_function(files, files.entry, "__tvm_ffi_func")
    else:
        record, kernel = f"{files.entry}/entry.json", f"{files.entry}/kernel.o"
        if {record, kernel} != {*files.names}:
            raise EntryInvalid("incomplete")
        content = plain.read_json(files, record)
        key, symbol = content.get("key"), content.get("symbol")
        if not (content.get("schema") == "v2" and isinstance(key, str) and isinstance(symbol, str)):
            raise EntryInvalid("field-malformed")
        if not isinstance(content.get("wrapper"), dict):
            raise EntryInvalid("field-malformed")
        elf.check_function(files, kernel, f"__tvm_ffi_{symbol}")


def _check_manifest(files: EntryFiles) -> None:
    import hashlib
    import json

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    content = plain.read_json(files, files.entry)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    if files.entry.split("/")[2] != digest[:24]:
        raise EntryInvalid("name-not-hash")


PROFILE = Profile(
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
    relocation="relocatable",
    facts=("image", "driver", "gpu", "cpu"),
    entry_of=named_by(_PLAN, _MANIFEST, _OBJECT),  # a plan's directory, a manifest's or an object's path
    validate=validate,
    in_step=True,
)
