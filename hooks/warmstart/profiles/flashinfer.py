"""FlashInfer's kernels, built by ninja or CuTe DSL (docs/cache-formats.md, Ninja builders and CuTe DSL).

Tried with FlashInfer 0.7 without a GPU.

Below `.cache/flashinfer/<version>/<architectures>/`, `cached_ops/<op>/` has `<op>.so`, objects, `build.ninja` and
ninja's log and dependencies: the entry `.cache/flashinfer/<version>/<architectures>/<op>`. `generated/` has sources,
which ninja compares by mtime. Their names do not say whose they are (`silu_and_mul.cu`, `gen_gemm_sm90/…`), and some
are of several ops: each is an entry by itself. FlashInfer leaves a source alone if it is what it would write. All are
usable only at their original path with their original mtimes.

An op that is compiled with CuTe DSL instead has `cached_ops/<module>_<arch>_cute_dsl/` with `<kernel>.o` and
`meta.json`, which is written last and names the compiler and the sources of all kernels there: one entry.
`.cache/flashinfer/autotune/v2/<environment>/entries/<24 hex>.json` is what the autotuner chose for one operation. The
name is the hash of the key inside. Ranks that find different choices wait for each other, so it is only of use where
all of a job's nodes show the same (`in_step`).

`.cache/flashinfer/cubins/<40 hex>/…/<name>.{cubin,h,txt}` are downloads. FlashInfer has the SHA-256 of each and fetches
again what differs; without them each job would need the network.

Ranks that share a workspace can kill each other: one maps a library while another links it anew, up to FlashInfer 0.7
(TensorRT-LLM#18368). So TensorRT-LLM gives each rank one, `rank-<n>/` with all of this, but only where the job has no
`FLASHINFER_WORKSPACE_BASE`: this profile sets it (docs/reference/profiles.md, Ranks of one node).

Never harvested: `cached_ops/tmp/` and `*.lock`, `flashinfer_jit.log`, the autotuner's `manifest.json` (for people).
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}"
_TOP = r"(?:rank-[0-9]{1,6}/)?\.cache/flashinfer"
_FILE = (
    rf"({_TOP}/[0-9][A-Za-z0-9_.+-]{{0,60}}/[0-9][0-9a-f_]{{0,60}})/"
    rf"(?:cached_ops/(?!tmp/)({_NAME})/(?:build\.ninja|\.ninja_log|\.ninja_deps|meta\.json|{_NAME}\.(?:so|o))"
    rf"|generated/(?:{_NAME}/){{0,6}}{_NAME}\.(?:cu|cuh|cpp|h|hpp|inc))"
)
_DOWNLOAD = rf"{_TOP}/cubins/[0-9a-f]{{40}}/(?:{_NAME}/){{1,6}}{_NAME}\.(?:cubin|h|txt)"
_DOWNLOADS = ".cache/flashinfer/cubins/"
_GENERATED = "/generated/"
_META = "meta.json"
_CHOICE = rf"{_TOP}/autotune/v2/[0-9a-f]{{16}}/entries/[0-9a-f]{{24}}\.json"
_LETTERS_OF_KEY = 24


def entry_of(path: str) -> str | None:
    """Return `….cache/flashinfer/<version>/<architectures>/<op>` for an op's build.

    Generated sources, the autotuner's choices and downloads are entries by themselves.
    """
    import re

    if re.fullmatch(_CHOICE, path) or re.fullmatch(_DOWNLOAD, path):
        return path
    match = re.fullmatch(_FILE, path)
    return (f"{match[1]}/{match[2]}" if match[2] else path) if match else None


def validate(files: EntryFiles) -> None:
    """Require a finished build of the op, with a whole library and objects, or a choice of the autotuner under its key.

    Catches the same faults as `torch_extensions.validate`. Cannot catch: kernels of CuTe DSL that are older than their
    `meta.json` says; another choice under the same key; of a download all but what a crash leaves; a source that was
    cut short, which FlashInfer writes again.
    """
    from warmstart.profiles.formats import ninja, plain

    if _DOWNLOADS in files.entry:
        plain.check_written(files, files.entry)
        return
    if files.entry.endswith(".json"):
        _check_choice(files)
        return
    if _GENERATED in files.entry:
        plain.check_text(files, files.entry)
        return
    parent, _, op = files.entry.rpartition("/")
    if f"{parent}/cached_ops/{op}/{_META}" in files:
        _check_cute_dsl(files, f"{parent}/cached_ops/{op}/", op)
        return
    ninja.check_build(files, f"{parent}/cached_ops/{op}", f"{op}.so")


def _check_cute_dsl(files: EntryFiles, directory: str, op: str) -> None:
    """Require metadata for the architecture in the directory's name, and in each object the kernel of its name."""
    import re

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain

    meta = plain.read_json(files, directory + _META)
    arch, version, sources = (meta.get(name) for name in ("arch", "cute_dsl_version", "source_sha256"))
    if not (isinstance(arch, str) and isinstance(version, str) and isinstance(sources, str)):
        raise EntryInvalid("field-malformed")
    if not version or not re.fullmatch("[0-9a-f]{64}", sources) or not op.endswith(f"_{arch}_cute_dsl"):
        raise EntryInvalid("field-malformed")
    module = op.removesuffix(f"_{arch}_cute_dsl")
    kernels = [name for name in files.names if name != directory + _META]
    if not kernels:
        raise EntryInvalid("incomplete")
    for name in kernels:
        kernel, dot, kind = name.removeprefix(directory).partition(".")
        if "/" in kernel or dot + kind != ".o":
            raise EntryInvalid("unexpected-file")
        elf.check_function(files, name, f"__tvm_ffi_{module}_{kernel}")


def _check_choice(files: EntryFiles) -> None:
    import hashlib

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    content = plain.read_json(files, files.entry)
    key, runner = content.get("key"), content.get("runner")
    if not (isinstance(key, str) and isinstance(runner, str) and "tactic" in content):
        raise EntryInvalid("field-malformed")
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    if files.entry.rpartition("/")[2] != f"{digest[:_LETTERS_OF_KEY]}.json":
        raise EntryInvalid("name-not-hash")


PROFILE = Profile(
    name="flashinfer",
    variables={"FLASHINFER_WORKSPACE_BASE": "{dir}"},
    defaults={"FLASHINFER_WORKSPACE_BASE": "~"},
    relocation="constant-path",
    facts=("image", "gpu", "cpu"),
    entry_of=entry_of,
    validate=validate,
    exact_times=True,
    follows_links=True,  # build.ninja names what `Path.resolve()` makes of sources and outputs (jit/cpp_ext.py)
    in_step=True,
    revision=2,  # 1 had no sources but those of `generated/<op>/`, so that ninja built most ops again
)
