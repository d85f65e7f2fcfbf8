"""`warmstart cache block` and `unblock`: withdraw cache entries from all future jobs at once. Root only."""

from __future__ import annotations

import time

import click

from warmstart.audit import events
from warmstart.cli.cache import NO, admin_session, administrator
from warmstart.cli.output import say
from warmstart.paths import Installation
from warmstart.store.blocklist import Block


@click.command()
@click.option(
    "--user", default="", help="Block a user, by name or uid: all entries of this user's jobs, in every scope."
)
@click.option("--profile", default="", help="The profile of --namespace or --entry.")
@click.option("--namespace", default="", help="Block a namespace of the profile, in every scope.")
@click.option("--entry", default="", help="Block an entry of the profile, in every namespace and scope.")
@click.option("--reason", required=True, help="The reason, for the audit log and for `list --blocked`.")
@click.pass_obj
def block(installation: Installation, /, reason: str, **what: str) -> None:
    """Block a user, a namespace or an entry: no later job is seeded with it, and none of it is published.

    Exit status: 0 blocked; 1 it was blocked before; 2 wrong usage, or not root, or the store fails.
    """
    target = _checked(what, reason)
    with admin_session(installation) as session:
        new = session.store.block(target, session.store_deadline())
        session.audit.emit(events.CACHE_BLOCKED, block=target._asdict())
    say("blocked" if new else "it was blocked before")
    if not new:
        raise click.exceptions.Exit(NO)


@click.command()
@click.option("--user", default="", help="The user, as given to `block`.")
@click.option("--profile", default="", help="The profile, as given to `block`.")
@click.option("--namespace", default="", help="The namespace, as given to `block`.")
@click.option("--entry", default="", help="The entry, as given to `block`.")
@click.option("--all", "everything", is_flag=True, help="Remove all blocks, even if the list cannot be read.")
@click.pass_obj
def unblock(installation: Installation, /, everything: bool, **what: str) -> None:
    """Remove a block.

    Exit status: 0 removed; 1 there was no such block; 2 wrong usage, or not root, or the store fails.
    """
    target = Block() if everything else _checked(what, "")
    with admin_session(installation) as session:
        deadline = session.store_deadline()
        there = session.store.unblock_all(deadline) if everything else session.store.unblock(target, deadline)
        shown = {} if everything else dict(zip(Block._fields, target.what, strict=False))
        session.audit.emit(events.CACHE_UNBLOCKED, block=shown, by=administrator())
    say("unblocked" if there else "it was not blocked")
    if not there:
        raise click.exceptions.Exit(NO)


def _checked(what: dict[str, str], reason: str) -> Block:
    """Return the block that the options describe. Raises `UsageError` unless they name exactly one thing."""
    target = Block(what["user"], what["profile"], what["namespace"], what["entry"])
    kinds = [bool(target.user), bool(target.namespace), bool(target.entry)]
    if kinds.count(True) != 1 or bool(target.profile) == bool(target.user):
        raise click.UsageError("give --user, or --profile with --namespace or --entry")
    return target._replace(reason=reason, by=administrator(), at=round(time.time(), 3))
