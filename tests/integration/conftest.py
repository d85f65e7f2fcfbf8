"""Fixtures around `tests.cluster`: one real cluster and one registry for the whole session.

Root and Debian's daemons are needed. Where they are missing the tests fail in CI (CI=true), so that
nobody believes a run that tested nothing, and are skipped with the reason elsewhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.cluster import host, installation
from tests.cluster.cluster import Cluster
from tests.cluster.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def capable_host() -> None:
    """Skip, or fail in CI, where the host cannot run a cluster."""
    wanting = host.missing()
    if wanting:
        reason = f"a cluster needs: {', '.join(wanting)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(capable_host: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a running cluster with this checkout installed at its prefix, without a policy."""
    with Cluster() as running:
        installation.install(running.prefix)
        yield running
        if request.session.testsfailed:
            running.keep_logs()


@pytest.fixture(scope="session")
def registry(cluster: Cluster) -> Iterator[Registry]:
    """Return a registry on loopback that ends with the session."""
    with Registry(cluster.base) as running:
        yield running


@pytest.fixture
def write_policy(cluster: Cluster) -> Callable[[str], None]:
    """Return a function that puts a policy in place for the cluster's installation."""

    def write(text: str) -> None:
        installation.write_policy(cluster.prefix, text)

    return write


@pytest.fixture
def nothing_drained(cluster: Cluster) -> Iterator[None]:
    """Fail the test if it leaves a node drained or down; the node is resumed for the next one."""
    yield
    cluster.wait_idle()
    states = cluster.node_states()
    drained = cluster.drained()
    for node in drained:
        cluster.resume(node)
    assert not drained, {node: states[node].reason for node in drained}
