"""Collect a directory's entries as an epilog does, into a stage that stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from warmstart.harvest.collect import Collected, Limits, Place, collect
from warmstart.harvest.known import NOTHING_KNOWN, Known
from warmstart.harvest.stage import Stage
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir
from warmstart.host.space import Reservation


def each_file(path: str) -> str | None:
    """Take each file for an entry of its own."""
    return path


@contextmanager
def staged(path: Path) -> Iterator[Stage]:
    """Open a directory as the `entries/` of a stage; it is made if it is missing."""
    path.mkdir(mode=0o700, exist_ok=True)
    with opened_dir(str(path)) as fd, Reservation(fd) as space:
        yield Stage(str(path.parent), fd, space)


def collected(
    tree: Path,
    stage: Path,
    entry_of: Callable[[str], str | None] = each_file,
    known: Known = NOTHING_KNOWN,
    *,
    owner: int | None = None,
    size: int = 1 << 40,
    entries: int = 1000,
    deadline: Deadline | None = None,
    settled_ns: int = 0,
) -> Collected:
    """Collect what is in a directory of a job's, `owner`, by default who runs the tests."""
    limits = Limits(size, entries, deadline or after(60), settled_ns)
    with opened_dir(str(tree.parent)) as base, staged(stage) as made:
        place = Place(base, tree.name, os.getuid() if owner is None else owner)
        return collect(place, entry_of, known, made, limits)
