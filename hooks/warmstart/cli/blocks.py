"""`warmstart cache block` and `unblock`: what no job is seeded with. Root only, and audited."""

from __future__ import annotations

import pwd
import time
from contextlib import suppress

import click

from warmstart.audit import events
from warmstart.audit.line import timestamp
from warmstart.cli.audit import moment
from warmstart.cli.cache import NO, admin_session, administrator
from warmstart.cli.output import say, warn
from warmstart.errors import UserError, WarmstartError
from warmstart.maintenance.bundles import namespaces
from warmstart.paths import Installation
from warmstart.profiles import registry
from warmstart.session import Session
from warmstart.store import blocklist, maintenance
from warmstart.store.blocklist import Block


class BlockUnknown(UserError):
    """What is to be blocked is neither in the store nor known on this host."""

    code = "block-unknown"
    template = "{problem}"
    hint = "nothing is blocked; see `warmstart cache list -o bundle,user,profile,namespace` for what there is"


@click.command()
@click.option(
    "--user", default="", help="Block a user, by name or uid: all entries of this user's jobs, in every scope."
)
@click.option("--profile", default="", help="The profile of --namespace or --entry.")
@click.option("--namespace", default="", help="Block a namespace of the profile, in every scope.")
@click.option("--entry", default="", help="Block an entry of the profile, in every namespace and scope.")
@click.option(
    "--before",
    metavar="now|AGO|DATE",
    callback=moment,
    help="Block all that was published before: now, 2h, 7d, or a date. What jobs publish afterwards is offered.",
)
@click.option("--reason", required=True, help="The reason, for the audit log and for `list --blocked`.")
@click.pass_obj
def block(installation: Installation, /, reason: str, before: str | None, **what: str) -> None:
    """Block a user, a namespace, an entry or what is old: no later job is seeded with it, and none of it is published.

    Says how many bundles of the store that hides. What neither the store nor this host knows is not blocked: it would
    be a misspelling, and what is meant would go on.

    Exit status: 0 blocked; 1 it was blocked before; 2 wrong usage, or not root, or the store fails.
    """
    if before and before > timestamp(time.time()):
        raise click.UsageError("--before: that is in the future")
    target = _checked(what, before or "")._replace(reason=reason, by=administrator(), at=round(time.time(), 3))
    with admin_session(installation) as session:
        # At once, if it is known: counting takes minutes in a large store.
        if not (target.before or (target.user and _is_account(target.user))):
            _require_known(session, target)
        _block(session, target)


@click.command()
@click.option("--user", default="", help="The user, as given to `block`.")
@click.option("--profile", default="", help="The profile, as given to `block`.")
@click.option("--namespace", default="", help="The namespace, as given to `block`.")
@click.option("--entry", default="", help="The entry, as given to `block`.")
@click.option("--before", is_flag=True, help="All of `block --before`.")
@click.option("--all", "everything", is_flag=True, help="Remove all blocks, even if the list cannot be read.")
@click.pass_obj
def unblock(installation: Installation, /, everything: bool, before: bool, **what: str) -> None:
    """Remove a block.

    Exit status: 0 removed; 1 there was no such block; 2 wrong usage, or not root, or the store fails.
    """
    target = None if everything or before else _checked(what)
    with admin_session(installation) as session:
        deadline, store = session.store_deadline(), session.store
        if everything:
            there = store.run(deadline, blocklist.unblock_all)
            session.audit.emit(events.CACHE_UNBLOCKED, block={}, by=administrator())
        else:
            chosen = [target] if target else [one for one in store.run(deadline, blocklist.listed) if one.before]
            there = sum(_unblock(session, one) for one in chosen) > 0
    say("unblocked" if there else "it was not blocked")
    if not there:
        raise click.exceptions.Exit(NO)


def _unblock(session: Session, block: Block) -> bool:
    there = session.store.run(session.store_deadline(), blocklist.unblock, block, session.store.writer)
    session.audit.emit(events.CACHE_UNBLOCKED, block=_what(block), by=administrator())
    return there


def _checked(what: dict[str, str], before: str = "") -> Block:
    """Return the block that the options describe. Raises `UsageError` unless they name exactly one thing."""
    limit = before.replace("-", "").replace(":", "").removesuffix("Z")  # as ids of bundles begin
    target = Block(what["user"], what["profile"], what["namespace"], what["entry"], before=limit)
    kinds = [bool(target.user), bool(target.namespace), bool(target.entry), bool(limit)]
    if kinds.count(True) != 1 or bool(target.profile) == bool(target.user or limit):
        raise click.UsageError("give --user, --before, or --profile with --namespace or --entry")
    return target


def _what(block: Block) -> dict[str, str]:
    """Return what a block blocks, as fields of an event."""
    return dict(zip(("user", "profile", "namespace", "entry", "before"), block.what, strict=True))


def _block(session: Session, target: Block) -> None:
    """Block it, and say how many bundles that hides."""
    new = session.store.run(session.store_deadline(), blocklist.block, target, session.store.writer)
    session.audit.emit(events.CACHE_BLOCKED, block=target._asdict())
    if not new:
        say("it was blocked before")
        raise click.exceptions.Exit(NO)
    hidden = _hidden(session, target)
    say(f"blocked: {hidden} bundle{'s' * (hidden != 1)} of the store {'is' if hidden == 1 else 'are'} hidden from jobs")


def _hidden(session: Session, block: Block) -> int:
    """Return how many bundles of the store a block hides, in whole or in part. Says what could not be read."""
    count = 0
    failures: list[WarmstartError] = []
    for where in namespaces(session.store, failures.append):
        try:
            count += session.store.run_in(session.store_deadline(), maintenance.hides, where, block)
        except WarmstartError as error:
            failures.append(error)
    for failure in failures:
        warn(f"not counted: {failure}")
    session.failures.extend(failures)
    return count


def _require_known(session: Session, block: Block) -> None:
    """Raise `BlockUnknown` if nothing in the store fits, and all of it could be read."""
    if _hidden(session, block) or session.failures:
        return
    profiles = sorted(registry.names(session.policy.profiles))
    if block.user:
        problem = f"this host has no account {block.user}, and the store no bundle of such a user"
    elif block.profile not in profiles:
        problem = f"there is no profile {block.profile}, and no bundle of it; there are {', '.join(profiles)}"
    elif block.namespace:
        problem = f"{block.profile} has no namespace {block.namespace} with a bundle"
    else:
        problem = f"no bundle of {block.profile} has an entry {block.entry!a}"
    raise BlockUnknown(problem=problem)


def _is_account(user: str) -> bool:
    """Return whether this host knows an account by its name or uid."""
    with suppress(KeyError, OverflowError):
        return bool(pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user))
    return False
