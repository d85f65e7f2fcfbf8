"""Fixtures of the sweeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.hooks import SweptNode, a_swept_node


@pytest.fixture(scope="session")
def swept(capable_host: None) -> Iterator[SweptNode]:
    """Return a node whose hooks run as root in forked children, with real mounts."""
    with a_swept_node() as node:
        yield node
