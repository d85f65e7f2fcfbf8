"""What a job's end frees."""

from __future__ import annotations

import os

from tests.lib.node import NODE, Node
from warmstart.entry import epilog
from warmstart.host.deadline import after
from warmstart.wings.ports import ledger
from warmstart.wings.ports.ledger import Holder, PortRequest


def test_ports_of_a_prolog_that_undid_the_rest_come_back(node: Node) -> None:
    wings = tuple(known._replace(used=True) for known in node.policy.wings if known.name == "ports")
    node.write(node.policy._replace(wings=wings))
    directory = ledger.directory(node.paths)
    assert epilog.main(node.installation.prefix) == 0
    holder = Holder(NODE, 7, "0a1b2c3d", os.getuid(), "boot")
    taken = ledger.reserve(directory, holder, PortRequest(20000, 20099, 1, 64), 0, after(5))
    assert ledger.held_by(directory, NODE, 7) == taken
    assert epilog.main(node.installation.prefix) == 0
    assert ledger.held_by(directory, NODE, 7) == []
