"""`warmstart prefetch`: start imports before jobs wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from warmstart.cli.image_store import NOT_DONE, changed
from warmstart.cli.output import json_option, show_json, show_table, warn
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy
from warmstart.policy.match import Grant
from warmstart.request import Request
from warmstart.wings.prefetch import events, work


@click.command()
@click.option("--policy", "of_policy", is_flag=True, help="Only the images of prefetch.images.")
@click.option("--pending", "of_jobs", is_flag=True, help="Only those that pending jobs will need.")
@json_option
@click.pass_obj
def prefetch(installation: Installation, of_policy: bool, of_jobs: bool, as_json: bool) -> None:
    """Start background imports of the images of prefetch.images, and of those that pending jobs will need. For root.

    Does not wait for them. warmstart-prefetch.timer runs it on a host with the nodes' CPU and importer.

    Exit status: 0 done; 1 slurmctld could not be asked, or the policy's files are rejected; 2 wrong usage, or the
    store cannot be read.
    """
    if installation.is_off:
        warn(f"switched off by {installation.off_switch}")
        return
    with changed(installation) as store:
        chosen, refused, problem = work.wanted(
            store.policy, installation, of_policy=of_policy or not of_jobs, of_jobs=of_jobs or not of_policy
        )
        done = work.run(store.site(), installation, chosen)
        asked = [row.reference for row in done if row.result == work.REQUESTED]
        if asked or refused:
            store.emit(events.IMAGE_PREFETCHED, images=asked, refused=refused)
    if as_json:
        show_json({"images": [row._asdict() for row in done], "refused": refused})
    else:
        show_table(("result", "job", "image"), [(row.result, row.job_id or "-", row.reference) for row in done])
        if refused:
            warn(f"{refused} pending jobs are malformed, or ask for what the policy forbids")
    rejected = current_policy(installation).problem  # what was done is by the last good policy
    for error in filter(None, (problem, rejected)):
        warn(f"{error} ({error.hint})")
    if problem or rejected:
        raise click.exceptions.Exit(NOT_DONE)


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say nothing of a job."""
    yield from ()
