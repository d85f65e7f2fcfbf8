"""What a job's end frees."""

from __future__ import annotations

import os

from tests.lib.entry_site import NODE, EntrySite
from warmstart.entry import epilog
from warmstart.host.deadline import after
from warmstart.wings.ports import ledger
from warmstart.wings.ports.ledger import Holder, PortRequest


def test_ports_of_a_prolog_that_undid_the_rest_come_back(entry_site: EntrySite) -> None:
    """They were told to other nodes, so they stay reserved until then."""
    wings = tuple(known._replace(used=True) for known in entry_site.policy.wings if known.name == "ports")
    entry_site.write(entry_site.policy._replace(wings=wings))
    directory = ledger.directory(entry_site.paths)
    assert epilog.main(entry_site.installation.prefix) == 0
    holder = Holder(NODE, 7, "0a1b2c3d", os.getuid(), "boot")
    taken = ledger.reserve(directory, holder, PortRequest(20000, 20099, 1, 64), 0, after(5))
    assert ledger.held_by(directory, NODE, 7) == taken
    assert epilog.main(entry_site.installation.prefix) == 0
    assert ledger.held_by(directory, NODE, 7) == []
