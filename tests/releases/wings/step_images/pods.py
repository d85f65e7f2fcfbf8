"""An image that a step names, in pods of Slurm in Kubernetes.

Steps call pyxis's importer and enroot's hook, as in `test_step_sets`. `tests/releases/test_pods.py` runs it.
"""

from __future__ import annotations

import pytest

from tests.lib.site import Site
from tests.releases.pods import cluster, installed
from tests.slurm.wings.step_images.test_step_sets import test_a_steps_image_is_cold_once

__all__ = ["cluster", "installed", "test_a_steps_image_is_cold_once"]


@pytest.fixture
def asked(site: Site) -> Site:
    return site
