"""`background KIND [NODE [KEY]]`: do the errands of one kind, or one of them (`errands`). Runs as root, for no job.

Without a node it does those of all nodes of this host, as far as any is due. Hooks start it detached, or systemd does
(`host.detached`). It makes itself idle, but not for kinds of which each errand has a process of its own
(`errands.processes`). While warmstart is off it does only kinds that say so.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from warmstart.errands import loop, processes, registry
from warmstart.errands.loop import Work
from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.paths import Installation
from warmstart.session import NodeOfAnotherPod, open_session, require_keeper

FAILED, WRONG_USAGE = 1, 2


def _is_due(installation: Installation, work: Work, node: str) -> bool:
    """Return whether anything may be due on a node of this host, unless another pod keeps it."""
    with suppress(NodeOfAnotherPod):
        require_keeper(installation.node(node), node)
        return not work.sees or bool(work.sees(installation.node(node)))
    return False


def main(prefix: str, arguments: list[str]) -> int:
    """Do what waits on a node, or on each. Return the exit status."""
    installation = Installation(prefix)
    kind, node, key = [*arguments, "", "", ""][:3]
    try:
        nodes = installation.nodes()
    except OSError as error:
        return _failed(error)
    if kind not in registry.kinds() or (node and node not in nodes):
        print(f"usage: background {'|'.join(registry.kinds())} [NODE [KEY]]", file=sys.stderr)  # noqa: T201 - who calls it
        return WRONG_USAGE
    work = registry.load(kind)
    if work.apart is None:
        process.be_idle()
    nodes = [node] if node else nodes
    return max((_on_node(installation, work, name, key, is_named=bool(node)) for name in nodes), default=0)


def _on_node(installation: Installation, work: Work, node: str, key: str, *, is_named: bool) -> int:
    """Do what waits on one node; return the exit status. What fails there stops no other node of the host."""
    try:
        if (installation.is_off and not work.while_off) or not (is_named or _is_due(installation, work, node)):
            return 0
        hook = work.apart.hook if work.apart and key else "background"
        with open_session(installation, hook, node) as session, session.isolated(work.kind.name):
            if key:
                loop.one(session, work, key)
            elif work.apart:
                processes.run(session, work, work.apart)
            else:
                loop.run(session, work)
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    except OSError as error:  # of this node's disk; all that waits stays
        return _failed(error)
    return 0


def _failed(error: OSError) -> int:
    """Say so to who calls it by hand; return the exit status."""
    print(f"warmstart: background work: {error}", file=sys.stderr)  # noqa: T201
    return FAILED
