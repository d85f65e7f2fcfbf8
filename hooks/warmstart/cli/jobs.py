"""`warmstart jobs`: recent jobs, from audit logs: by user, node, image, and by what became of them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Sequence
from contextlib import suppress

import click

from warmstart.audit.query import LineFilter
from warmstart.audit.runs import runs
from warmstart.cli.audit import from_option, moment, reading
from warmstart.cli.cache import store_reading
from warmstart.cli.output import Column, Listing, brief_time, duration, table_options, text, warn
from warmstart.cli.own import log_for
from warmstart.maintenance.bundles import survey
from warmstart.paths import Installation
from warmstart.policy.units import parse_duration
from warmstart.report.jobs import MOST_JOBS, STATES, Job, of_runs
from warmstart.store.layout import is_bundle_id

NOTHING = 1
PUBLISHING = "[be]*"  # the events of bundles and entries
DEFAULT_SINCE = "1d"


def _nodes(value: object) -> str:
    """Format the first node and how many more there are."""
    names = value if isinstance(value, (list, tuple)) else ()
    return f"{names[0]}+{len(names) - 1}" if len(names) > 1 else text(names)


COLUMNS = (
    Column("job"),
    Column("user"),
    Column("started", brief_time),
    Column("state"),
    Column("nodes", _nodes),
    Column("prolog", duration),
    Column("detail", cut=True),
    *(Column(name, listed=False) for name in ("warm", "cold", "told", "images", "bundles", "why", "cluster")),
    Column("epilog", duration, listed=False),
)


def _seconds(_context: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option("--user", help="Only jobs of this user, by name or uid.")
@click.option("--node", help="Only jobs of this node.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs that are so.")
@click.option("--cold", is_flag=True, help="Only jobs of which a profile began cold.")
@click.option(
    "--slow", metavar="TIME", callback=_seconds, help="Only jobs with a prolog or epilog that took longer: 10s."
)
@click.option("--image", help="Only jobs that used this image: its reference or digest, or a part of one.")
@click.option(
    "--seeded-from", metavar="USER|BUNDLE", help="Only jobs that were seeded with a bundle, or with any of a user's."
)
@click.option(
    "--since",
    metavar="AGO|DATE",
    callback=moment,
    default=DEFAULT_SINCE,
    show_default=True,
    help="Since then: 2h, 7d, or a date.",
)
@click.option("--until", metavar="AGO|DATE", callback=moment, help="Until then.")
@from_option
@table_options(COLUMNS)
@click.pass_obj
def jobs(
    installation: Installation,
    /,
    *,
    sources: tuple[str, ...],
    listing: Listing,
    seeded_from: str | None,
    user: str | None,
    node: str | None,
    since: str,
    until: str | None,
    state: str | None,
    cold: bool,
    slow: float | None,
    image: str | None,
) -> None:
    """List the jobs that match all options, the last ones last: what became of them, and why they began cold.

    `warmstart explain` tells the story of one. Reads audit logs. Each is of one host: for the whole cluster collect
    them in a directory and give it with --from. Who cannot read the log is told of own jobs that are over, on any host
    with the store.

    Exit status: 0 there are such jobs; 1 there are none; 2 wrong usage, or a log cannot be read.
    """
    log = log_for(installation, sources)
    with reading(sources):
        given = _bundles_of(installation, sources, seeded_from) if seeded_from else ()
        found = of_runs(runs(log.lines(LineFilter(user=user, node=node, since=since, until=until))))
    if log.broken:
        warn(f"skipped {log.broken} unreadable lines")
    if len(found) == MOST_JOBS:
        warn(f"only the last {MOST_JOBS} jobs of that time were looked at")
    chosen = [
        job
        for job in found
        if (state is None or job.state == state)
        and (not cold or job.cold)
        and (slow is None or job.slowest > slow)
        and (image is None or job.uses_image(image))
        and (seeded_from is None or not set(job.bundles).isdisjoint(given))
    ]
    listing.show({**job._asdict(), "detail": _detail(job)} for job in chosen)
    if not chosen:
        raise click.exceptions.Exit(NOTHING)


def _detail(job: Job) -> str:
    """Return why it got nothing, or which of its profiles were cold, and why; else which were warm."""
    by_reason: dict[str, list[str]] = {}
    for profile, reason in job.cold.items():
        by_reason.setdefault(reason, []).append(profile)
    cold = [f"cold: {', '.join(profiles)} ({reason})" for reason, profiles in by_reason.items()]
    warm = [f"warm: {', '.join(job.warm)}"] if job.warm else []
    return job.why or "; ".join([*cold, *warm])


def _bundles_of(installation: Installation, sources: Sequence[str], given: str) -> Collection[str]:
    """Return the ids of the bundles of a user, by name or uid, or of one that begins so.

    The log has those that are gone; the store, which root can read, those that another host's log has.
    """
    found, names = {given}, {given}
    for run in runs(log_for(installation, sources).lines(LineFilter(event=PUBLISHING))):
        is_theirs = given in (run.user, str(run.uid))
        names |= {run.user} if is_theirs and run.published else set()
        for made in run.made:
            if not found.isdisjoint(made.replaces) or (is_theirs and not made.replaces):
                found.add(made.bundle)
    if not sources and os.geteuid() == 0:
        with suppress(KeyError, ValueError):
            names.add(pwd.getpwuid(int(given)).pw_name)
        with store_reading(installation) as store:
            found.update(item.bundle for item in survey(store, lambda _: None) if item.user in names)
    if found == {given} and not is_bundle_id(given):
        warn(f"nothing that {given} published is in the log, or in the store")
    return found
