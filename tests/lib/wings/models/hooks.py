"""A model that the job of the sweeps of all hooks names, with its copies on the node."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lib.wing_hooks import WingHooks
from warmstart.wings.models import look

OWNER = 64201  # the job's user


def _make(base: Path) -> None:
    """Make the model beside the site: what is copied is another one."""
    model = base.parent / "models/tiny"
    model.mkdir(parents=True)
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(look.LEAST)
    for path in (model, model / "model.safetensors"):
        os.chown(path, OWNER, OWNER)


HOOKS = WingHooks(
    policy='models: {{prefixes: ["{top}/models"]}}\n',
    make=_make,
    words="model={top}/models/tiny",
)
