"""Extensions built by `tvm_ffi.cpp` (docs/cache-formats.md, Ninja builders).

`<name>_<16 hex>/` is one entry: `<name>.so`, objects, `build.ninja`, ninja's log and dependencies, and sources that
tvm-ffi wrote there. ninja compares absolute paths, command lines and mtimes, so an entry is usable only at its original
path with its original mtimes.

Never harvested: `lock` (flock); modules that are built as one object (`output="x.o"`).
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_NAME = r"[^/.][^/]*"
_FILE = rf"({_NAME}_[0-9a-f]{{16}})/(?:build\.ninja|\.ninja_log|\.ninja_deps|{_NAME}\.(?:so|o|cubin|c|cpp|cu))"


def validate(files: EntryFiles) -> None:
    """Require a finished build with a whole library and objects, as `torch_extensions.validate` does."""
    from warmstart.profiles.formats import elf, ninja, plain

    ninja.check_build(files, files.entry, f"{files.entry.rpartition('_')[0]}.so")
    for name in files.names:
        if name.endswith((".c", ".cpp", ".cu")):
            plain.check_text(files, name)
        elif name.endswith(".cubin"):
            elf.check_cubin(files, name)


PROFILE = Profile(
    name="tvm-ffi",
    variables={"TVM_FFI_CACHE_DIR": "{dir}"},
    defaults={"TVM_FFI_CACHE_DIR": "~/.cache/tvm-ffi"},
    relocation="constant-path",
    facts=("image", "cpu", "gpu"),
    entry_of=named_by(_FILE),  # the extension's directory, for all files by which ninja finds the build up to date
    validate=validate,
    exact_times=True,
    follows_links=True,  # build.ninja names what `Path.resolve()` makes of inline sources (cpp/extension.py)
    in_step=True,
)
