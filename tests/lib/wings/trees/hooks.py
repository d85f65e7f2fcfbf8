"""A tree that the job of the sweeps of all hooks asks for."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lib.wing_hooks import WingHooks

OWNER = 64201  # the job's user


def _make(base: Path) -> None:
    """Make the tree beside the site: what is copied is another tree."""
    tree = base.parent / "trees/env"
    tree.mkdir(parents=True)
    (tree / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for path in (tree, tree / "pyvenv.cfg"):
        os.chown(path, OWNER, OWNER)


HOOKS = WingHooks(
    policy='trees: {{prefixes: ["{top}/trees"]}}\n',
    make=_make,
    words="tree={top}/trees/env",
)
