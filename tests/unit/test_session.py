"""A session: root, the policy, a log with a last line whatever happens, and the store's process closed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.lib.node import Node, OsAs
from warmstart import session as sessions
from warmstart.audit import events
from warmstart.session import NotRoot, open_session
from warmstart.store.layout import StoreFailed


def test_a_session_has_what_maintenance_needs(node: Node) -> None:
    with open_session(node.installation, "maintain", "n1") as session:
        assert (session.policy, session.node, session.paths) == (node.policy, "n1", node.paths)
        assert session.store.writer == f"n1-{session.run_id}"
        assert 0 < session.store_deadline().left() <= sessions.STORE_SECONDS
        session.audit.emit(events.ENTRY_PROMOTED)
    assert [event["hook"] for event in node.events("entry.promoted")] == ["maintain"]
    assert [event["outcome"] for event in node.events("hook.finished")] == ["ok"]


def test_a_session_in_which_a_part_failed_has_failed(node: Node) -> None:
    with open_session(node.installation, "maintain", "n1") as session:
        session.failed("x", StoreFailed(what="w", problem="p"))
        session.audit.emit(events.ENTRY_PROMOTED)
    assert [failure["code"] for failure in node.failures()] == ["store-failed"]
    assert [event["outcome"] for event in node.events("hook.finished")] == ["failed"]


def test_a_session_that_fails_says_so(node: Node) -> None:
    def fail() -> None:
        with open_session(node.installation, "maintain") as session:
            assert session.node == os.uname().nodename.partition(".")[0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [event["outcome"] for event in node.events("hook.finished")] == ["failed"]


@pytest.mark.report
def test_a_session_that_is_told_to_end_is_no_crash(node: Node) -> None:
    """Its job is over, its step has gone, or its unit was stopped: none of these is a hook that was killed."""
    ready, said = os.pipe()
    child = os.fork()
    if not child:
        try:
            with open_session(node.installation, "step-images", "n1"):
                os.write(said, b"1")
                time.sleep(60)
        finally:
            os._exit(0)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM  # which units, and who waits for it, take for what it is
    assert [event["outcome"] for event in node.events("hook.finished")] == ["ended"]
    before = signal.getsignal(signal.SIGTERM)
    with open_session(node.installation, "step-images", "n1"):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_only_root_has_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "os", OsAs(1000))
    with pytest.raises(NotRoot, match="warmstart cache"), open_session(node.installation, "cache"):
        pytest.fail("not root")
    assert os.listdir(node.installation.var) == ["policy.json"]
