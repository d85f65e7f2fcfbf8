"""`flush`: the journals of all nodes of a host are moved. Runs as root, for no job.

A path unit of systemd starts it, or cron, and only where something waits (packaging/libexec/flush.in). It also does so
while warmstart is off: what happened is no work on jobs.
"""

from __future__ import annotations

from warmstart import journals
from warmstart.audit.fallback import say
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.record import using_state

FAILED = 1


def main(prefix: str) -> int:
    """Move the journals of all of this host's nodes. Return the exit status."""
    installation, status = Installation(prefix), 0
    try:
        policy = current_policy(installation).policy
        with using_state(installation.var):
            nodes = installation.nodes()
    except WarmstartError as error:
        say(str(error))
        return FAILED
    for node in nodes:
        try:
            journals.move(policy, installation.node(node), node, after(journals.STORE_SECONDS))
        except WarmstartError as error:  # the journals stay
            say(str(error))
            status = FAILED
    return status
