"""`warmstart models`: list and remove this host's copies of models (docs/wings/models.md). For root."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from warmstart.cli.cache import NO, admin_session
from warmstart.cli.output import Column, json_option, rfc3339, say, show_json, show_rows, size, warn
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.policy.shared import granted, is_below
from warmstart.queue import Item, Queue
from warmstart.request import Request
from warmstart.wings.models import attempts, shelf, step
from warmstart.wings.models.offered import KEY, WAYS, WORD, offered
from warmstart.wings.models.requests import COPIES, ModelRequest

COLUMNS = (
    Column("user"),
    Column("scope"),
    Column("files"),
    Column("size", size),
    Column("used", rfc3339),
    Column("jobs"),
    Column("node"),
    Column("model"),
)


@click.group()
def models() -> None:
    """List and remove the copies of models that this host's nodes have. For root."""


@models.command("list")
@json_option
@click.pass_obj
def list_models(installation: Installation, /, as_json: bool) -> None:
    """List the copies of models, the least recently used first; below the list, what waits to be copied.

    JOBS have them now. SCOPE is the account, or the site, that has one copy by a rule.

    Exit status: 0 listed; 1 there are none; 2 not root, or no policy.
    """
    with admin_session(installation, "models") as session:
        rows = [
            {**item.about._asdict(), "files": len(item.about.files), "used": item.used, "jobs": item.jobs, "node": node}
            for node in installation.nodes()
            for item in shelf.on_node(session.policy, installation.node(node))
        ]
        show_rows(COLUMNS, rows, as_json=as_json)
        for node, _, request in _waiting(installation):
            why = f": {request.problem}" if request.problem else ""
            warn(f"{request.model} waits on {node} to be copied for {request.asker.user}{why}")
    if not rows:
        raise click.exceptions.Exit(NO)


@models.command("rm")
@click.argument("path")
@json_option
@click.pass_obj
def remove(installation: Installation, path: str, as_json: bool) -> None:
    """Remove all copies of a model from this host, and what waits to be copied of it. PATH is as `list` shows it.

    What jobs have now stays. The model is copied again when jobs name it: the policy's models.prefixes says where
    models may be.

    Exit status: 0 removed; 1 nothing is known of the model, or jobs have it; 2 not root, or no policy.
    """
    model = os.path.normpath(os.path.join(os.getcwd(), path))
    with admin_session(installation, "models") as session:
        waiting = [item for item in _waiting(installation) if item[2].model == model]
        for node, item, _ in waiting:
            Queue(installation.node(node), COPIES).drop(item.key)
        gone, kept = 0, list[int]()
        for node in installation.nodes():
            went, jobs = attempts.remove(session.policy, installation.node(node), session.audit, model)
            gone, kept = gone + went, [*kept, *jobs]
    if as_json:
        show_json({"removed": gone, "withdrawn": len(waiting), "jobs": kept})
    else:
        say(f"{model}: {gone} removed, {len(waiting)} no longer wait to be copied")
        for job in kept:
            warn(f"job {job} has a copy, which stays")
    if kept or not (gone or waiting):
        raise click.exceptions.Exit(NO)


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:
    """Say how the job reads the models that it names, and which ones it shares."""
    if offered(policy).prefixes and WORD in requested.words:
        shows = policy.constant_path in WAYS
        for model in step.asked(requested):
            how = "from copies on its node, if there are any" if shows else "as it is: this node shows no copies"
            if not is_below(os.path.realpath(model), offered(policy).prefixes):
                how = "as it is: it is below none of models.prefixes"
            yield f"Reads the model {model} {how}."
    for shared in granted(policy, job, grant, KEY):
        owners = ", ".join(owner.name for owner in shared.owners)
        yield f"Models at {shared.path}, of {owners}: one copy, in {shared.scope} (rule {shared.rule})."


def _waiting(installation: Installation) -> Iterator[tuple[str, Item, ModelRequest]]:
    """Yield what waits on this host's nodes to be copied, also while it is being copied."""
    for node in installation.nodes():
        kind = Queue(installation.node(node), COPIES)
        for item in kind.all():
            if request := kind.read(item, ModelRequest):
                yield node, item, request
