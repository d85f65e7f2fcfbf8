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
    W = TypeVar("W")

# Whose functions run as the store's owner; the contract "store" in setup.cfg says what they may not do.
OWNERS_ROOMS = ("warmstart.store.", "warmstart.caches.store.", "warmstart.images.store.")


def rooms_of(policy: Policy) -> tuple[str, ...]:
    """Return whose functions run as the store's owner, with those of the wings that the policy uses."""
    return (*OWNERS_ROOMS, *(f"warmstart.wings.{known.name}.stored:" for known in policy.wings if known.used))


class StoreClient:
    """One store, with processes of its owner; `close` ends them and releases their locks."""

    head_silent = False  # whether this hook has waited in vain for the head node (barrier.py)

    def __init__(self, owner: Identity, path: str, writer: str, rooms: tuple[str, ...] = OWNERS_ROOMS) -> None:
        """Work in the store at `path` as `owner`; `writer` (node and run id) is part of the names of temp files.

        With "" for it nothing may be published. `rooms` says whose functions may run.
        """
        self.path = path
        self.writer = writer
        self._what = f"the store {path}"
        self.worker = Worker(owner, self._what, rooms=rooms)
        # A process of its own holds the lock: the one that works is killed when an operation passes its deadline.
        self._locker = Worker(owner, self._what, rooms=rooms)

    @classmethod
    def of(cls, policy: Policy, writer: str) -> StoreClient:
        """Return a client of the policy's store."""
        return cls(policy.store_user, policy.paths.store, writer, rooms_of(policy))

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and release their locks."""
        self.worker.close()
        self._locker.close()

    def run(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function of this folder on the store's path, as its owner. `worker.run` binds nothing."""
        return self.worker.run(deadline, function, self.path, *args, **kwargs)

    def run_in(
        self,
        deadline: Deadline,
        function: Callable[Concatenate[W, str, P], R],
        where: W,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a function that writes in a namespace, or in what a run hands in; it gets the writer, too."""
        return self.worker.run(deadline, function, where, self.writer, *args, **kwargs)

    def look(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function that may run twice, as `run` does; once more if the process dies."""
        return self.worker.look(deadline, function, self.path, *args, **kwargs)

    def lock(self, deadline: Deadline, take: Callable[[str], bool]) -> bool:
        """Take a lock of the store's until `close`; return False if another host has it."""
        return self._locker.run(deadline, take, self.path)
