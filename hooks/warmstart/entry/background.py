"""`background WHAT NODE [RUN]`: do off the clock of jobs what their hooks had no time for. Runs as root, for no job.

| WHAT          | is                                                         | waits in                    |
|---------------|------------------------------------------------------------|-----------------------------|
| `fetches`     | bundles that did not come within `seed.fetch_budget`       | `seed.wanted`               |
| `removals`    | runs of which a job left more than its epilog could remove | `run_end`                   |
| `packs`       | trees that jobs have asked for                             | `trees.requests`            |
| `comparisons` | copies of trees that nobody has compared for long          | `trees.comparison`          |
| `parts`       | what all nodes of RUN, or of any run, have handed in       | `store.parts`, in the store |

Hooks start it detached (`host.detached`), it makes itself idle, and maintenance does the same work. One process does
each on a node at a time, so that the rate of `seed.fetch_rate` is the node's. It may be killed at any point: what is
left still waits, and the next hook that leaves something, or maintenance, goes on. While warmstart is off nothing is
fetched or merged; what was left to be removed is removed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from warmstart.audit import events
from warmstart.errands import loop, registry
from warmstart.errors import WarmstartError
from warmstart.host import files, process
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import WorkerSilent
from warmstart.paths import Installation
from warmstart.repack import parts as merge
from warmstart.repack.merge import RepackSettings, clear_stage
from warmstart.repack.parts import Merged, MergeLimits
from warmstart.session import Session, open_session
from warmstart.slurm.nodes import first
from warmstart.steps import harvest
from warmstart.store import parts
from warmstart.store.bundles import BundleDamaged, PublishBlocked
from warmstart.store.layout import Namespace
from warmstart.store.manifest import ManifestUnreadable
from warmstart.store.parts import PARTS, Listing, Part, RunParts
from warmstart.trees import comparison, packing, requests
from warmstart.trees.current import TreeUnusable
from warmstart.trees.requests import TreeRequest
from warmstart.trees.walk import TreeNotShared, TreeTooLarge

FETCH_S = 3600.0  # for one attempt at a bundle; longer if the rate is low
SLICE_S = 10.0  # for removing, before another user's run has its turn
RUN_S = 600.0  # for one run, or the merges of one user; the next process, or maintenance, does the rest
MERGE_S = 900.0  # for reading, unpacking, packing and publishing what a run has in one namespace
COMPARE_S = 900.0  # after which no further tree is compared
MOST_NAMED = 20  # nodes or entries in an event
FAILED, WRONG_USAGE = 1, 2


def main(prefix: str, arguments: list[str]) -> int:
    """Do what waits on a node. Return the exit status."""
    installation = Installation(prefix)
    try:
        what, node, *run = (*arguments, "", "")[: max(2, len(arguments))]
        kinds = registry.kinds()
        if what not in {*WORK, *kinds} or node not in installation.nodes() or len(run) > (what == PARTS):
            print(f"usage: background {'|'.join([*WORK, *kinds])} NODE [RUN]", file=sys.stderr)  # noqa: T201 - who calls it by hand
            return WRONG_USAGE
        work = registry.load(what) if what in kinds else None
        if (work and work.while_off) or not installation.is_off:
            process.be_idle()
            with open_session(installation, "background", node) as session, session.isolated(what):
                if work:
                    loop.run(session, work)
                else:
                    WORK[what](session, *run)
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    except OSError as error:  # of this node's disk; all that waits stays
        print(f"warmstart: background work: {error}", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    return 0


def merge_all(session: Session, only: str = "") -> int:
    """Publish what the nodes of runs have handed in; return how many runs left nothing behind.

    That is `only` this run, or all that are due and that nobody is at work on. All runs of one user get `RUN_S`
    together, and the next process does the rest.
    """
    finished = 0
    users: dict[str, float] = {}  # seconds, by uid
    with files.opened_lock(session.paths.locks, PARTS) as fd:
        if not files.wait_flock(fd, after(RUN_S if only else 0)):
            return 0
        clear_stage(session.paths.merging)
        for name in [only] if only else session.store.run(session.store_deadline(), parts.due, time.time()):
            uid = name.partition(".")[0]
            if users.get(uid, 0.0) < RUN_S:
                began = time.monotonic()
                with session.isolated(f"parts of {name}"):
                    finished += _merge_run(session, RunParts(session.store.path, name))
                users[uid] = users.get(uid, 0.0) + time.monotonic() - began
    return finished


def _merge_run(session: Session, run: RunParts) -> bool:
    """Publish one run, if it is due and nobody else does; return whether nothing of it is left."""
    with session.store.locked_parts(run, session.store_deadline()) as is_ours:
        listing = session.store.parts(run, session.store_deadline()) if is_ours else None
        if listing is None or not parts.is_due(listing.standing, time.time()):
            return False
        return _Merge(session, run, listing).all()


class _Merge:
    """The merge of one run's parts, and its events, which bear the labels of the job that made them."""

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
        self._nodes = {producer.node for producer in producers}

    def all(self) -> bool:
        """Publish every namespace; return whether nothing is left. What cannot be published is dropped after a day."""
        for bundle, problem in self._listing.damaged.items():
            self._drop(bundle, problem)
        is_whole = True
        for where, group in merge.by_namespace(self._listing).items():
            done = False
            with self._session.isolated(f"parts of {self._run.name}"):
                done = self._publish(where, group)
            is_whole = is_whole and done
        if is_whole:
            self._remove([])  # the nodes' last words, where there was nothing else
        if self._merged:
            missing = self._listing.standing.missing
            self._audit.emit(
                events.HARVEST_MERGED,
                run=self._run.name,
                nodes=len(self._nodes),
                missing=missing[:MOST_NAMED],
                lacking=len(missing),
                bundles=len(self._merged),
                left_out=sum(merged.left_out for merged in self._merged),
            )
        return is_whole

    def _publish(self, where: Namespace, group: list[Part]) -> bool:
        """Publish the parts of one namespace, and remove them; return whether they are gone."""
        session, rules = self._session, self._session.policy
        settings = RepackSettings(session.paths.merging, session.store, rules.validate_user)
        limits = MergeLimits(rules.seed.max_fetch, rules.harvest.max_entries)
        head = first(self._listing.standing.nodelist)
        left = {part.bundle: part for part in group}
        while left:
            try:
                merged = merge.merge(settings, self._run, [*left.values()], after(MERGE_S), head=head, limits=limits)
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
                    return True
                if isinstance(error, PublishBlocked):  # until an administrator changes that
                    return False
                raise
            else:
                self._tell(where, merged)
                self._remove([*left])
                return True
        return True

    def _tell(self, where: Namespace, merged: Merged) -> None:
        published, draft = merged.published, merged.draft
        if published.bundle:
            self._merged.append(merged)
            self._audit.emit(
                events.BUNDLE_PUBLISHED,
                profile=where.profile,
                namespace=where.name,
                scope=where.scope,
                run=self._run.name,
                **{**published._asdict(), "superseding": len(published.superseding)},
                entries=len(draft.entries),
            )
        if late := sorted(draft.based_on.keys() - {*published.superseding}):
            examples = [(entry, harvest.SUPERSEDED) for entry in late[:MOST_NAMED]]
            reasons = {harvest.SUPERSEDED: len(late)}
            self._audit.emit(events.ENTRY_REJECTED, profile=where.profile, reasons=reasons, examples=examples)

    def _drop(self, bundle: str, reason: str) -> None:
        self._audit.emit(events.BUNDLE_DROPPED, run=self._run.name, part=bundle, reason=reason)
        self._remove([bundle])

    def _remove(self, bundles: list[str]) -> None:
        self._session.store.worker.run(self._session.store_deadline(), parts.remove, self._run, bundles)


def pack_all(session: Session) -> int:
    """Pack the trees of which an attempt is due, unless another process is at it; return how many were tried."""
    tried: dict[str, int] = {}  # whose uid
    with files.opened_lock(session.paths.locks, requests.PACKS) as fd:
        while waiting := [request for request in requests.due(session.paths) if request.key not in tried]:
            if not files.try_flock(fd):
                break
            request = min(waiting, key=lambda request: [*tried.values()].count(request.uid))
            tried[request.key] = request.uid
            with session.isolated(f"packing of {request.tree}"):
                _pack(session, request)
    return len(tried)


def _pack(session: Session, request: TreeRequest) -> None:
    """Make one attempt at a tree, and audit it under the job that asked first."""
    audit = session.audit.for_job(**request.job_labels)
    started = time.monotonic()
    request = request._replace(attempts=request.attempts + 1, tried=time.time(), problem="", refused=False)
    with opened_dir(session.paths.trees) as fd:
        requests.write(fd, request)
        try:
            packed = packing.pack_tree(request, session.paths, session.policy, session.store, audit)
        except (WarmstartError, OSError) as error:
            failure = (
                TreeUnusable(tree=request.tree, problem=f"its copy: {error.strerror}")
                if isinstance(error, OSError)
                else error
            )
            session.failures.append(failure)
            refused = isinstance(failure, TreeNotShared | TreeTooLarge)
            told = str(failure.fields.get("problem", failure))
            requests.write(fd, request._replace(problem=told, refused=refused))
            audit.emit(events.TREE_PACK_FAILED, tree=request.tree, attempt=request.attempts, error=failure.as_audit())
            return
        requests.forget(fd, request)
    if packed:
        audit.emit(
            events.TREE_PACKED,
            tree=packed.look.path,
            scope=request.scope,
            bundle=packed.published.bundle,
            files=packed.staged.files,
            bytes=packed.staged.size,
            size=packed.published.size,
            left_out=packed.staged.left_out,
            examples=packed.staged.examples,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )


def compare_all(session: Session) -> int:
    """Compare the copies of trees that are due, unless another process or node is at it; return how many were tried.

    Scopes take turns by the time that they have had. The rest of one whose user's process does not answer, and what no
    time is left for, has its turn with the next process, which goes on with those that wait longest.
    """
    interval = session.policy.trees.compare
    if interval is None:
        return 0
    tried, until = 0, after(COMPARE_S)
    had: dict[str, float] = {}  # seconds of each scope
    with files.opened_lock(session.paths.locks, comparison.COMPARISONS) as fd:
        if not files.try_flock(fd) or not session.store.lock(session.store_deadline(), comparison.COMPARISONS):
            return 0
        waiting = comparison.due(session.paths, session.store, interval)
        while waiting and not until.expired():
            item = min(waiting, key=lambda item: had.get(item.where.scope, 0.0))
            waiting.remove(item)
            scope, began, tried = item.where.scope, time.monotonic(), tried + 1
            with session.isolated(f"comparison of {scope}/{item.where.name}"):
                try:
                    comparison.compare(item, session.paths, session.policy, session.store, session.audit)
                except WorkerSilent:
                    waiting = [other for other in waiting if other.where.scope != scope]
                    raise
            had[scope] = had.get(scope, 0.0) + time.monotonic() - began
    return tried


WORK: dict[str, Callable[..., int]] = {
    PARTS: merge_all,
    requests.PACKS: pack_all,
    comparison.COMPARISONS: compare_all,
}
