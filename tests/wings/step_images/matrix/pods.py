"""An image that a step names, in pods of Slurm in Kubernetes; the supervisor has the program of the wing's page.

Steps call pyxis's importer and enroot's hook, as in `test_step_sets`. `tests/matrix/test_pods.py` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.pods import PodCluster
from tests.cluster.site import Site
from tests.matrix.pods import installed
from tests.wings.step_images.integration.test_step_sets import test_a_steps_image_is_cold_once

__all__ = ["installed", "test_a_steps_image_is_cold_once"]

PAGE = Path(__file__).resolve().parents[4] / "docs/wings/step_images.md"


def program() -> str:
    """Return the program of the page for a pod's supervisor."""
    (found,) = re.findall(r"^    \[program:.*\n(?:    .*\n)+", PAGE.read_text(), re.MULTILINE)
    return re.sub("(?m)^    ", "", found)


@pytest.fixture(scope="session")
def cluster(capable_host: None) -> Iterator[PodCluster]:
    """Return a running cluster of pods that answer steps."""
    running = PodCluster(programs=program())
    with running:
        yield running


@pytest.fixture
def asked(site: Site) -> Site:
    """Return the site, whose pods have the socket."""
    return site
