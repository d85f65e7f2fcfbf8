"""What the policy says of models, in the form that hooks read. Hot path of jobs that name a model."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import NamedTuple
from warmstart.policy.keys import Policy, Size

KEY = "models"  # of the policy
WORD = "model"  # of a request
WAYS = ("spank", "namespace", "containers", "enroot")  # values of `constant_path` that show jobs their models
Path = str
DAY_S = 86_400.0  # a second job within it has a model copied; what was used within it stays


class Models(NamedTuple):
    """Directories with weights that jobs read from copies on their node ([models](../wings/models.md))."""

    prefixes: tuple[Path, ...] = ()
    """Jobs may name directories below these. Write each path without links, as `realpath` shows it. Without any, jobs
    may name none."""
    keep: Size = 500 << 30
    """Copies on a node, in `paths.shelf`. A larger model is not copied."""
    rate: Size = 200 << 20
    """Bytes a second that a node reads of the shared file system for copies."""


def offered(policy: Policy) -> Models:
    """Return what the policy says of models."""
    return wire.from_object(Models, policy.own[KEY]) if KEY in policy.own else Models()
