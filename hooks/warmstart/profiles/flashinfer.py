"""FlashInfer's kernels, built by ninja (docs/cache-formats.md, Ninja builders).

From the source of FlashInfer 0.7; not tried on a GPU.

Below `.cache/flashinfer/<version>/<architectures>/`, `cached_ops/<op>/` has `<op>.so`, objects, `build.ninja` and
ninja's log and dependencies, and `generated/<op>/` has the sources, which ninja compares by mtime. Both together are
the entry `.cache/flashinfer/<version>/<architectures>/<op>`. It is usable only at its original path with its original
mtimes.

Never harvested: `cached_ops/tmp/` (locks), `flashinfer_jit.log`, `cubins/` (downloads that FlashInfer itself checks).
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}"
_FILE = (
    rf"(\.cache/flashinfer/[0-9][A-Za-z0-9_.+-]{{0,60}}/[0-9][0-9a-f_]{{0,60}})/"
    rf"(?:cached_ops/(?!tmp/)({_NAME})/(?:build\.ninja|\.ninja_log|\.ninja_deps|{_NAME}\.(?:so|o))"
    rf"|generated/({_NAME})/{_NAME}\.(?:cu|cuh|cpp|h|hpp|inc))"
)


def entry_of(path: str) -> str | None:
    """Return `….cache/flashinfer/<version>/<architectures>/<op>` for an op's build and its generated sources."""
    import re

    match = re.fullmatch(_FILE, path)
    return f"{match[1]}/{match[2] or match[3]}" if match else None


def validate(files: EntryFiles) -> None:
    """Require a finished build of the op, with a whole library and objects.

    Catches the same faults as `torch_extensions.validate`. Generated sources alone are incomplete.
    """
    from warmstart.profiles.formats import ninja, plain

    parent, _, op = files.entry.rpartition("/")
    ninja.check_build(files, f"{parent}/cached_ops/{op}", f"{op}.so")
    for name in files.names:
        if name.startswith(f"{parent}/generated/"):
            plain.check_text(files, name)


PROFILE = Profile(
    name="flashinfer",
    variables={"FLASHINFER_WORKSPACE_BASE": "{dir}"},
    relocation="constant-path",
    facts=("image", "gpu", "cpu"),
    entry_of=entry_of,
    validate=validate,
    exact_times=True,
    follows_links=True,  # build.ninja names what `Path.resolve()` makes of sources and outputs (jit/cpp_ext.py)
    in_step=True,
)
