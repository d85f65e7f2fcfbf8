"""Bundles as sets of paths, profiles' rules, and the contents of an overlay of such bundles."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import strategies as st

PATHS = st.sampled_from([f"{folder}{name}" for folder in ("", "a/", "a/b/", "c/") for name in "xyz"])
# The same, and files where others have directories; no bundle has both.
ODD_PATHS = st.sets(st.one_of(PATHS, st.sampled_from(["a", "a/b", "c"])), min_size=1).map(
    lambda paths: {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
)
# A profile's rule: the entry of a path, the same in all bundles. Groups of one, of two names, of a whole directory.
RULES: list[Callable[[str], str]] = [
    lambda path: path,
    lambda path: path.replace("y", "x"),
    lambda path: path.rpartition("/")[0] or path,
]


def grouped(paths: set[str], entry_of: Callable[[str], str]) -> dict[str, list[str]]:
    """Return the entries of a bundle with these files."""
    return {e: sorted(files) for e, files in itertools.groupby(sorted(paths, key=entry_of), key=entry_of)}


def merged(bundles: list[tuple[int, set[str]]], hidden: list[str]) -> dict[str, int]:
    """Return what an overlay shows, path → bundle. The topmost wins; nothing is below a whiteout or a file."""
    folders = {folder for path in hidden for folder in above(path)}
    covered = {*hidden}
    found: dict[str, int] = {}
    for number, paths in bundles:
        seen = [p for p in sorted(paths) if p not in folders and not covered & {p, *above(p)}]
        found.update(dict.fromkeys(seen, number))
        covered.update(seen)
        folders.update(folder for path in seen for folder in above(path))
    return found


def above(path: str) -> set[str]:
    """Return the directories above a path."""
    parts = path.split("/")
    return {"/".join(parts[:depth]) for depth in range(1, len(parts))}
