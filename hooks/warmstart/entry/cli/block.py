"""`warmstart cache block`, `unblock` and `blocked`: the kill switch, for the next job everywhere."""

from __future__ import annotations

import time

import click

from warmstart.audit import events
from warmstart.entry.cli.cache import NO, admin_session, administrator, when
from warmstart.entry.cli.output import json_option, say, show_json, show_table
from warmstart.paths import Installation
from warmstart.store.blocklist import Block


@click.command()
@click.option("--user", default="", help="A user, by name or uid: all that this user's jobs made, in every scope.")
@click.option("--profile", default="", help="The profile of --namespace or --entry.")
@click.option("--namespace", default="", help="A namespace of the profile, in every scope.")
@click.option("--entry", default="", help="An entry of the profile, in every namespace and scope.")
@click.option("--reason", required=True, help="For the audit and for `blocked`.")
@click.pass_obj
def block(installation: Installation, /, reason: str, **what: str) -> None:
    """Block a user, a namespace or an entry: nobody's next job is given it, nothing of it is published.

    Exit status: 0 blocked; 1 it was before; 2 wrong usage, or not root, or the store fails.
    """
    target = _checked(what, reason)
    with admin_session(installation) as session:
        new = session.store.block(target, session.store_deadline())
        session.audit.emit(events.CACHE_BLOCKED, block=target._asdict())
    say("blocked" if new else "it was blocked before")
    if not new:
        raise click.exceptions.Exit(NO)


@click.command()
@click.option("--user", default="", help="As it was blocked.")
@click.option("--profile", default="", help="As it was blocked.")
@click.option("--namespace", default="", help="As it was blocked.")
@click.option("--entry", default="", help="As it was blocked.")
@click.option("--all", "everything", is_flag=True, help="All blocks, also where the list can't be read.")
@click.pass_obj
def unblock(installation: Installation, /, everything: bool, **what: str) -> None:
    """Take a block back.

    Exit status: 0 taken back; 1 there was none; 2 wrong usage, or not root, or the store fails.
    """
    target = Block() if everything else _checked(what, "")
    with admin_session(installation) as session:
        deadline = session.store_deadline()
        there = session.store.unblock_all(deadline) if everything else session.store.unblock(target, deadline)
        shown = {} if everything else dict(zip(Block._fields, target.what, strict=False))
        session.audit.emit(events.CACHE_UNBLOCKED, block=shown, by=administrator())
    say("taken back" if there else "it was not blocked")
    if not there:
        raise click.exceptions.Exit(NO)


@click.command()
@json_option
@click.pass_obj
def blocked(installation: Installation, as_json: bool) -> None:
    """List what is blocked, why, by whom, and since when.

    Exit status: 0 something is; 1 nothing is; 2 not root, or the store fails.
    """
    with admin_session(installation) as session:
        found = session.store.blocked(session.store_deadline())
    if as_json:
        show_json([known._asdict() for known in found])
    else:
        show_table((*Block._fields[:-1], "since (UTC)"), [(*known[:-1], when(known.at)) for known in found])
    if not found:
        raise click.exceptions.Exit(NO)


def _checked(what: dict[str, str], reason: str) -> Block:
    """Return the block that the options describe; they must name exactly one thing."""
    target = Block(what["user"], what["profile"], what["namespace"], what["entry"])
    kinds = [bool(target.user), bool(target.namespace), bool(target.entry)]
    if kinds.count(True) != 1 or bool(target.profile) == bool(target.user):
        raise click.UsageError("give --user, or --profile with --namespace or --entry")
    return target._replace(reason=reason, by=administrator(), at=round(time.time(), 3))
