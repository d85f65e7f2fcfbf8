"""Show the node's copies of some bundles to a job: choose the layers, mount them, lay the overlay over them.

Never on a warm hook's path without seeding.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.seed import overlay
from warmstart.seed.node_cache import Copy
from warmstart.store import layers, mask
from warmstart.store.bundles import Offer

MOST_BUNDLES = overlay.MOST_LAYERS - 1  # one layer is kept for the mask

Picked = list[tuple[Offer, Copy]]  # bundles from the topmost down, each with its copy


class TooManyLayers(ResourceError):
    """A namespace has more bundles than an overlay takes, mostly because nobody compacts the store."""

    code = "too-many-layers"
    template = "bundle {bundle}: a job's view has at most {most} bundles"
    hint = "does `warmstart maintain --store` run each night? it makes one bundle of a user's many"


class Shown(NamedTuple):
    """A mounted view."""

    entries: list[str]
    mapped: bool  # whether seeded files look like the job's own; else they are root's, and anybody's to write


def divided(copied: Picked) -> tuple[Picked, list[TooManyLayers]]:
    """Return the bundles that fit into one view, the more trusted and older ones, and an error for each other one."""
    errors = [TooManyLayers(bundle=offer.bundle, most=MOST_BUNDLES) for offer, _ in copied[MOST_BUNDLES:]]
    return copied[:MOST_BUNDLES], errors


def show(  # noqa: PLR0917 - where, what, for whom
    run_fd: int, subdir: str, directory: str, picked: Picked, job: Identity, deadline: Deadline
) -> Shown:
    """Mount a view of the bundles at `cache/<subdir>` of a run; `directory` is the node's of layers.

    `cache` is still root's. `OverlayUnavailable`: nothing of it is left. `BundleDamaged`: the index is wrong.
    """
    view = _view(picked)
    roots: list[int] = []
    try:
        for _, copy in picked:
            roots.append(layers.mounted(directory, copy, deadline))
        mapped = overlay.build(run_fd, subdir, roots, view.hidden, job)
    except OSError as error:
        raise overlay.OverlayUnavailable(profile=subdir, problem=error.strerror or str(error)) from error
    finally:
        for root in roots:
            os.close(root)
    return Shown([entry for entries in view.entries for entry in entries], mapped)


def _view(picked: Picked) -> mask.View:
    """Return what is to be seen; bundles that are wanted whole need no look at their files."""
    if all(offer.whole for offer, _ in picked):
        return mask.View([offer.entries for offer, _ in picked], [])
    return mask.view([mask.Layer(copy.files(offer), offer.entries) for offer, copy in picked])
