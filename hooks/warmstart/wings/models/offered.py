"""What the policy says of models, in the form that hooks read. Hot path of jobs that name a model."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import NamedTuple
from warmstart.policy.compiled import Policy

KEY = "models"  # of the policy
WORD = "model"  # of a request
WAYS = ("spank", "namespace", "containers", "enroot")  # values of `constant_path` that show jobs their models
DAY_S = 86_400.0  # a second job within it has a model copied; what was used within it stays


class Models(NamedTuple):
    """Which models jobs may read from copies, and how they are made; by default none."""

    prefixes: tuple[str, ...] = ()
    keep: int = 0  # bytes of copies on a node
    rate: int = 0  # bytes a second that are read for copies


def offered(policy: Policy) -> Models:
    """Return what the policy says of models."""
    return wire.from_object(Models, policy.own[KEY]) if KEY in policy.own else Models()
