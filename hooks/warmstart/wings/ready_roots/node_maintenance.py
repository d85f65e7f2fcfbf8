"""What maintenance of a node does for the wing: it removes what trials left that were killed (`trial`)."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, written
from warmstart.host.remove import remove_tree
from warmstart.session import Session
from warmstart.wings.ready_roots.trial import PREFIX

ABANDONED_S = 3600.0  # longer than any trial takes
REMOVAL_S = 60.0


def maintain(session: Session) -> int:
    """Remove it; return how many directories those are."""
    removed, before = 0, time.time() - ABANDONED_S
    for path in filter(None, (session.policy.paths.shelf, session.policy.paths.workspace)):
        with suppress(FileNotFoundError), opened_dir(path) as fd:
            for name in os.listdir(fd):
                if name.startswith(PREFIX) and written(name, fd) < before:
                    remove_tree(fd, name, after(REMOVAL_S))
                    removed += 1
    return removed
