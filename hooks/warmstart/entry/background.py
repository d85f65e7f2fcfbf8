"""`background KIND NODE`: do a node's errands of one kind off the clock of jobs (`errands`). Runs as root, for no job.

Hooks start it detached (`host.detached`); it makes itself idle. While warmstart is off it does only kinds that say so.
"""

from __future__ import annotations

import sys

from warmstart.errands import loop, registry
from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.paths import Installation
from warmstart.session import open_session

FAILED, WRONG_USAGE = 1, 2


def main(prefix: str, arguments: list[str]) -> int:
    """Do what waits on a node. Return the exit status."""
    installation = Installation(prefix)
    try:
        kind, node = arguments if len(arguments) == len(("KIND", "NODE")) else ("", "")
        if kind not in registry.kinds() or node not in installation.nodes():
            print(f"usage: background {'|'.join(registry.kinds())} NODE", file=sys.stderr)  # noqa: T201 - who calls it
            return WRONG_USAGE
        work = registry.load(kind)
        if work.while_off or not installation.is_off:
            process.be_idle()
            with open_session(installation, "background", node) as session, session.isolated(kind):
                loop.run(session, work)
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    except OSError as error:  # of this node's disk; all that waits stays
        print(f"warmstart: background work: {error}", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    return 0
