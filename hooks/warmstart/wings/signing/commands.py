"""`warmstart cache sign`: sign the list of a scope anew, also without bundles that it has named.

The command line's part of docs/operations/signing.md.
"""

from __future__ import annotations

import click

from warmstart.audit import events
from warmstart.cli.cache import KEY, VALID, administrator, store_maintenance
from warmstart.cli.output import answer, json_option, rfc3339
from warmstart.maintenance.bundles import bundle_deadline
from warmstart.paths import Installation
from warmstart.repack import signing


@click.command()
@click.argument("scope")
@KEY
@VALID
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
        how = signing.signing(session.store, scope, key, valid)
        made = signing.sign(how, signing.last(how, bundle_deadline()), bundle_deadline(), without=without)
        told = {"scope": scope, "serial": made.serial, "expires": rfc3339(made.expires)}
        session.audit.emit(events.LIST_SIGNED, **told, without=list(without)[:20], by=administrator())
    answer(f"{scope}: serial {made.serial}, until {told['expires']}", told, as_json=as_json)
