"""What a host believes of signed lists, with real keys: the rest of it is in tests/wings/signing/security."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests.support.policy_site import defaults
from tests.wings.signing.values import need_ssh_keygen
from warmstart.errors import StoreError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.policy.compiled import Policy
from warmstart.store.layout import StoreFailed
from warmstart.wings.signing import signatures
from warmstart.wings.signing.lists import SignedLists, Verdict
from warmstart.wings.signing.settings import KEY
from warmstart.wings.signing.stored import Envelope

pytestmark = pytest.mark.threat(52)


class Host:
    """A host that believes one key, and a store with at most one list."""

    def __init__(self, root: Path) -> None:
        """Make a key."""
        self.key = root / "key"
        self.var = root / "var"
        self.var.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        keys = [(root / "key.pub").read_text().strip()]
        me = Identity("me", os.getuid(), os.getgid())
        self.policy: Policy = defaults()._replace(validate_user=me, own={KEY: {"scopes": ["site"], "keys": keys}})
        self.there: Envelope | None = None
        self.error: StoreError | None = None

    def put(self, serial: int, **changes: object) -> Envelope:
        """Put a signed list into the store."""
        now = time.time()
        made = {"format": 1, "store": "s", "scope": "site", "serial": serial, "made": now, "expires": now + 1000}
        text = json.dumps({**made, "namespaces": {}, **changes})
        self.there = Envelope(text, signatures.sign(str(self.key), text, after(20)))
        return self.there

    def read(self) -> Envelope | None:
        """Return what is in the store."""
        if self.error:
            raise self.error
        return self.there

    def verdict(self) -> Verdict:
        """Return what a new process of this host makes of it."""
        lists = SignedLists(self.policy, str(self.var))
        return lists.current("site", self.read, after(20))

    def outcome(self) -> tuple[int, str]:
        """Return the serial of the list to go by, 0 without one, and the problem."""
        made, problem = self.verdict()
        return made.serial if made else 0, problem


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host."""
    need_ssh_keygen()
    return Host(tmp_path)


def test_a_list_that_holds_is_remembered(host: Host) -> None:
    """It is checked once, and stays in use while the store has none, another or does not answer."""
    assert host.outcome() == (0, "there is no signed list")
    host.put(7)
    assert host.outcome() == (7, "")
    with mock.patch.object(signatures, "holds", side_effect=AssertionError("checked again")):
        assert host.outcome() == (7, "")
    changes: list[Callable[[], object]] = [
        lambda: setattr(host, "there", None),
        lambda: setattr(host, "there", Envelope("", "")),
        lambda: host.put(6),
        lambda: host.put(7, namespaces={"numba/ns": "ab" * 32}),
        lambda: host.put(8, store="another"),
        lambda: host.put(8, scope="account-x"),
        lambda: host.put(8, format=2),
        lambda: setattr(host, "error", StoreFailed(what="read", problem="EIO")),
    ]
    for change in changes:
        change()
        serial, problem = host.outcome()
        assert (serial, problem.endswith("; the list with the serial 7 stays in use")) == (7, True), problem
    host.error = None
    host.put(8)
    assert host.outcome() == (8, "")


def test_a_host_that_knows_its_store_believes_no_list_of_another(host: Host) -> None:
    """Also if it has seen none yet."""
    (host.var / "store-id").write_text("mine")
    host.put(7)
    assert "for another store" in host.outcome()[1]
    host.put(7, store="mine")
    assert host.outcome() == (7, "")


def test_without_the_program_nothing_new_is_believed(host: Host) -> None:
    """It is no fault that drains a node."""
    host.put(7)
    with mock.patch.object(signatures, "SSH_KEYGEN", "/nowhere/ssh-keygen"):
        assert host.verdict().list is None
        assert "cannot run /nowhere/ssh-keygen" in host.outcome()[1]
    assert host.outcome() == (7, "")
    host.put(8)
    with mock.patch.object(signatures, "SSH_KEYGEN", "/nowhere/ssh-keygen"):
        assert host.outcome()[0] == 7


def test_a_process_asks_the_store_once_for_all_profiles(host: Host) -> None:
    """Within a few seconds, unless it is told to look again."""
    host.put(7)
    lists = SignedLists(host.policy, str(host.var))
    assert lists.current("site", host.read, after(20)).problem == ""
    host.there = None
    assert lists.current("site", host.read, after(20)).problem == ""
    lists.forget_recent()
    assert lists.current("site", host.read, after(20)).problem != ""


def test_a_key_that_does_not_sign_is_named(host: Host, tmp_path: Path) -> None:
    """With ssh-keygen's own reason."""
    with pytest.raises(signatures.SigningFailed, match="nothing"):
        signatures.sign(str(tmp_path / "nothing"), "text", after(20))
