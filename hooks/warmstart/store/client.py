"""Root's client for the store: every operation runs in a process of the store's owner.

Results are checked against the type of the operation. If the shared file system hangs, an operation raises
`WorkerSilent` at its deadline. Errors of the store (`StoreFailed`) are possible everywhere; docstrings name the others.
Hot path: operations import what they run.
"""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.lean import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from warmstart.policy.keys import Policy

    P = ParamSpec("P")
    R = TypeVar("R")


class StoreClient:
    """One store. `worker` asks its owner, about any path."""

    head_silent = False  # whether this hook has waited in vain for the head node (barrier.py)

    def __init__(self, owner: Identity, path: str, writer: str) -> None:
        """Work in the store at `path` as `owner`; `writer` (node and run id) is part of the names of temp files.

        With "" for it nothing may be published.
        """
        self.path = path
        self.writer = writer
        self.worker = Worker(owner, f"the store {path}")

    @classmethod
    def of(cls, policy: Policy, writer: str) -> StoreClient:
        """Return a client of the policy's store."""
        return cls(policy.store_user, policy.paths.store, writer)

    def run(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function on the store's path, as its owner. `worker.run` binds nothing."""
        return self.worker.run(deadline, function, self.path, *args, **kwargs)
