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
from warmstart.lean import TYPE_CHECKING, Iterator, contextmanager

if TYPE_CHECKING:
    from warmstart.paths import NodePaths
    from warmstart.policy.compiled import Policy
    from warmstart.slurm.spec import Spec
    from warmstart.store.blocklist import Block
    from warmstart.store.board import Topic
    from warmstart.store.bundles import Offer, Offers, Published, Reindexed, ToSign
    from warmstart.store.layout import Namespace
    from warmstart.store.maintenance import Bundle, Merger, Use
    from warmstart.store.manifest import Draft, Entries, Manifest
    from warmstart.store.parts import Handed, Listing, RunParts, Standing
    from warmstart.store.signed import Envelope
    from warmstart.store.signed import Listing as SignedListing
    from warmstart.store.verify import SignedLists, Verdict


class StoreClient:
    """One store, with processes of its owner; `close` ends them and releases their locks."""

    head_silent = False  # whether this hook has waited in vain for the head node (meeting.py)

    def __init__(self, owner: Identity, path: str, writer: str) -> None:
        """Work in the store at `path` as `owner`; `writer` (node and run id) is part of the names of temp files.

        With "" for it nothing may be published, and `offers` only reads.
        """
        self.path = path
        self.writer = writer
        self.lists: SignedLists | None = None  # None: the policy asks for no signature
        self._what = f"the store {path}"
        self.worker = Worker(owner, self._what)
        # A process of its own holds the lock: the one that works is killed when an operation passes its deadline.
        self._locker = Worker(owner, self._what)

    @classmethod
    def of(cls, policy: Policy, paths: NodePaths, writer: str) -> StoreClient:
        """Return a client of the policy's store, which takes from signed scopes what their lists name."""
        client = cls(policy.store_user, policy.paths.store, writer)
        if policy.trust.signed:
            from warmstart.store.verify import SignedLists

            client.lists = SignedLists(policy.trust, policy.validate_user, paths.shared)
        return client

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and release their locks."""
        self.worker.close()
        self._locker.close()

    # Bundles

    def offers(
        self, scopes: list[str], profile: str, namespace: str, deadline: Deadline, *, named: bool = True
    ) -> Offers:
        """Return which entries to take from which bundle; `scopes` are ordered most trusted first.

        Unless they are to be `named`, the names of a large bundle's entries are left out where all are taken. Raises
        `BlocksUnreadable` if the blocklist is damaged.
        """
        from warmstart.store import bundles

        listings, problems = self._listings(scopes, profile, namespace, deadline)
        offers = self.worker.look(
            deadline, bundles.offers, self.path, scopes, profile, namespace, self.writer, listings, named
        )
        offers.refused.update(problems)
        for offer in offers.offers:
            self.check_offer(*offer[:3], scopes)
        return offers

    def _listings(
        self, scopes: list[str], profile: str, namespace: str, deadline: Deadline
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the hash of the namespace's listing for each signed scope, "" if there is none, and what is wrong."""
        listings: dict[str, str] = {}
        problems: dict[str, str] = {}
        for scope in scopes if self.lists else ():
            if self.lists and self.lists.is_signed(scope):
                verdict = self.verdict(self.lists, scope, deadline)
                named = verdict.list.namespaces if verdict.list else {}
                listings[scope] = named.get(f"{profile}/{namespace}", "")
                if verdict.problem:
                    problems[f"{scope}/*"] = verdict.problem
        return listings, problems

    def verdict(self, lists: SignedLists, scope: str, deadline: Deadline) -> Verdict:
        """Return what this host makes of a scope's list."""
        return lists.current(scope, lambda: self.signed_list(scope, deadline), deadline)

    def check_offer(self, scope: str, bundle: str, sha256: str, scopes: list[str]) -> None:
        """Refuse what root cannot use: the hash becomes a file name, and an offer is trusted by its scope."""
        from warmstart.store.layout import is_bundle_id
        from warmstart.store.manifest import is_sha256

        if not (is_sha256(sha256) and is_bundle_id(bundle) and scope in scopes):
            raise self._malformed("offers", f"not a bundle: {bundle!a} {sha256!a}")

    def known_entries(
        self, where: Namespace, user: str, uid: int, deadline: Deadline, *, quota: int = 0, fresh: bool = False
    ) -> list[str]:
        """Return the entries that a user's job need not harvest.

        A `fresh` job replaces entries, so only blocked ones are returned. `quota` is in bytes, 0 for none.
        Raises `PublishBlocked`, `QuotaExceeded` if the scope's quota is used up, `TooManyNames` if the user's names in
        the namespace are, or `BlocksUnreadable`.
        """
        from warmstart.store import bundles

        return self.worker.run(deadline, bundles.known_entries, where, user, uid, self.writer, quota=quota, fresh=fresh)

    def fetch(
        self,
        where: Namespace,
        bundle: str,
        sha256: str,
        size: int,
        deadline: Deadline,
        *,
        into: int,
        rate: int = 0,
        signed: str = "",
    ) -> Entries:
        """Copy a bundle into the open file `into`, which may have its beginning; return its entries with their files.

        `signed` is the hash that its manifest must have, "" for any. `rate`: bytes per second at most, 0 for no limit.
        Raises `FetchOverBudget` as soon as it is clear that it cannot be complete at the deadline, `BundleDamaged`,
        `BundleGone`, `ManifestUnreadable`, or `CopyFailed` if the node's disk fails.
        """
        from warmstart.store import bundles, layout

        with Worker(self.worker.identity, self._what, keep=(into,)) as worker:
            entries = worker.run(
                deadline, bundles.fetch, where, bundle, sha256, size, into, deadline.left(), rate, signed
            )
        if not all(layout.is_plain_path(path) for files in entries.values() for path in files):
            raise self._malformed("fetch", f"a file name in {bundle} is not valid in a manifest")
        return entries

    def manifest(self, where: Namespace, bundle: str, deadline: Deadline) -> Manifest:
        """Return a bundle's manifest; raises `ManifestUnreadable` or `BundleGone`."""
        from warmstart.store import bundles, manifest

        return manifest.checked(bundle, self.worker.run(deadline, bundles.read_manifest, where, bundle))

    def publish(
        self, where: Namespace, squashfs: int, draft: Draft, deadline: Deadline, *, quota: int = 0
    ) -> Published:
        """Publish an open squashfs file; readers see it whole or not at all. `quota` is in bytes, 0 for none.

        Raises `QuotaExceeded` if the scope would exceed `quota`, `TooManyNames`, `PublishBlocked`, `BlocksUnreadable`
        or `StoreFull`.
        """
        from warmstart.store import bundles

        self._require_unsigned(where)
        with Worker(self.worker.identity, self._what, keep=(squashfs,)) as worker:
            return worker.run(deadline, bundles.publish_bundle, where, squashfs, draft, self.writer, quota)

    def publish_compacted(self, where: Namespace, squashfs: int, draft: Draft, deadline: Deadline) -> Published:
        """Publish an open squashfs file that replaces other bundles; errors as in `publish`."""
        from warmstart.store import bundles

        self._require_unsigned(where)
        with Worker(self.worker.identity, self._what, keep=(squashfs,)) as worker:
            return worker.run(deadline, bundles.publish_compacted, where, squashfs, draft, self.writer)

    @contextmanager
    def locked_namespace(self, where: Namespace, deadline: Deadline) -> Iterator[bool]:
        """Hold the lock of who makes a namespace's content for a `with`; yields False if another node has it."""
        from warmstart.store import bundles

        with Worker(self.worker.identity, self._what) as locker:
            yield locker.run(deadline, bundles.lock_making, where)

    def _require_unsigned(self, where: Namespace) -> None:
        """Raise `ScopeSigned` for a scope whose list must be signed: nobody would read what is published there."""
        if self.lists and self.lists.is_signed(where.scope):
            from warmstart.store.bundles import ScopeSigned

            raise ScopeSigned(scope=where.scope)

    # Signed scopes, on the host that signs

    def publish_to_sign(self, where: Namespace, squashfs: int, draft: Draft, deadline: Deadline) -> ToSign:
        """Publish an open squashfs file that a signed list is to name; errors as in `publish`."""
        from warmstart.store import bundles

        with Worker(self.worker.identity, self._what, keep=(squashfs,)) as worker:
            return worker.run(deadline, bundles.publish_to_sign, where, squashfs, draft, self.writer)

    def listing(self, where: Namespace, sha256: str, deadline: Deadline) -> SignedListing:
        """Return the listing of a signed scope's namespace; its bytes have this hash."""
        from warmstart.store import signed

        return self.worker.run(deadline, signed.read_listing, where, sha256)

    def write_listing(self, where: Namespace, text: str, deadline: Deadline) -> str:
        """Store a listing; return its hash."""
        from warmstart.store import signed

        return self.worker.run(deadline, signed.write_listing, where, text, self.writer)

    def remove_listings(self, where: Namespace, keep: list[str], deadline: Deadline) -> None:
        """Remove listings of a namespace but those with the hashes `keep`."""
        from warmstart.store import signed

        self.worker.run(deadline, signed.remove_listings, where, keep)

    def signed_list(self, scope: str, deadline: Deadline) -> Envelope | None:
        """Return the list of a scope as it is in the store, None if there is none."""
        from warmstart.store import signed

        return self.worker.look(deadline, signed.read, self.path, scope)

    def write_signed_list(self, scope: str, envelope: Envelope, deadline: Deadline) -> None:
        """Replace the list of a scope."""
        from warmstart.store import signed

        self.worker.run(deadline, signed.write, self.path, scope, envelope, self.writer)

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

        Raises `PartsFull`, `QuotaExceeded`, `PublishBlocked`, `BlocksUnreadable` or `StoreFull`.
        """
        from warmstart.store import parts

        self._require_unsigned(where)
        with Worker(self.worker.identity, self._what, keep=(squashfs,)) as worker:
            return worker.run(deadline, parts.hand_in, place, where, squashfs, draft, nodelist, self.writer, quota)

    def finish_parts(self, place: RunParts, node: str, nodelist: str, deadline: Deadline) -> Standing:
        """Say that a node hands in nothing more; return how far the run is."""
        from warmstart.store import parts

        return self.worker.run(deadline, parts.finish, place, node, nodelist, self.writer)

    def handed_in(self, place: RunParts, where: Namespace, deadline: Deadline) -> list[str]:
        """Return the entries of a namespace that nodes of the run have handed in."""
        from warmstart.store import parts

        return self.worker.run(deadline, parts.entries, place, where)

    def due_parts(self, now: float, deadline: Deadline) -> list[str]:
        """Return the names of runs to merge."""
        from warmstart.store import parts

        return self.worker.run(deadline, parts.due, self.path, now)

    @contextmanager
    def locked_parts(self, place: RunParts, deadline: Deadline) -> Iterator[bool]:
        """Hold the lock of who merges a run for a `with`; yields False if another has it, or the run is gone."""
        from warmstart.store import parts

        with Worker(self.worker.identity, self._what) as locker:
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

        with Worker(self.worker.identity, self._what, keep=(into,)) as worker:
            worker.run(deadline, parts.fetch, place, part.bundle, part.sha256, part.size, into)

    def remove_parts(self, place: RunParts, merged: list[str], deadline: Deadline) -> None:
        """Remove parts, and the run's directory if no other part is there."""
        from warmstart.store import parts

        self.worker.run(deadline, parts.remove, place, merged)

    # Maintenance

    def lock(self, deadline: Deadline, work: str = "maintenance") -> bool:
        """Take the store's lock of a kind of work until `close`; return False if another host has it."""
        from warmstart.store import maintenance

        return self._locker.run(deadline, maintenance.lock, self.path, work)

    def last_compared(self, wheres: list[Namespace], deadline: Deadline) -> list[float]:
        """Return when the copies of each of these trees were last compared with it, 0 if never."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.last_compared, wheres)

    def record_compared(self, where: Namespace, deadline: Deadline) -> None:
        """Record that the copies of a tree were compared with it now."""
        from warmstart.store import maintenance

        self.worker.run(deadline, maintenance.record_compared, where, self.writer)

    def record_maintained(self, deadline: Deadline) -> None:
        """Record that a maintenance run of the store got to its end."""
        from warmstart.store import maintenance

        self.worker.run(deadline, maintenance.record_maintained, self.path)

    def identify(self, deadline: Deadline) -> str:
        """Return the store's id, which it gets if it has none."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.identify, self.path)

    def identity(self, deadline: Deadline) -> str:
        """Return the store's id, "" if it has none yet."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.identity, self.path)

    def scopes(self, deadline: Deadline) -> list[str]:
        """Return the names of all scopes, sorted."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.scopes, self.path)

    def namespaces(self, scope: str, deadline: Deadline) -> list[Namespace]:
        """Return all namespaces of a scope, sorted."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.namespaces, self.path, scope)

    def survey(self, where: Namespace, deadline: Deadline) -> list[Bundle]:
        """Return every bundle of a namespace that readers see."""
        from warmstart.store import layout, maintenance

        surveyed = self.worker.run(deadline, maintenance.survey, where, self.writer)
        for bundle in surveyed:
            # Root uses these names for directories of an export.
            if not (all(map(layout.is_component, bundle[:3])) and layout.is_bundle_id(bundle.bundle)):
                raise self._malformed("survey", f"not a bundle: {bundle[:4]!a}")
        return surveyed

    def record_uses(self, uses: list[Use], deadline: Deadline) -> int:
        """Record the last uses of bundles; return how many were updated."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.record_uses, self.path, uses)

    def sweep(self, where: Namespace, now: float, deadline: Deadline) -> list[str]:
        """Remove leftovers of dead publishers from a namespace; return the removed names."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.sweep, where, self.writer, now)

    def remove_empty(self, where: Namespace, now: float, deadline: Deadline) -> bool:
        """Remove a namespace that has been empty for a day; return whether it was removed."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.remove_empty, where, now)

    def sweep_top(self, now: float, deadline: Deadline) -> list[str]:
        """Remove old temp files and meetings of jobs' nodes outside of the namespaces; return the removed paths."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.sweep_top, self.path, now)

    def superseded(self, where: Namespace, now: float, deadline: Deadline) -> list[str]:
        """Return the replaced bundles of a namespace that nobody can still be reading."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.superseded, where, self.writer, now)

    def plan_compaction(self, where: Namespace, deadline: Deadline, *, fewest: int, most_bytes: int) -> list[Merger]:
        """Return which bundles of a namespace to merge."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.plan_compaction, where, self.writer, fewest, most_bytes)

    def remove(self, where: Namespace, bundles: list[str], deadline: Deadline) -> list[str]:
        """Remove bundles; return those that existed."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.remove, where, bundles, self.writer)

    def quarantine(self, where: Namespace, bundle: str, deadline: Deadline) -> bool:
        """Move a damaged bundle into quarantine; return False if it is gone."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.quarantine, where, bundle, self.writer)

    def reindex(self, where: Namespace, deadline: Deadline) -> Reindexed:
        """Rebuild the index of a namespace from its manifests."""
        from warmstart.store import bundles

        return self.worker.run(deadline, bundles.reindex, where, self.writer)

    # The blocklist

    def block(self, new: Block, deadline: Deadline) -> bool:
        """Add a block; return False if the same is blocked already."""
        from warmstart.store import blocklist

        return self.worker.run(deadline, blocklist.block, self.path, new, self.writer)

    def hides(self, where: Namespace, block: Block, deadline: Deadline) -> int:
        """Return how many bundles of a namespace a block would hide, in whole or in part."""
        from warmstart.store import maintenance

        return self.worker.run(deadline, maintenance.hides, where, self.writer, block)

    def unblock(self, unwanted: Block, deadline: Deadline) -> bool:
        """Remove a block, whatever its reason; return whether it existed."""
        from warmstart.store import blocklist

        return self.worker.run(deadline, blocklist.unblock, self.path, unwanted, self.writer)

    def unblock_all(self, deadline: Deadline) -> bool:
        """Remove the blocklist, readable or not; return whether it existed."""
        from warmstart.store import blocklist

        return self.worker.run(deadline, blocklist.unblock_all, self.path)

    def blocked(self, deadline: Deadline) -> list[Block]:
        """Return all blocks; raises `BlocksUnreadable` if the list is damaged."""
        from warmstart.store import blocklist

        return self.worker.run(deadline, blocklist.listed, self.path)

    # What a job's nodes say to each other

    def begin(self, topic: Topic, notice: str, text: str, deadline: Deadline) -> str:
        """Say the first notice of a topic; return it, or what an earlier prolog of this run has said."""
        from warmstart.store import board

        return self.worker.run(deadline, board.begin, self.path, topic, notice, text)

    def say(self, topic: Topic, notice: str, text: str, deadline: Deadline) -> str:
        """Say a notice; return it, or what was said there before."""
        from warmstart.store import board

        return self.worker.run(deadline, board.say, self.path, topic, notice, text)

    def hear(self, topic: Topic, notices: list[str], known: list[str], deadline: Deadline) -> dict[str, str]:
        """Return these notices, as far as they were said; `known` ones are passed over."""
        from warmstart.store import board

        return self.worker.look(deadline, board.hear, self.path, topic, notices, known)

    def take_down(self, path: str, deadline: Deadline) -> None:
        """Remove the notices of a topic (`Meeting.path`), if there are any."""
        from warmstart.store import board

        self.worker.run(deadline, board.take_down, self.path, path)

    def borne_out(self, profile: str, namespace: str, offers: list[Offer], deadline: Deadline) -> list[Offer]:
        """Return the offers of a proposal. Any node can write one, so signed scopes must bear out theirs.

        Raises `ListUnsigned` if one does not.
        """
        from warmstart.store import bundles

        signed = sorted({offer.scope for offer in offers if self.lists and self.lists.is_signed(offer.scope)})
        if not signed:
            return offers
        listings, _ = self._listings(signed, profile, namespace, deadline)
        found = self.worker.look(deadline, bundles.borne_out, self.path, profile, namespace, offers, listings)
        if len(found) < len(offers):
            from warmstart.store.verify import ListUnsigned

            problem = "the head node proposes a bundle that its list does not name so"
            raise ListUnsigned(scope=", ".join(signed), problem=problem)
        return found

    def read_job_spec(self, path: str, owner: int, deadline: Deadline) -> Spec:
        """Return the spec that the controller wrote as uid `owner`; raises `SpecUnusable` if it cannot be trusted."""
        from warmstart.slurm import spec

        return self.worker.look(deadline, spec.read, path, owner)

    def _malformed(self, function: str, problem: str) -> WorkerAnswerMalformed:
        return WorkerAnswerMalformed(function=function, identity=self.worker.identity.name, problem=problem)
