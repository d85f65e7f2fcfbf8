"""How an importer asks a registry again: only where another attempt may end better, and within the deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from warmstart.host.deadline import Deadline
from warmstart.images.importers.contract import RegistryUnreachable

PAUSES_S = (0.5, 2.0)  # before the second and the third attempt, each up to half longer
_T = TypeVar("_T")


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
