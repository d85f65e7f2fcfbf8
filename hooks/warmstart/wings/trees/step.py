"""Step `tree`: let the job read a directory of the shared file system from a packed copy (docs/wings/trees.md).

If the store has a copy of the tree as it is now, and it is on this node in time, it is mounted in the run's directory,
and the policy's way to the constant path shows it at the tree's own path. Otherwise the job reads the tree itself,
read-only as the copy would be, and a pack is asked for. No failure here costs the job more than the copy.
"""

from __future__ import annotations

import os
import time

from warmstart import plan
from warmstart.errors import StoreError, WarmstartError
from warmstart.host.files import opened_dir, read_small
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.lean import TYPE_CHECKING, Callable, NamedTuple, partial, suppress
from warmstart.paths import NOTHING, Shown
from warmstart.policy.match import scope_key
from warmstart.policy.shared import granted
from warmstart.request import COMMENT, NO_PATH, RequestInvalid
from warmstart.run.shown import show
from warmstart.runner import Step
from warmstart.steps.contract import Context, Outcome
from warmstart.wings.trees import requests, shown
from warmstart.wings.trees.client import TreeClient
from warmstart.wings.trees.current import Look, TreeUnusable
from warmstart.wings.trees.offered import KEY, OLDEST_S, PROFILE, RENEWED_S, WAYS, WORD, offered
from warmstart.wings.trees.place import LEFT_OUT, Home, facts_of, home_of, place_of

if TYPE_CHECKING:
    from warmstart.caches.store.listing import Row
    from warmstart.caches.store.look import Found, Generation
    from warmstart.job import Job
    from warmstart.policy.keys import Policy
    from warmstart.policy.match import Grant
    from warmstart.policy.shared import SharedPath
    from warmstart.request import Request
    from warmstart.store.barrier import Barrier

NAME = "tree"
LOOK_S = 5.0
MOUNTING_S = 5.0
_LONGEST = 64 << 10
# Why a job reads the tree itself; docs/wings/trees.md explains them.
NO_COPY = "no-copy"
NOTHING_PROPOSED = "nothing-proposed"
NODES_DIFFER = "nodes-differ"
TOO_MANY = "too-many-packs"
REFUSED = "bundles-refused"
_WHY = {
    NOTHING_PROPOSED: "the job's first node has no copy",
    NODES_DIFFER: "the job's nodes see different versions of it",
    TOO_MANY: "too many of your trees wait to be packed already",
    REFUSED: "its copies are refused: the administrators' audit says why",
    "fetch-over-budget": "its copy did not come in time, or is larger than what a node keeps of trees",
}
ANOTHER = (
    "warmstart: another directory is at the path of the job's tree than when the job began: this step and what already "
    "runs read that one, and may write it"
)
NO_WAY = (
    "tree {tree} is read from the shared file system: this node has no way to show a packed copy to a job "
    "(policy: constant_path)"
)
NO_ROOM = (
    "tree {tree} is read from the shared file system, and can be written: the job has no workspace on this node, where "
    "a packed copy would be shown"
)
_ELSEWHERE = "a node of the job cannot show its copy ({})"
_MOST_NAMED = 3  # of what a copy lacks, in a job's output


class Options(NamedTuple):
    """What the job asks for."""

    tree: str
    marker: str
    scope: str  # the user's own, in the store
    barrier: Barrier | None = None  # where the nodes of a job agree on its tree; None: each reads the tree itself
    shared: tuple[SharedPath, ...] = ()  # trees of the job's account, or the site


class _Tree(NamedTuple):
    """The tree that the job asks for, and where copies of it are."""

    seen: Look
    home: Home
    facts: dict[str, str]


class _Mounted(NamedTuple):
    root: int  # descriptor (O_PATH) of the mounted copy
    fetched: int  # bytes
    lacks: list[str]  # how many things it lacks, then `path: reason` for some of them; empty if nothing
    files: int  # files and directories that it has
    size: int  # bytes
    packed: float  # seconds since the epoch
    scope: str  # of the store, where it is


class _Found(NamedTuple):
    """What the job sees at its tree's path."""

    copy: _Mounted | None  # None: the tree itself
    reason: str  # why that is so, "" for a copy
    failure: WarmstartError | None = None
    outlook: str = ""  # what comes of the pack that was asked for


def planned(policy: Policy, job: Job, grant: Grant, requested: Request) -> Step | None:
    """Return the step, which says so if this node shows the job no copy. Raises `RequestInvalid`."""
    options = options_of(policy, job, grant, requested)
    if why := why_not(policy):
        return Step(NAME, partial(_left, sentence=why.format(tree=options.tree)), optional=True)
    return Step(NAME, partial(_show, options=options), optional=True)


def options_of(policy: Policy, job: Job, grant: Grant, requested: Request) -> Options:
    """Return what a job asks for. Raises `RequestInvalid`."""
    tree, marker = asked(requested)
    return Options(
        tree,
        marker,
        scope_key("user", job),
        barrier=(barrier := plan.barrier_of(job)) and barrier._replace(topic=NAME),
        shared=granted(policy, job, grant, KEY),
    )


def asked(requested: Request) -> tuple[str, str]:
    """Return the tree that the job asks for, and the path in it that it names, if any. Raises `RequestInvalid`."""
    text = requested.words[WORD]
    tree, _, marker = text.partition(":")
    parts = [*tree.split("/")[1:], *marker.split("/")]
    if not tree.startswith("/") or not tree.strip("/") or marker.startswith("/") or ".." in parts:
        raise RequestInvalid(where=COMMENT, word=f"{WORD}={text}"[:80], also=NO_PATH)
    return tree.rstrip("/"), marker


def why_not(policy: Policy) -> str:
    """Return the sentence for a job that this node shows no copy, whatever the store has; "" if it may get one."""
    return "" if policy.constant_path in WAYS else NO_WAY


def _left(context: Context, sentence: str) -> Outcome:  # noqa: ARG001 - the shape of all steps'
    return Outcome(notices=(sentence,))


def _show(context: Context, options: Options) -> Outcome:
    if not context.run.own.path:
        return Outcome(notices=(NO_ROOM.format(tree=options.tree),))
    return run(context, options)


def run(context: Context, options: Options) -> Outcome:
    """Show the job its tree. Raises `TreeUnusable`: then it is neither shown nor read-only."""
    started = time.monotonic()
    run = context.run
    try:
        tree = _look(context, options)
    except TreeUnusable as error:
        if options.barrier:  # the other nodes wait for this one's word
            with suppress(StoreError):
                _agreed(context, options, options.barrier, None, error.code)
        raise
    if options.barrier:
        found = _isolated(options, partial(_agreed, context, options, options.barrier, tree))
    else:
        found = _isolated(options, partial(_alone, context, options, tree))
    try:
        with opened_dir(run.directory) as base:
            if found.copy:
                shown.mount(base, found.copy.root, (run.uid, run.gid) if tree.home.shared else None)
            source = shown.SOURCE if found.copy else NOTHING
            line = Shown("ro", "job", source, tree.seen.identity or NOTHING, tree.seen.path, ANOTHER)
            show(base, line, run.uid)
    except OSError as error:
        raise TreeUnusable(tree=options.tree, problem=f"it cannot be mounted: {error.strerror}") from error
    finally:
        if found.copy:
            os.close(found.copy.root)
    context.audit.add(
        "trees",
        tree=tree.seen.path,
        way="copy" if found.copy else "itself",
        reason=found.reason,
        scope=found.copy.scope if found.copy else tree.home.scope,
        rule=tree.home.shared.rule if tree.home.shared else "",
        left_out=int(found.copy.lacks[0]) if found.copy and found.copy.lacks else 0,
        fetched_bytes=found.copy.fetched if found.copy else 0,
        files=found.copy.files if found.copy else 0,
        bytes=found.copy.size if found.copy else 0,
        ms=round((time.monotonic() - started) * 1000, 3),
    )
    return Outcome(
        detail={tree.seen.path: _told(found)},
        environment=_variables(context, tree.seen.path, found),
        degraded=[found.failure] if found.failure else [],
        notices=_notices(context, options, found),
        topics=(options.barrier.path,) if options.barrier and run.head else (),
    )


def _look(context: Context, options: Options) -> _Tree:
    user = Identity(context.run.user, context.run.uid, context.run.gid)
    policy, deadline = context.policy, context.deadline.within(LOOK_S)
    try:
        client = TreeClient(user, options.tree)
        seen = client.look(offered(policy).prefixes, options.marker, deadline, options.shared)
    except WorkerSilent as error:
        raise TreeUnusable(tree=options.tree, problem=f"its file system: {error.fields['problem']}") from error
    home = home_of(seen.path, options.shared, options.scope)
    return _Tree(seen, home, facts_of(seen, home.shared))


def _isolated(options: Options, find: Callable[[], _Found]) -> _Found:
    """Return what `find` finds, or the tree itself after an error."""
    try:
        return find()
    except WarmstartError as error:
        return _Found(None, error.code, error)
    except OSError as error:
        failure = TreeUnusable(tree=options.tree, problem=f"its copy: {error.strerror}")
        return _Found(None, failure.code, failure)


def _alone(context: Context, options: Options, tree: _Tree) -> _Found:
    chosen = _chosen(context, options, tree)
    return chosen if isinstance(chosen, _Found) else _fetched(context, tree, chosen.layers[0].row)


def _agreed(
    context: Context, options: Options, barrier: Barrier, tree: _Tree | None, problem: str = NODES_DIFFER
) -> _Found:
    """Show what all nodes of the job show: the copy that the head node proposes, or the tree itself.

    Without a tree this node shows nothing, and says why: `problem`. Raises `StoreError`.
    """
    from warmstart.seed.vote import Proposed, Vote

    vote = Vote(context.store, barrier, context.run.node, context.policy.seed.fetch_budget)
    own: dict[str, Proposed] = {}
    without = _Found(None, NOTHING_PROPOSED if tree else problem)
    if context.run.head and tree:
        chosen = _chosen(context, options, tree)
        if isinstance(chosen, _Found):
            without = chosen
        else:
            where = place_of(context.store.path, tree.home.scope, tree.facts)
            own[PROFILE] = Proposed(where.name, tree.facts, chosen.listings)
    proposed = vote.proposal(own, context.deadline).get(PROFILE)
    if proposed is None or not proposed.listings:
        return without
    found = _Found(None, problem)
    if tree and proposed.facts == tree.facts:
        found = _isolated(options, partial(_proposed, context, tree, proposed.listings))
    settled = None
    try:
        settled = vote.settle({} if found.copy else {PROFILE: found.reason}, context.deadline)
    finally:
        if found.copy and (settled is None or PROFILE in settled):
            os.close(found.copy.root)
    cold = settled.get(PROFILE)
    return _Found(None, cold.reason, found.failure) if cold else found


def _variables(context: Context, path: str, found: _Found) -> dict[str, str]:
    """Return the variables by which users of Charliecloud and Podman bind the tree."""
    source = f"{context.run.directory}/{shown.SOURCE}" if found.copy else path
    if not path.isprintable():
        return {}
    return {"WARMSTART_TREE": source}


def _why(found: _Found) -> str:
    return found.outlook or _WHY.get(found.reason, _ELSEWHERE.format(found.reason))


def _told(found: _Found) -> str:
    """Return what `explain` says of the tree."""
    if found.copy is None:
        return f"read from the shared file system: {found.reason if found.failure else _why(found)}"
    fetched = f", {found.copy.fetched:,} bytes fetched" if found.copy.fetched else ""
    lacking = f"; {found.copy.lacks[0]} files are not, or not wholly, in it" if found.copy.lacks else ""
    age = f"packed at {requests.clock(found.copy.packed)}"
    return f"read from a copy of {found.copy.files:,} files, {found.copy.size:,} bytes, {age}{fetched}{lacking}"


def _notices(context: Context, options: Options, found: _Found) -> tuple[str, ...]:
    if found.copy is None:
        where = "in containers " if context.policy.constant_path in ("containers", "enroot") else ""
        # What failed is a notice of its own; other reasons are those of a node that did not get the copy.
        why = "" if found.failure else f"; {_why(found)}"
        return (f"tree {options.tree} is read from the shared file system, {where}read-only{why}",)
    if found.copy.lacks:
        number, *named = found.copy.lacks
        shown_here = [*named[:_MOST_NAMED], *(["…"] if int(number) > _MOST_NAMED else [])]
        return (f"tree {options.tree}: its copy lacks {number} things: {'; '.join(shown_here)}",)
    return ()


def _listed(context: Context, tree: _Tree, at: dict[str, Generation] | None = None) -> Found:
    """Return the copy of a tree as it is now, by its newest listing or by one that another node has proposed."""
    from warmstart.caches.store import client
    from warmstart.caches.store.look import Want

    where = place_of(context.store.path, tree.home.scope, tree.facts)
    deadline = context.deadline.within(context.policy.seed.fetch_budget)
    return client.listings(context.store, [tree.home.scope], [Want(PROFILE, where.name, at or {})], deadline)[0]


def _chosen(context: Context, options: Options, tree: _Tree) -> Found | _Found:
    """Return the copy to show, or why there is none. One that grows old is packed anew, and shown meanwhile."""
    listed = _listed(context, tree)
    age = time.time() - listed.layers[0].row.at if listed.layers else OLDEST_S
    if age < RENEWED_S:
        return listed
    without = _without(context, options, tree, listed)
    return listed if age < OLDEST_S else without


def _proposed(context: Context, tree: _Tree, at: dict[str, Generation]) -> _Found:
    """Return the mounted copy that the head node has proposed."""
    listed = _listed(context, tree, at)
    return _fetched(context, tree, listed.layers[0].row) if listed.layers else _Found(None, REFUSED)


def _fetched(context: Context, tree: _Tree, row: Row) -> _Found:
    """Return the mounted copy; the tree itself if it does not come in time."""
    from warmstart.seed import copies, node_cache

    policy = context.policy
    try:
        fetched = node_cache.get(
            context.paths.bundles,
            place_of(context.store.path, tree.home.scope, tree.facts),
            row,
            store=context.store,
            most_bytes=offered(policy).keep,
            deadline=context.deadline.within(policy.seed.fetch_budget),
        )
    except copies.FetchOverBudget as error:
        return _Found(None, error.code)
    path = copies.path_of(context.paths.bundles, row.sha256)
    (root,) = node_cache.mounted(context.paths.layers, [path], context.deadline.within(MOUNTING_S))
    lacks: list[str] = []
    with suppress(FileNotFoundError):
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        try:
            lacks = read_small(LEFT_OUT, _LONGEST, fd).decode("utf-8", "replace").splitlines()
        finally:
            os.close(fd)
    files = os.fstatvfs(root).f_files
    return _Found(_Mounted(root, fetched, lacks, files, row.size, float(row.at), tree.home.scope), "")


def _without(context: Context, options: Options, tree: _Tree, listed: Found) -> _Found:
    """Have the tree packed, unless its listing cannot be read; return why the job has none."""
    for scope, why in listed.failed.items():
        context.audit.remark(f"a listing was refused: {why}", PROFILE, scope=scope)
    if listed.failed:
        return _Found(None, REFUSED)
    run = context.run
    request = requests.TreeRequest(
        options.tree, tree.seen.marker, tree.home.scope, run.user, run.uid, run.gid,
        run.cluster, run.job_id, run.node,
        shared=tree.home.shared,
    )  # fmt: skip
    asked = requests.ask(context.paths, request)
    if asked is None:
        return _Found(None, TOO_MANY)
    requests.start_due(context.paths)
    return _Found(None, NO_COPY, outlook=asked.outlook())
