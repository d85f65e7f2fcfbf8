"""`warmstart trees`: list and remove packed copies of trees (docs/wings/trees.md).

Root only, but for a list: others are told which trees their own jobs had.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from warmstart.audit import values
from warmstart.audit.line import HOOK_FINISHED
from warmstart.audit.query import LineFilter
from warmstart.cli.cache import NO, SHORT, admin_session, administrator, store_reading
from warmstart.cli.output import (
    UNUSABLE,
    Column,
    json_option,
    rfc3339,
    say,
    show_json,
    show_rows,
    size,
    warn,
)
from warmstart.cli.own import OwnLog
from warmstart.errors import WarmstartError
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.policy.shared import granted, is_below
from warmstart.queue import Queue
from warmstart.request import Request
from warmstart.seed import eviction
from warmstart.session import is_root
from warmstart.store.client import StoreClient
from warmstart.wings.trees import copies, requests, step
from warmstart.wings.trees.copies import TreeCopy
from warmstart.wings.trees.offered import KEY, PROFILE, WORD, offered
from warmstart.wings.trees.requests import PACKS, Waiting

LOOK_S = 10.0
NEWEST, OLDER = "newest", "older"  # of a tree's copies; an older one is never shown any more
_View = tuple[str, str, str]  # tree, marker, user
COLUMNS = (
    Column("id"),
    Column("user"),
    Column("size", size),
    Column("packed", rfc3339),
    Column("used", rfc3339),
    Column("state"),
    Column("tree"),
)
OWN = (Column("job"), Column("how"), Column("node"), Column("tree"))  # of a user


@click.group()
def trees() -> None:
    """List packed copies of trees, and remove them. For root; `list` for users."""


@trees.command("list")
@click.option("--user", help="Only copies that jobs of this user asked for, by name.")
@json_option
@click.pass_obj
def list_trees(installation: Installation, /, user: str | None, as_json: bool) -> None:
    """List packed copies of trees, those of one tree after each other, the youngest of them last.

    STATE is `older` for a copy that no job is shown any more, since the tree has changed and was packed again. What
    waits on this host to be packed is named below the list, with the last attempt's problem. Users are told which trees
    their own jobs that are over had, and HOW the last of them read it.

    Exit status: 0 listed; 1 there are none; 2 no policy, or the store fails.
    """
    if not is_root():
        last = {tree: row for row in _own(installation) for tree in [row["tree"]]}
        show_rows(OWN, list(last.values()), as_json=as_json)
        if not last:
            raise click.exceptions.Exit(NO)
        return
    rows, failures = _rows(installation, user)
    show_rows(COLUMNS, rows, as_json=as_json)
    for node, item in _waiting(installation, user=user):
        problem = f": {item.request.problem}" if item.request.problem else ""
        warn(f"{item.request.tree} waits on {node} to be packed for {item.request.user}{problem}")
    for failure in failures:
        warn(str(failure))
    if failures:
        raise click.exceptions.Exit(UNUSABLE)
    if not rows:
        raise click.exceptions.Exit(NO)


@trees.command("rm")
@click.argument("path")
@click.option("--user", help="Only the copies that jobs of this user asked for, by name.")
@json_option
@click.pass_obj
def remove(installation: Installation, path: str, user: str | None, as_json: bool) -> None:
    """Remove all copies of a tree, and what waits on this host to be packed of it.

    Running jobs keep what they have. The next job that asks for the tree reads it as it is, and has it packed again.
    What another host is packing right now may still come.

    Exit status: 0 removed; 1 nothing is known of the tree; 2 not root, or the store fails.
    """
    tree = _named(path)
    with admin_session(installation, "trees") as session:
        waiting = _waiting(installation, tree, user)
        chosen = _found(session.store, tree, user, session.failures)
        for failure in session.failures:
            warn(str(failure))
        if not (chosen or waiting):
            whose = f" of user {user}" if user else ""
            warn(f"there is no copy of {tree}{whose} in the store")
            warn("`warmstart trees list` has all; write a path without links, as `realpath` shows it")
            raise click.exceptions.Exit(NO)
        for copy in chosen:
            copies.take_out(session.store, session.audit, copy, f"removed by {administrator()}")
        for node, one in waiting:
            Queue(installation.node(node), PACKS).drop(one.item.key)
    if as_json:
        show_json({"removed": [copy.bundle for copy in chosen], "withdrawn": len(waiting)})
    else:
        say(f"{tree}: {len(chosen)} removed, {len(waiting)} no longer wait to be packed")


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:
    """Say how the job reads the tree that it asks for, and which ones it shares."""
    if offered(policy).prefixes and WORD in requested.words:
        options = step.options_of(policy, job, grant, requested)
        shows = not step.why_not(policy)
        how = "read-only, from a packed copy if there is one" if shows else "as it is: this node shows no copies"
        if not is_below(os.path.realpath(options.tree), offered(policy).prefixes):
            how = "as it is: it is below none of trees.prefixes"
        yield f"Reads the tree {options.tree} {how}."
    for shared in granted(policy, job, grant, KEY):
        owners = ", ".join(owner.name for owner in shared.owners)
        yield f"Trees at {shared.path}, of {owners}: one copy, in {shared.scope} (rule {shared.rule})."


def _own(installation: Installation) -> Iterator[dict[str, object]]:
    """Yield the trees of the caller's own jobs, the oldest job's first."""
    for line in OwnLog(installation).lines(LineFilter(event=HOOK_FINISHED)):
        told = values.mapping(values.mapping(line, "told"), step.NAME)
        for tree in told:
            how = values.text(told, tree)
            yield {"job": line["job_id"], "how": how, "node": line["node"], "user": line["user"], "tree": tree}


def _named(path: str) -> str:
    """Return a path as copies bear it; links in it are not followed, since the file system may hang."""
    return os.path.normpath(os.path.join(os.getcwd(), path))


def _rows(installation: Installation, user: str | None) -> tuple[list[dict[str, object]], list[WarmstartError]]:
    """Return the copies as --json has them, and the errors of what could not be read."""
    failures: list[WarmstartError] = []
    with store_reading(installation, "trees") as store:
        found = _found(store, "", user, failures)
    here: dict[str, list[str]] = {}
    for node in installation.nodes():
        for where, sha256, _ in eviction.uses(installation.node(node).bundles, store.path):
            if where.profile == PROFILE:
                here.setdefault(sha256, []).append(node)
    newest = {(_view(copy), copy.scope): copy for copy in found}
    return [
        {
            **copy._asdict(),
            "id": copy.bundle[:SHORT],
            "state": NEWEST if newest[_view(copy), copy.scope] is copy else OLDER,
            "here": sorted(here.get(copy.bundle, [])),
        }
        for copy in found
    ], failures


def _found(store: StoreClient, tree: str, user: str | None, failures: list[WarmstartError]) -> list[TreeCopy]:
    """Return copies sorted by tree and user, the youngest last."""
    known = [
        copy for copy in copies.copies(store, failures.append) if tree in ("", copy.tree) and user in (None, copy.user)
    ]
    return sorted(known, key=lambda copy: (copy.tree, copy.scope, copy.marker, copy.packed))


def _view(copy: TreeCopy) -> _View:
    """Return what decides what a look at a copy's tree finds."""
    return copy.tree, copy.marker, copy.user


def _waiting(installation: Installation, tree: str = "", user: str | None = None) -> list[tuple[str, Waiting]]:
    """Return what waits on this host's nodes to be packed of a tree, or of all, for one user or all."""
    return [
        (node, item)
        for node in installation.nodes()
        for item in requests.waiting(installation.node(node))
        if tree in ("", item.request.tree) and user in (None, item.request.user)
    ]
