"""Sample values of the wing."""

from __future__ import annotations

from tests.lib.policy_site import a_rule_of
from warmstart.host import wire
from warmstart.wings.ports.step import KEY, Rendezvous


def a_rendezvous(**changes: object) -> Rendezvous:
    """Return a rule's rendezvous, with some fields changed."""
    found = wire.from_object(Rendezvous, a_rule_of({KEY: {"ports": "24000-24999"}}).own[KEY])
    return found._replace(**changes)  # type: ignore[arg-type]
