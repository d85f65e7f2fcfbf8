"""How an importer starts its programs, and how it asks a registry again.

Run by root, each is alone: as the import account, in namespaces of its own. Run by a user for himself
(own_scope.py), it is his own process as any other: there is nobody to be protected from it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from warmstart.host import children
from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity
from warmstart.images.importers.contract import RegistryUnreachable

PRLIMIT = "/usr/bin/prlimit"
LARGEST_FILE = 256 << 30  # bytes; of any single file that an import writes
PAUSES_S = (0.5, 2.0)  # before the second and the third attempt, each up to half longer
_T = TypeVar("_T")


def run(
    argv: Sequence[str],
    *,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    cwd: str,
    network: bool,
    capabilities: Sequence[str] = (),
) -> children.Ended:
    """Run a program of an importer; the parameters are those of `children.run_alone`."""
    limited = [PRLIMIT, f"--fsize={LARGEST_FILE}", "--core=0", "--", *argv]
    if os.geteuid() == identity.uid:
        return children.run(limited, deadline=deadline, env=env, cwd=cwd)
    return children.run_alone(
        limited,
        deadline=deadline,
        identity=identity,
        env=env,
        cwd=cwd,
        network=network,
        capabilities=capabilities,
    )


def patiently(attempt: Callable[[], _T], deadline: Deadline, pauses: Sequence[float]) -> _T:
    """Return what `attempt` returns, tried again after `RegistryUnreachable` and a pause; seconds."""
    for pause in pauses:
        try:
            return attempt()
        except RegistryUnreachable:
            # S311: spreads nodes that were refused together; no secret
            spread = pause * (1 + random.random() / 2)  # noqa: S311
            if deadline.left() <= spread:
                raise
            time.sleep(spread)
    return attempt()
