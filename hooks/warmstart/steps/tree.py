"""Step `tree`: let the job read a directory of the shared file system from a packed copy (docs/reference/trees.md).

If the store has a copy of the tree as it is now, and it is on this node in time, it is mounted in the run's directory,
and the policy's way to the constant path shows it at the tree's own path. Otherwise the job reads the tree itself,
read-only as the copy would be, and a pack is asked for. No failure here costs the job more than the copy.
"""

from __future__ import annotations

import os
import time

from warmstart.audit import events
from warmstart.errors import StoreError, WarmstartError
from warmstart.host.files import opened_dir, read_small
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.lean import TYPE_CHECKING, Callable, NamedTuple, partial, suppress
from warmstart.profiles.defined import TREES
from warmstart.record import RecordChange
from warmstart.steps.contract import Context, Outcome
from warmstart.trees import requests, shown
from warmstart.trees.client import TreeClient
from warmstart.trees.current import Look, TreeUnusable
from warmstart.trees.place import LEFT_OUT, facts_of, place_of

if TYPE_CHECKING:
    from warmstart.store.bundles import Offer, Offers
    from warmstart.store.meeting import Meeting

NAME = "tree"
LOOK_S = 5.0
MOUNTING_S = 5.0
_LONGEST = 64 << 10
_UNBINDABLE = frozenset(",:\\")  # what Apptainer would take for the end of a path
# Why a job reads the tree itself; docs/reference/audit.md explains them.
SEVERAL_NODES = "several-nodes"
NO_COPY = "no-copy"
NOTHING_PROPOSED = "nothing-proposed"
NODES_DIFFER = "nodes-differ"


class Options(NamedTuple):
    """What the job asks for."""

    tree: str
    marker: str
    scope: str  # the user's own, in the store
    alone: bool  # the job has one node
    meeting: Meeting | None = None  # where the nodes of a job agree on its tree; None: each reads the tree itself


class _Copy(NamedTuple):
    root: int  # descriptor (O_PATH) of the mounted copy
    fetched: int  # bytes
    left_out: str  # how many files are not in it, "" if none
    files: int  # files and directories that it has
    size: int  # bytes


class _Shown(NamedTuple):
    """What the job sees at its tree's path."""

    copy: _Copy | None  # None: the tree itself
    reason: str  # why that is so, "" for a copy
    failure: WarmstartError | None = None


def run(context: Context, options: Options) -> Outcome:
    """Show the job its tree. Raises `TreeUnusable`."""
    started = time.monotonic()
    record = context.record
    try:
        seen = _look(context, options)
    except TreeUnusable as error:
        if options.meeting:  # the other nodes wait for this one's word
            with suppress(StoreError):
                _agreed(context, options, options.meeting, None, error.code)
        raise
    if options.meeting:
        found = _isolated(options, partial(_agreed, context, options, options.meeting, seen))
    elif options.alone:
        found = _isolated(options, partial(_alone, context, options, seen))
    else:
        found = _Shown(None, SEVERAL_NODES)
    try:
        with opened_dir(record.run_directory) as base:
            shown.show(base, seen.path, found.copy.root if found.copy else None)
    except OSError as error:
        raise TreeUnusable(tree=options.tree, problem=f"it cannot be mounted: {error.strerror}") from error
    finally:
        if found.copy:
            os.close(found.copy.root)
    context.audit.emit(
        events.TREE_SHOWN,
        tree=seen.path,
        way="copy" if found.copy else "itself",
        reason=found.reason,
        left_out=int(found.copy.left_out or 0) if found.copy else 0,
        fetched_bytes=found.copy.fetched if found.copy else 0,
        files=found.copy.files if found.copy else 0,
        bytes=found.copy.size if found.copy else 0,
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )
    degraded = [found.failure] if found.failure else []
    change: RecordChange = {"tree_agreement": options.meeting.name} if options.meeting and record.head else {}
    variables = _variables(context, seen.path, found)
    return Outcome(
        "changed", {"tree": seen.path}, change, variables, degraded, notices=_notices(context, options, found)
    )


def _look(context: Context, options: Options) -> Look:
    user = Identity(context.record.user, context.record.uid, context.record.gid)
    try:
        with TreeClient(user, options.tree) as client:
            return client.look(context.policy.trees.prefixes, options.marker, context.deadline.within(LOOK_S))
    except WorkerSilent as error:
        raise TreeUnusable(tree=options.tree, problem=f"its file system: {error.fields['problem']}") from error


def _isolated(options: Options, find: Callable[[], _Shown]) -> _Shown:
    """Return what `find` finds, or the tree itself after an error."""
    try:
        return find()
    except WarmstartError as error:
        return _Shown(None, error.code, error)
    except OSError as error:
        failure = TreeUnusable(tree=options.tree, problem=f"its copy: {error.strerror}")
        return _Shown(None, failure.code, failure)


def _alone(context: Context, options: Options, seen: Look) -> _Shown:
    offers = _offers(context, options, seen)
    if offers.offers:
        return _fetched(context, options, seen, offers.offers[0])
    return _Shown(None, "bundles-refused" if offers.refused else _ask(context, options))


def _agreed(
    context: Context, options: Options, meeting: Meeting, seen: Look | None, problem: str = NODES_DIFFER
) -> _Shown:
    """Show what all nodes of the job show: the copy that the head node proposes, or the tree itself.

    Without `seen` this node shows nothing, and says why: `problem`. Raises `StoreError`.
    """
    from warmstart.seed.together import Together
    from warmstart.store.agreement import ProposedBundle, ProposedProfile

    record = context.record._replace(read_scopes=[options.scope])
    together = Together(context.store, record, meeting, context.policy.seed.fetch_budget)
    own: dict[str, ProposedProfile] = {}
    reason = NOTHING_PROPOSED
    if record.head and seen is not None:
        offers = _offers(context, options, seen)
        if offers.offers:
            where = place_of(context.store.path, options.scope, seen)
            bundles = [ProposedBundle(*offer[:6]) for offer in offers.offers[:1]]
            own[TREES] = ProposedProfile(where.name, facts_of(seen), bundles)
        else:
            reason = "bundles-refused" if offers.refused else _ask(context, options)
    proposed = together.proposal(own, context.deadline).get(TREES)
    if proposed is None or not proposed.offers:
        return _Shown(None, reason)
    found = _Shown(None, problem)
    if seen is not None and proposed.facts == facts_of(seen):
        offer = context.store.borne_out(TREES, proposed, context.deadline)[0]
        found = _isolated(options, partial(_fetched, context, options, seen, offer))
    settled = None
    try:
        settled = together.settle({} if found.copy else {TREES: found.reason}, context.deadline)
    finally:
        if found.copy and (settled is None or TREES in settled.cold):
            os.close(found.copy.root)
    cold = settled.cold.get(TREES)
    return _Shown(None, cold.reason, found.failure) if cold else found


def _variables(context: Context, path: str, found: _Shown) -> dict[str, str]:
    """Return the variables that tell container runtimes of the tree.

    APPTAINER_BIND, since APPTAINER_MOUNT binds the cache and takes one mount (decision 51).
    """
    source = shown.copy_of(context.record.run_directory) if found.copy else path
    if not path.isprintable():
        return {}
    if context.policy.constant_path != "containers" or not _UNBINDABLE.isdisjoint(path):
        return {"WARMSTART_TREE": source}
    return {"WARMSTART_TREE": source, "APPTAINER_BIND": f"{source}:{path}:ro"}


def _notices(context: Context, options: Options, found: _Shown) -> tuple[str, ...]:
    if found.copy is None:
        packed = "; a copy is packed in the background" if found.reason == NO_COPY else ""
        where = "in containers " if context.policy.constant_path in ("containers", "enroot") else ""
        return (f"tree {options.tree} is read from the shared file system, {where}read-only{packed}",)
    if found.copy.left_out:
        return (f"tree {options.tree}: {found.copy.left_out} files are missing from its copy, which you cannot read",)
    return ()


def _offers(context: Context, options: Options, seen: Look) -> Offers:
    where = place_of(context.store.path, options.scope, seen)
    deadline = context.deadline.within(context.policy.seed.fetch_budget)
    return context.store.offers([where.scope], where.profile, where.name, deadline)


def _fetched(context: Context, options: Options, seen: Look, offer: Offer) -> _Shown:
    """Return the mounted copy; the tree itself if it does not come in time."""
    from warmstart.seed import node_cache, wanted
    from warmstart.seed.node_cache import FetchGoesOn

    policy = context.policy
    try:
        copy = node_cache.local_copy(
            context.paths.bundles,
            place_of(context.store.path, options.scope, seen),
            offer,
            wanted.Asker.of(context.record),
            store=context.store,
            most_bytes=policy.trees.keep,
            deadline=context.deadline.within(policy.seed.fetch_budget),
        )
    except FetchGoesOn as error:
        wanted.start_due(context.paths)
        return _Shown(None, error.code)
    (root,) = node_cache.mounted(context.paths.layers, [copy], context.deadline.within(MOUNTING_S))
    left_out = ""
    with suppress(FileNotFoundError):
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        try:
            left_out = read_small(LEFT_OUT, _LONGEST, fd).decode().partition("\n")[0]
        finally:
            os.close(fd)
    return _Shown(_Copy(root, copy.fetched, left_out, os.fstatvfs(root).f_files, offer.size), "")


def _ask(context: Context, options: Options) -> str:
    """Have the tree packed; return why the job has no copy."""
    record = context.record
    request = requests.TreeRequest(
        *(options.tree, options.marker, options.scope, record.user, record.uid, record.gid),
        *(record.cluster, record.job_id, record.node, time.time()),
    )
    if not requests.ask(context.paths, request):
        return "too-many-packs"
    requests.start_due(context.paths)
    return NO_COPY
