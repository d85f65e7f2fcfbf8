"""The kinds of errands that there are, and what is left of those that there were."""

from __future__ import annotations

import sys
import time

from warmstart import wing
from warmstart.errand import KEPT_S, Errands, Kind
from warmstart.errands.loop import Work
from warmstart.host.files import names_in
from warmstart.session import Session

# Kind → the module with its `WORK`, in the order in which maintenance does them.
_CORE = {
    "harvests": "harvests",
    "rounds": "rounds",
    "parts": "merges",
    "removals": "removals",
    "imports": "imports",
    "unpacks": "unpacks",
}


def kinds() -> list[str]:
    """Return the names of all kinds: the core's, and those of the wings that are here. Never on a warm path."""
    return list(_modules())


def load(kind: str) -> Work:
    """Return how errands of a kind are done; nothing is loaded for other kinds."""
    module = _modules()[kind]
    __import__(module)
    work: Work = sys.modules[module].WORK[kind]
    return work


def drop_unknown(session: Session) -> None:
    """Drop errands a day after they were due that nothing here does, such as those of a wing that was taken off."""
    known = kinds()
    for kind in names_in(session.paths.errands):  # in /run are the core's alone
        errands = Errands(session.paths, Kind(kind))
        for errand in errands.all() if kind not in known else ():
            if abs(time.time() - errand.due) > KEPT_S:
                errands.drop(errand.key)


def _modules() -> dict[str, str]:
    core = {kind: f"warmstart.errands.{module}" for kind, module in _CORE.items()}
    return core | {kind: f"warmstart.wings.{name}.errands" for name, it in wing.found().items() for kind in it.errands}
