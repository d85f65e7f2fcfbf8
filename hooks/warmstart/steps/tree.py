"""Step `tree`: let the job read a directory of the shared file system from a packed copy (docs/reference/trees.md).

If the store has a copy of the tree as it is now, and it is on this node in time, it is mounted in the run's directory,
and the SPANK plugin shows it to the job's tasks at the tree's own path. Otherwise the job reads the tree itself, read-
only as the copy would be, and a pack is asked for. No failure here costs the job more than the copy.
"""

from __future__ import annotations

import os
import time

from warmstart.audit import events
from warmstart.errors import WarmstartError
from warmstart.host.files import opened_dir, read_small
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.lean import NamedTuple, suppress
from warmstart.steps.contract import Context, Outcome
from warmstart.trees import requests, shown
from warmstart.trees.client import TreeClient
from warmstart.trees.current import Look, TreeUnusable
from warmstart.trees.place import LEFT_OUT, place_of

NAME = "tree"
LOOK_S = 5.0
MOUNTING_S = 5.0
_LONGEST = 64 << 10
# Why a job reads the tree itself; docs/reference/audit.md explains them.
SEVERAL_NODES = "several-nodes"
NO_COPY = "no-copy"


class Options(NamedTuple):
    """What the job asks for."""

    tree: str
    marker: str
    scope: str  # the user's own, in the store
    alone: bool  # the job has one node


class _Copy(NamedTuple):
    root: int  # descriptor (O_PATH) of the mounted copy
    fetched: int  # bytes
    left_out: str  # how many files are not in it, "" if none


def run(context: Context, options: Options) -> Outcome:
    """Show the job its tree. Raises `TreeUnusable`."""
    started = time.monotonic()
    record, rules = context.record, context.policy.trees
    user = Identity(record.user, record.uid, record.gid)
    try:
        with TreeClient(user, options.tree) as client:
            seen = client.look(rules.prefixes, options.marker, context.deadline.within(LOOK_S))
    except WorkerSilent as error:
        raise TreeUnusable(tree=options.tree, problem=f"its file system: {error.fields['problem']}") from error
    degraded: list[WarmstartError] = []
    copy, reason = None, SEVERAL_NODES
    if options.alone:
        try:
            copy, reason = _copy(context, options, seen)
        except WarmstartError as error:
            degraded.append(error)
            reason = error.code
        except OSError as error:
            degraded.append(TreeUnusable(tree=options.tree, problem=f"its copy: {error.strerror}"))
            reason = TreeUnusable.code
    try:
        with opened_dir(record.run_directory) as base:
            shown.show(base, seen.path, copy.root if copy else None)
    except OSError as error:
        raise TreeUnusable(tree=options.tree, problem=f"it cannot be mounted: {error.strerror}") from error
    finally:
        if copy:
            os.close(copy.root)
    context.audit.emit(
        events.TREE_SHOWN,
        tree=seen.path,
        way="copy" if copy else "itself",
        reason="" if copy else reason,
        left_out=int(copy.left_out or 0) if copy else 0,
        fetched_bytes=copy.fetched if copy else 0,
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )
    return Outcome("changed", {"tree": seen.path}, degraded=degraded, notices=tuple(_notices(options, copy, reason)))


def _notices(options: Options, copy: _Copy | None, reason: str) -> list[str]:
    tree = options.tree
    if copy is None:
        packed = "; a copy is packed in the background" if reason == NO_COPY else ""
        return [f"tree {tree} is read from the shared file system, read-only{packed}"]
    if copy.left_out:
        return [f"tree {tree}: {copy.left_out} files are missing from its copy, which you cannot read"]
    return []


def _copy(context: Context, options: Options, seen: Look) -> tuple[_Copy | None, str]:
    """Return the mounted copy of the tree as it is now; None, and why, if this node has none in time."""
    from warmstart.seed import node_cache, wanted
    from warmstart.seed.node_cache import FetchGoesOn

    record, policy = context.record, context.policy
    where = place_of(policy.paths.store, options.scope, seen)
    deadline = context.deadline.within(policy.seed.fetch_budget)
    offers = context.store.offers([where.scope], where.profile, where.name, deadline)
    if not offers.offers:
        return None, _ask(context, options) if not offers.refused else "bundles-refused"
    try:
        copy = node_cache.local_copy(
            context.paths.bundles,
            where,
            offers.offers[0],
            wanted.Asker.of(record),
            store=context.store,
            most_bytes=policy.trees.max_size,
            deadline=deadline,
        )
    except FetchGoesOn as error:
        wanted.start_due(context.paths)
        return None, error.code
    (root,) = node_cache.mounted(context.paths.layers, [copy], context.deadline.within(MOUNTING_S))
    left_out = ""
    with suppress(FileNotFoundError):
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        try:
            left_out = read_small(LEFT_OUT, _LONGEST, fd).decode().partition("\n")[0]
        finally:
            os.close(fd)
    return _Copy(root, copy.fetched, left_out), ""


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
