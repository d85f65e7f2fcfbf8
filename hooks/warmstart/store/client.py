"""Root's client for the store: every operation runs in a process of the store's owner.

Results are checked before they are returned: against the type of the operation and, if root uses names in its own
paths, against the rules for names. If the shared file system hangs, an operation raises `WorkerSilent` at its
deadline. Errors of the store (`StoreFailed`) are possible everywhere; docstrings name the others. Hot path:
operations import what they run.
"""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerAnswerMalformed
from warmstart.host.worker import Worker
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, contextmanager

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from warmstart.caches.store.layout import Namespace as CachesNamespace
    from warmstart.policy.keys import Policy
    from warmstart.store.bundles import Published
    from warmstart.store.layout import Namespace
    from warmstart.store.manifest import Draft, Manifest
    from warmstart.store.parts import Handed, Listing, RunParts

    P = ParamSpec("P")
    R = TypeVar("R")
    W = TypeVar("W", "CachesNamespace", "Namespace", "RunParts")

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

        With "" for it nothing may be published, and `offers` only reads. `rooms` says whose functions may run.
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

    # Bundles

    def manifest(self, where: Namespace, bundle: str, deadline: Deadline) -> Manifest:
        """Return a bundle's manifest; raises `ManifestUnreadable` or `BundleGone`."""
        from warmstart.store import bundles, manifest

        return manifest.checked(bundle, self.worker.run(deadline, bundles.read_manifest, where, bundle))

    def publish(
        self, where: Namespace, squashfs: int, draft: Draft, deadline: Deadline, *, quota: int = 0
    ) -> Published:
        """Publish an open squashfs file; readers see it whole or not at all. `quota` is in bytes, 0 for none.

        Raises `QuotaExceeded` if the scope would exceed `quota`, `HarvestTooLarge` or `StoreFull`.
        """
        from warmstart.store import bundles

        with self.worker.another(keep=[squashfs]) as worker:
            return worker.run(deadline, bundles.publish_bundle, where, squashfs, draft, self.writer, quota)

    @contextmanager
    def locked_namespace(self, where: CachesNamespace, deadline: Deadline) -> Iterator[bool]:
        """Hold the lock of who makes a namespace's content for a `with`; yields False if another node has it."""
        from warmstart.caches.store import gc

        with self.worker.another() as locker:
            yield locker.run(deadline, gc.lock_making, where)

    # What the nodes of a run hand in

    def hand_in(  # noqa: PLR0917 - as `publish`, and where to
        self,
        place: RunParts,
        where: Namespace,
        squashfs: int,
        draft: Draft,
        nodelist: str,
        deadline: Deadline,
        *,
        quota: int = 0,
    ) -> str:
        """Hand in an open squashfs file, to be published with those of the job's other nodes; return the part's id.

        Raises `HarvestTooLarge`, `QuotaExceeded` or `StoreFull`.
        """
        from warmstart.store import parts

        with self.worker.another(keep=[squashfs]) as worker:
            return worker.run(deadline, parts.hand_in, place, where, squashfs, draft, nodelist, self.writer, quota)

    @contextmanager
    def locked_parts(self, place: RunParts, deadline: Deadline) -> Iterator[bool]:
        """Hold the lock of who merges a run for a `with`; yields False if another has it, or the run is gone."""
        from warmstart.store import parts

        with self.worker.another() as locker:
            is_ours = locker.run(deadline, parts.lock, place)
            yield is_ours
        if is_ours:
            self.worker.run(deadline, parts.unlock, place)

    def parts(self, place: RunParts, deadline: Deadline) -> Listing | None:
        """Return all parts of a run; None if nothing of it is there."""
        from warmstart.store import layout, parts

        listing = self.worker.run(deadline, parts.listing, place)
        names = [*(part.bundle for part in listing.parts), *listing.damaged] if listing else []
        if not all(map(layout.is_bundle_id, names)):
            raise self._malformed("parts", "not the id of a part")
        return listing

    def part(self, place: RunParts, bundle: str, deadline: Deadline) -> Handed:
        """Return a part; raises `ManifestUnreadable` or `BundleGone`."""
        from warmstart.store import manifest, parts

        handed = self.worker.run(deadline, parts.read, place, bundle)
        return handed._replace(manifest=manifest.checked(bundle, handed.manifest))

    def fetch_part(self, place: RunParts, part: Manifest, deadline: Deadline, *, into: int) -> None:
        """Copy a part's squashfs into the empty open file `into`; raises `BundleDamaged` or `BundleGone`."""
        from warmstart.store import parts

        with self.worker.another(keep=[into]) as worker:
            worker.run(deadline, parts.fetch, place, part.bundle, part.sha256, part.size, into)

    # Maintenance

    def lock(self, deadline: Deadline) -> bool:
        """Take the store's maintenance lock until `close`; return False if another host has it."""
        from warmstart.caches.store import gc

        return self._locker.run(deadline, gc.lock, self.path)

    def _malformed(self, function: str, problem: str) -> WorkerAnswerMalformed:
        return WorkerAnswerMalformed(function=function, identity=self.worker.identity.name, problem=problem)
