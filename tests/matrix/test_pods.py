"""Nodes that are pods of Slurm in Kubernetes, with supervisord and network namespaces: tests/matrix/pods.py."""

from __future__ import annotations

import pytest

from tests.matrix.releases import RootFailed, build, run
from tests.support.requirements import unavailable

pytestmark = pytest.mark.sweep


@pytest.mark.parametrize("suite", ["sid"])
def test_nodes_that_are_pods(capable_host: None, suite: str) -> None:
    """On Slurm 26.05, with `auth/slurm`."""
    try:
        root = build(suite, "supervisor", "iproute2")
    except RootFailed as error:
        unavailable(str(error))
    done = run(root, suite, ["-n", "0", "tests/matrix/pods.py"])
    assert set(done.outcomes.values()) == {"passed"}, done.output
