"""The store, as root sees it: every operation runs in a process of the store's owner.

Whatever comes back is checked against the operation's type. An operation that hangs, because the shared file system
does, ends at its deadline with `WorkerSilent`. Hot path: operations import what they run.
"""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity, Worker


class StoreClient:
    """One store, and the process that works in it; `close` ends the process and releases its locks."""

    def __init__(self, owner: Identity, path: str, publisher: str) -> None:
        """Take who owns the store, where it lies, and the node and run id that name temporary files there."""
        self.path = path
        self.publisher = publisher
        self.worker = Worker(owner)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; locks that it holds are released."""
        self.worker.close()

    def withdraw_rendezvous(self, name: str, deadline: Deadline) -> None:
        """Remove the answer of a job's head node, if it is there; `StoreFailed`."""
        from warmstart.store import rendezvous

        self.worker.run(deadline, rendezvous.withdraw, self.path, name)
