"""Which files of several bundles, laid over each other, a job may see: of each entry those of one bundle.

An overlay merges: where two bundles hold an entry with different files, it shows those of both. So a mask lies on top
of the bundles, with a whiteout for each path that is to be hidden. One mask on top of all is enough, because no path
has to be hidden in one bundle and shown from one below it:

- A path belongs to one entry, whatever the bundle (`Profile.entry_of` is a function of the path), and an entry is shown
  from the topmost bundle that has it (`bundles.offers` gives the others none of it), or from none.
- So if an entry is shown from a bundle, no bundle above has a file of it: that file would be the entry's, too. What
  bundles below have beside it is hidden by the mask, and what they have of the same name lies under it anyway.
- A path of an entry that is not shown (blocked, or of a bundle that was not fetched) is hidden in all bundles.

Where bundles break the first rule (made by releases whose profiles divide a cache in another way), an entry that could
not be shown whole and alone is not shown at all. Pure: knows names, opens nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

Files = Mapping[str, Collection[str]]  # entry → paths of its files


class Layer(NamedTuple):
    """One bundle: what it holds, and which of its entries are wanted."""

    files: Files
    wanted: Collection[str]


class View(NamedTuple):
    """What the job sees of the bundles."""

    entries: list[list[str]]  # for each layer those that are shown
    hidden: list[str]  # paths to put whiteouts at; none lies below another


def view(layers: Sequence[Layer]) -> View:
    """Return what to show and what to hide; `layers` from the topmost one down."""
    top: dict[str, int] = {}  # path → the topmost layer that holds it
    for number, layer in enumerate(layers):
        for files in layer.files.values():
            for path in files:
                top.setdefault(path, number)
    folders = {folder for path in top for folder in _above(path)}

    def is_clear(path: str, number: int) -> bool:
        return top[path] == number and path not in folders and not any(folder in top for folder in _above(path))

    entries = [
        [entry for entry in layer.wanted if all(is_clear(path, number) for path in layer.files[entry])]
        for number, layer in enumerate(layers)
    ]
    shown = {path for layer, kept in zip(layers, entries, strict=True) for entry in kept for path in layer.files[entry]}
    hidden = top.keys() - shown
    return View(entries, sorted(path for path in hidden if not any(folder in hidden for folder in _above(path))))


def _above(path: str) -> Iterator[str]:
    """Give the directories that a path lies in."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
