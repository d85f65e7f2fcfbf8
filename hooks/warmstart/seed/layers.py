"""What an overlay shows and hides where a job does not take all rows of one listing: of several scopes, or not all.

Of one listing, whole, the writer has found out what to hide (`caches.store.listing`). Otherwise this does, by the lists
of files on the node. An overlay merges directories, so if two bundles have an entry with different files, it would show
the files of both. One layer of whiteouts above all bundles is enough, because no path is hidden in one bundle and shown
from a bundle below it:

- A path belongs to the same entry in every bundle (`naming`: the entry is a function of the path). An entry is shown
  from one bundle, or not at all.
- So if an entry is shown from a bundle, no bundle above has a file of it. In the bundles below, whiteouts hide the
  other files of the entry; files of the same name are covered anyway.
- A path of an entry that is not shown (it is in a bundle that did not come, or a narrower scope hides it) is hidden in
  all bundles.

Bundles can break the first rule if a release whose profile divides its cache differently published them. Then an entry
that cannot be shown whole and alone is not shown. Pure.
"""

from __future__ import annotations

from warmstart.lean import Collection, Iterator, Mapping, NamedTuple, Sequence

Files = Mapping[str, Collection[str]]  # entry → paths of its files


class Visible(NamedTuple):
    """What an overlay shows of its bundles."""

    entries: list[list[str]]  # the shown entries of each bundle
    hidden: list[str]  # paths of whiteouts; none is below another


def visible(bundles: Sequence[Files], offered: Sequence[Collection[str]]) -> Visible:
    """Return the entries to show and the paths to hide.

    `bundles` have all their files, topmost first, and `offered` are the entries to take from each.
    """
    top: dict[str, int] = {}  # path → the topmost bundle that has it
    for number, files in enumerate(bundles):
        for paths in files.values():
            for path in paths:
                top.setdefault(path, number)
    folders = {folder for path in top for folder in parents(path)}

    def is_clear(path: str, number: int) -> bool:
        return top[path] == number and path not in folders and not any(folder in top for folder in parents(path))

    entries = [
        [entry for entry in names if all(is_clear(path, number) for path in files[entry])]
        for number, (files, names) in enumerate(zip(bundles, offered, strict=True))
    ]
    shown = {path for files, names in zip(bundles, entries, strict=True) for name in names for path in files[name]}
    hidden = top.keys() - shown
    return Visible(entries, sorted(path for path in hidden if not any(folder in hidden for folder in parents(path))))


def given(bundles: Sequence[Files], hidden: Sequence[str]) -> list[list[str]]:
    """Return the entries that a job is given of each bundle of one listing, topmost first, without its names."""
    out = {*hidden}
    above: set[str] = set()
    found = []
    for files in bundles:
        found.append([entry for entry, paths in files.items() if entry not in above and out.isdisjoint(paths)])
        above.update(files)
    return found


def parents(path: str) -> Iterator[str]:
    """Yield the parent directories of a path, deepest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
