"""Root's client for what the store knows of requeued jobs: it runs as the store's owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.store.layout import store_errors

ROOMS = ("warmstart.wings.requeue.stored:",)

P = ParamSpec("P")
R = TypeVar("R")


class RequeueClient(NamedTuple):
    """The requeued jobs of a store."""

    worker: Worker  # runs as the store's owner
    path: str  # the store

    @classmethod
    def of(cls, owner: Identity, path: str) -> RequeueClient:
        """Return a client with a worker of its own. The caller closes it."""
        return cls(Worker(owner, rooms=ROOMS), path)

    def __enter__(self) -> RequeueClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self.worker.close()

    def run(
        self, deadline: Deadline, function: Callable[Concatenate[str, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function of `stored` on the store's path, as the store's owner."""
        with store_errors(f"the image store of {self.path}"):
            return self.worker.run(deadline, function, self.path, *args, **kwargs)
