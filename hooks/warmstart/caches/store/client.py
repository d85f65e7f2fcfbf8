"""Root's side of the caches' store: each call runs in a process of the store's owner.

Answers are checked before they are returned: hashes and names become paths of root's (docs/threats.md, row 7). Errors
of the store (`StoreFailed`, `StoreFull`, `WorkerSilent`) are possible everywhere. Hot path: calls import what they run.
"""

from __future__ import annotations

from warmstart.host.identity import WorkerAnswerMalformed
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, contextmanager

if TYPE_CHECKING:
    from warmstart.caches.store.bundles import Draft, Published
    from warmstart.caches.store.layout import Entries, Namespace
    from warmstart.caches.store.listing import Row
    from warmstart.caches.store.look import Found, Want
    from warmstart.host.deadline import Deadline
    from warmstart.store.client import StoreClient

    Ahead = Callable[[list[str], list[Want], Deadline], list[Found] | None]


def listings(
    store: StoreClient, scopes: list[str], wants: list[Want], deadline: Deadline, ahead: Ahead | None = None
) -> list[Found]:
    """Return what there is to show of profiles; `scopes` are ordered most trusted first. One question.

    `ahead` returns what was asked for before, None if that was something else.
    """
    from warmstart.caches.store import look

    found = ahead(scopes, wants, deadline) if ahead else None
    if found is None:
        found = store.run(deadline, look.look, scopes, wants)
    try:
        return look.checked(found, scopes, wants)
    except ValueError as error:
        raise WorkerAnswerMalformed(function="look", identity=store.worker.identity.name, problem=error) from error


def fetch(store: StoreClient, where: Namespace, row: Row, deadline: Deadline, *, into: int) -> Entries:
    """Copy a bundle into the open file `into`, which may have its beginning; return its entries with their files.

    Raises `BundleDamaged`, `BundleGone`, or `DiskFailed` if the node's disk fails.
    """
    from warmstart.caches.store import bundles

    entries = store.worker.keeping(into).run(deadline, bundles.fetch, where, row.sha256, row.size, into)
    try:
        return bundles.checked_entries(entries)
    except (ValueError, TypeError) as error:
        raise WorkerAnswerMalformed(function="fetch", identity=store.worker.identity.name, problem=error) from error


def put(store: StoreClient, where: Namespace, squashfs: int, draft: Draft, deadline: Deadline, *, quota: int) -> Row:
    """Put an open squashfs file in place; no listing names it yet. `quota` is in bytes, 0 for none.

    Raises `QuotaExceeded` if the scope would exceed `quota`, or `HarvestTooLarge`.
    """
    from warmstart.caches.store import bundles

    worker = store.worker.keeping(squashfs)
    return worker.run(deadline, bundles.put, where, store.writer, squashfs, draft, quota)


def publish(
    store: StoreClient,
    where: Namespace,
    squashfs: int | None,
    draft: Draft,
    deadline: Deadline,
    *,
    quota: int = 0,
    before: list[Row] | None = None,
) -> Published:
    """Publish an open squashfs file, if there is one, and what its job removed. Errors as of `put`, and `StoreBusy`.

    A bundle that was made of others takes their place if their rows are as `before`.
    """
    from warmstart.caches.store import bundles

    worker = store.worker if squashfs is None else store.worker.keeping(squashfs)
    return worker.run(deadline, bundles.publish, where, store.writer, squashfs, draft, quota, before)


@contextmanager
def locked_namespace(store: StoreClient, where: Namespace, deadline: Deadline) -> Iterator[bool]:
    """Hold the lock of who makes a namespace's content for a `with`; yields False if another node has it."""
    from warmstart.caches.store import gc

    with store.worker.begin(deadline, gc.lock_making, where) as is_ours:
        yield is_ours(deadline)
