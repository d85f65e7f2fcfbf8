"""Extensions built by `torch.utils.cpp_extension.load` (docs/cache-formats.md, Ninja builders).

Tried with torch 2.13 and 2.15 and C++.

`<name>/` is one entry: `<name>.so` (or `<name>_v<n>.so` after changes within one process), objects, `build.ninja`,
ninja's log and dependencies, and sources that torch wrote there. ninja compares absolute paths, command lines and
mtimes, so an entry is usable only at its original path with its original mtimes.

Never harvested: `lock`. Up to torch 2.13 its existence means that a build is running, so a stale one blocks every later
job; from 2.14 on it is held with flock(2).
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_NAME = r"[^/.][^/]*"
_FILE = rf"({_NAME})/(?:build\.ninja|\.ninja_log|\.ninja_deps|{_NAME}\.(?:so|o|cpp|cu|cuh|h|hpp))"


def validate(files: EntryFiles) -> None:
    """Require a finished build with a whole library and objects.

    Catches: a library that was being linked, or truncated later (ninja would use it); missing objects or log. Cannot
    catch: changed bytes inside code; sources that changed after the build (ninja detects those).
    """
    import re

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import ninja, plain

    name = files.entry
    libraries = [file.rpartition("/")[2] for file in files.names if file.endswith(".so")]
    if not libraries or not all(re.fullmatch(rf"{re.escape(name)}(?:_v[0-9]+)?\.so", file) for file in libraries):
        raise EntryInvalid("incomplete")
    for library in libraries:
        ninja.check_build(files, name, library)
    for file in files.names:
        if file.endswith((".cpp", ".cu", ".cuh", ".h", ".hpp")):
            plain.check_text(files, file)


PROFILE = Profile(
    name="torch-extensions",
    variables={"TORCH_EXTENSIONS_DIR": "{dir}"},
    defaults={"TORCH_EXTENSIONS_DIR": "{XDG_CACHE_HOME:~/.cache}/torch_extensions"},
    relocation="constant-path",
    facts=("image", "cpu", "gpu"),
    entry_of=named_by(_FILE),  # the extension's directory, for all files by which ninja finds the build up to date
    validate=validate,
    exact_times=True,
    in_step=True,
)
