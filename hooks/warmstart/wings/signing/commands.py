"""`warmstart signing`: promote into a signed scope, and sign its list anew (docs/wings/signing.md). Root only."""

from __future__ import annotations

from collections.abc import Iterator

import click

from warmstart.cli.cache import administrator, promoted, store_maintenance
from warmstart.cli.output import answer, json_option, rfc3339
from warmstart.job import Job
from warmstart.maintenance.bundles import bundle_deadline, repack_settings
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant
from warmstart.policy.units import parse_duration
from warmstart.request import Request
from warmstart.session import Session
from warmstart.store.bundles import Published
from warmstart.store.layout import Namespace
from warmstart.wings.signing import events, promotion


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say nothing of a job: the scopes that it is seeded from are the core's to show."""
    yield from ()


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_KEY = click.option(
    "--key",
    default="",
    metavar="FILE",
    help="The key that signs the scope's list; or its .pub, if an agent or a token has the key.",
)
_VALID = click.option(
    "--valid",
    default="90d",
    show_default=True,
    callback=_seconds,
    help="How long nodes believe the list.",
)


@click.group()
def signing() -> None:
    """Change what signed scopes (signing.scopes) consist of. For root, on the host that signs."""


@signing.command()
@click.argument("bundle")
@click.argument("entries", nargs=-1, metavar="[ENTRY]...")
@click.option("--to", "scope", required=True, help="The signed scope: account-NAME or site.")
@_KEY
@_VALID
@json_option
@click.pass_obj
def promote(  # noqa: PLR0917 - one parameter for each option
    installation: Installation, bundle: str, entries: tuple[str, ...], scope: str, key: str, valid: int, as_json: bool
) -> None:
    """Copy entries of a bundle (default: all) into a signed scope, as `warmstart cache promote`, and sign its list.

    Exit status: 0 published; 1 that scope has them all, or no such bundle; 2 refused, not root, or the store fails.
    """

    def publish(session: Session, where: Namespace, source: str) -> Published:
        how = promotion.signing(session, scope, key, valid)
        return promotion.promote(repack_settings(session), how, where, source, entries, bundle_deadline())

    promoted(installation, bundle, entries, scope, publish, as_json=as_json)


@signing.command()
@click.argument("scope")
@_KEY
@_VALID
@click.option(
    "--without", multiple=True, metavar="BUNDLE", help="A bundle that nodes are to use no longer. Repeatable."
)
@json_option
@click.pass_obj
def sign(  # noqa: PLR0917 - one parameter for each option
    installation: Installation, scope: str, key: str, valid: int, without: tuple[str, ...], as_json: bool
) -> None:
    """Sign the list of a signed scope anew: before it expires, with another key, or without some bundles.

    What it names stays, from the last list that this host has believed; what else lies in the scope is not looked at.

    Exit status: 0 signed; 2 refused, not root, or the store fails.
    """
    with store_maintenance(installation) as (session, _):
        how = promotion.signing(session, scope, key, valid)
        made = promotion.sign(how, promotion.last(how, bundle_deadline()), bundle_deadline(), without=without)
        told = {"scope": scope, "serial": made.serial, "expires": rfc3339(made.expires)}
        session.audit.emit(events.LIST_SIGNED, **told, without=list(without)[:20], by=administrator())
    answer(f"{scope}: serial {made.serial}, until {told['expires']}", told, as_json=as_json)
