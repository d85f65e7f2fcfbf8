"""The store's bundles as maintenance and the command line go through them."""

from __future__ import annotations

import pytest

from tests.lib.node import Node
from warmstart import session as sessions
from warmstart.maintenance import bundles
from warmstart.maintenance.bundles import labels
from warmstart.session import open_session
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle


@pytest.mark.timed
def test_work_on_a_bundle_is_the_sessions(node: Node) -> None:
    """Its store, its policy's validator; and more time than for a look."""
    with open_session(node.installation, "maintain", "n1") as session:
        assert bundles.repack_settings(session).validator == node.policy.validate_user
        item = Bundle("site", "numba", "ns", "x", "0" * 64, 1, 1, "alice", 0.0, 1, 1)
        assert bundles.namespace_of(item, session.store) == Namespace(str(node.store), "site", "numba", "ns")
        assert sessions.STORE_SECONDS < bundles.bundle_deadline().left() <= bundles.BUNDLE_SECONDS


def test_a_namespace_as_fields_of_an_event() -> None:
    """By the names that all events use."""
    assert labels(Namespace("/s", "site", "numba", "ns")) == {"scope": "site", "profile": "numba", "namespace": "ns"}
