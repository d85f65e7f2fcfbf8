"""`warmstart prefetch`: start imports before jobs wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from warmstart.cli.image_store import NOT_DONE, changed
from warmstart.cli.output import json_option, show_json, show_table, warn
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.request import Request
from warmstart.wings.prefetch import events, work


@click.command()
@json_option
@click.pass_obj
def prefetch(installation: Installation, as_json: bool) -> None:
    """Start background imports of the images of prefetch.images. For root.

    Does not wait for them. warmstart-prefetch.timer runs it on a host with the nodes' CPU and importer.

    Exit status: 0 done; 1 the policy's files are rejected; 2 wrong usage, or the store cannot be read.
    """
    if installation.is_off:
        warn(f"switched off by {installation.off_switch}")
        return
    with changed(installation) as store:
        done = work.run(store.policy, store.site(), installation)
        if asked := [row.reference for row in done if row.result == work.REQUESTED]:
            store.emit(events.IMAGE_PREFETCHED, images=asked)
    if as_json:
        show_json({"images": [row._asdict() for row in done]})
    else:
        show_table(("result", "image"), [(row.result, row.reference) for row in done])
    if rejected := current_policy(installation).problem:  # what was done is by the last good policy
        warn(f"{rejected} ({rejected.hint})")
        raise click.exceptions.Exit(NOT_DONE)


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say nothing of a job."""
    yield from ()
