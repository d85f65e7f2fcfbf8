"""Nodes that are pods of Slurm in Kubernetes: `pods.py`, and those of wings, in a root that has supervisord."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.releases import RootFailed, build, run
from tests.support.requirements import unavailable

pytestmark = pytest.mark.sweep
ROOT = Path(__file__).resolve().parents[2]
WINGS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/wings/*/matrix/pods.py"))


@pytest.mark.parametrize("file", ["tests/matrix/pods.py", "tests/matrix/jail.py", *WINGS])
def test_nodes_that_are_pods(capable_host: None, file: str) -> None:
    """On Slurm 26.05, with `auth/slurm`."""
    try:
        root = build("sid", "supervisor", "iproute2")
    except RootFailed as error:
        unavailable(str(error))
    done = run(root, "sid", ["-n", "0", file])
    assert set(done.outcomes.values()) == {"passed"}, done.output
