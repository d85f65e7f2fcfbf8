"""Triton: the files of a kernel's group are those of one writer (docs/cache-formats.md, Triton).

Two processes that compile one kernel at once write into one directory. A group with files of both gave wrong numbers
without an error (triton#11319). The group `__grp__<k>.json` is written last and names the others by absolute path.
"""

from __future__ import annotations

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import read_json

_GROUP = "__grp__"
_ALONE = (".so", ".autotune.json")  # a host module, the timings of one autotuner


def check(files: EntryFiles) -> None:
    """Require a group that names exactly the other files, of which none is younger; or a module, or timings, alone."""
    names = {name.rpartition("/")[2]: name for name in files.names}
    groups = [name for name in names if name.startswith(_GROUP)]
    if not groups and all(name.endswith(_ALONE) for name in names):
        return
    if len(groups) != 1:
        raise EntryInvalid("two-writers" if groups else "incomplete")
    (group,) = groups
    content = read_json(files, names[group])
    children = content.get("child_paths") if isinstance(content, dict) else None
    if not isinstance(children, dict):
        raise EntryInvalid("json-malformed")
    key = files.entry.rpartition("/")[2]
    if not all(isinstance(path, str) and path.endswith(f"/{key}/{name}") for name, path in children.items()):
        raise EntryInvalid("made-elsewhere")
    others = names.keys() - {group}
    if others != children.keys():
        raise EntryInvalid("incomplete" if children.keys() - others else "two-writers")
    written = files.status(names[group]).st_mtime_ns
    if any(files.status(names[name]).st_mtime_ns > written for name in others):
        raise EntryInvalid("two-writers")
