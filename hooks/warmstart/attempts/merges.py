"""Publish what the nodes of a run have handed in. It waits in the store (`store.parts`), for any node."""

from __future__ import annotations

import time

from warmstart.audit import events
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.queue import at_work
from warmstart.repack import parts as merge
from warmstart.repack.parts import Merged
from warmstart.repack.rewrite import RepackSettings, clear_stage
from warmstart.session import Session
from warmstart.slurm.nodes import first
from warmstart.steps import harvest
from warmstart.store import parts
from warmstart.store.bundles import BundleDamaged
from warmstart.store.layout import Namespace
from warmstart.store.manifest import ManifestUnreadable
from warmstart.store.parts import PARTS, Listing, Part, RunParts

MERGE_S = 900.0  # for reading, unpacking, packing and publishing what a run has in one namespace
MOST_NAMED = 20  # nodes or entries in an event


def run(session: Session) -> int:
    """Publish what is due, unless another process of this node does; return how many runs that was."""
    done = 0
    with at_work(session.paths, PARTS) as is_ours:
        names = session.store.run(session.store_deadline(), parts.due, time.time()) if is_ours else []
        for name in names:
            clear_stage(session.paths.merging)  # what a process has left that died
            with session.isolated(f"parts of {name}"):
                done += _publish(session, RunParts(session.store.path, name))
    return done


def _publish(session: Session, run: RunParts) -> bool:
    """Publish one run, if it is still due and no other node does; return whether nothing of it is left."""
    with session.store.locked_parts(run, session.store_deadline()) as is_ours:
        listing = session.store.parts(run, session.store_deadline()) if is_ours else None
        if listing is None or not parts.is_due(listing.standing, time.time()):
            return False
        return _Merge(session, run, listing).all()


class _Merge:
    """The merge of one run's parts, and its lines, which bear the labels of the job that made them."""

    def __init__(self, session: Session, run: RunParts, listing: Listing) -> None:
        self._session = session
        self._run = run
        self._listing = listing
        self._is_old = listing.standing.since < time.time() - parts.KEPT_S
        self._merged: list[Merged] = []
        producers = [part.producer for part in listing.parts]
        labels = parts.labels(run.name)
        if producers:
            labels |= {"user": producers[0].user, "cluster": producers[0].cluster}
        self._audit = session.audit.for_job(**labels)
        self._names: dict[str, str] = {}  # of caches in the log, by namespace
        self._nodes = {producer.node for producer in producers}

    def all(self) -> bool:
        """Publish every namespace; return whether nothing is left. What cannot be published is dropped after a day."""
        for bundle, problem in self._listing.damaged.items():
            self._drop(bundle, problem)
        missing = self._listing.standing.missing
        is_whole = True
        for where, group in merge.by_namespace(self._listing).items():
            done = False
            with self._session.isolated(f"parts of {self._run.name}"):
                self._publish(where, group)
                done = True
            is_whole = is_whole and done
        if is_whole:
            self._remove([])  # the nodes' last words, where there was nothing else
        if self._merged:
            self._audit.emit(
                events.HARVEST_MERGED,
                run=self._run.name,
                nodes=len(self._nodes),
                missing=missing[:MOST_NAMED],
                lacking=len(missing),
                bundles=len(self._merged),
                left_out=sum(merged.left_out for merged in self._merged),
            )
        self._audit.finish(outcome="ok" if is_whole else "failed", run=self._run.name)
        return is_whole

    def _publish(self, where: Namespace, group: list[Part]) -> None:
        """Publish the parts of one namespace, and remove them."""
        session, rules = self._session, self._session.policy
        settings = RepackSettings(session.paths.merging, session.store, rules.validate_user)
        head = first(self._listing.standing.nodelist)
        left = {part.bundle: part for part in group}
        while left:
            try:
                merged = merge.merge(settings, self._run, [*left.values()], after(MERGE_S), head=head)
            except (BundleDamaged, ManifestUnreadable) as error:
                bad = str(error.fields["bundle"])
                if bad not in left:
                    raise
                self._drop(bad, str(error.fields["problem"]))
                del left[bad]
            except WarmstartError as error:
                if self._is_old:
                    for bundle in left:
                        self._drop(bundle, str(error))
                    return
                raise
            else:
                self._tell(where, merged)
                self._remove([*left])
                return

    def _tell(self, where: Namespace, merged: Merged) -> None:
        published, draft = merged.published, merged.draft
        if published.bundle:
            self._merged.append(merged)
            fields = {**published._asdict(), "superseding": len(published.superseding)}
            self._put(where, **fields, entries=len(draft.entries))
        if late := sorted(draft.based_on.keys() - {*published.superseding}):
            examples = [(entry, harvest.SUPERSEDED) for entry in late[:MOST_NAMED]]
            reasons = {harvest.SUPERSEDED: len(late)}
            self._put(where, rejected=reasons, rejected_examples=examples)

    def _put(self, where: Namespace, **fields: object) -> None:
        """Add to what the log says of a cache; a run has several of a profile if its steps have images."""
        taken = where.profile in self._names.values()
        name = self._names.setdefault(where.name, f"{where.profile}@{where.name}" if taken else where.profile)
        self._audit.put("caches", name, namespace=where.name, scope=where.scope, **fields)

    def _drop(self, bundle: str, reason: str) -> None:
        self._audit.emit(events.BUNDLE_DROPPED, run=self._run.name, part=bundle, reason=reason)
        self._remove([bundle])

    def _remove(self, bundles: list[str]) -> None:
        self._session.store.worker.run(self._session.store_deadline(), parts.remove, self._run, bundles)
