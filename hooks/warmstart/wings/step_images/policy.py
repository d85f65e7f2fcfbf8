"""The policy's `step_images`. Never on a warm path."""

from __future__ import annotations

from warmstart.wings.step_images.place import KEY, StepImages

SECTIONS = {KEY: StepImages}
RULE_KEYS = None
