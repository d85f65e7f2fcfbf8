"""`warmstart explain`: the story of one job, from the audit log or, for its user, from what hooks left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

import click

from warmstart.audit.query import LineFilter, epoch
from warmstart.cli.audit import log_options, reading
from warmstart.cli.output import json_option, say, show_table, warn
from warmstart.cli.own import log_for
from warmstart.paths import Installation
from warmstart.policy.units import format_duration
from warmstart.report import story
from warmstart.report.lines import Hook, hooks

NOTHING = 1


@click.command()
@click.argument("job", type=click.IntRange(min=1), envvar="SLURM_JOB_ID", metavar="[JOBID]")
@log_options()
@json_option
@click.pass_obj
def explain(
    installation: Installation,
    *,
    job: int,
    since: str | None,
    until: str | None,
    sources: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain one job: what it asked and got, how long each part took, what was cold and why, and what to do.

    JOBID is Slurm's numeric id, in a job by default its own. Whoever can read the audit log is told all of it. Others
    can ask about their own jobs: on a node of the job while it runs, what the prolog did; after its end on each host
    with the store. With --json it prints what it has read: the job's lines, as docs/reference/audit.md describes them.

    Exit status: 0 explained; 1 nothing is known of the job; 2 wrong usage, or a log cannot be read.
    """
    log = log_for(installation, sources)
    with reading(log, sources):
        lines = [*log.lines(LineFilter(job=job, since=since, until=until))]
        found = hooks(lines, epoch(until) if until else time.time())
    if not found:
        _say_nothing(installation, sources, job)
        raise click.exceptions.Exit(NOTHING)
    if as_json:
        for line in lines:
            click.echo(json.dumps(line))
    else:
        _show(sorted(found, key=lambda hook: (hook.began, hook.node)))


def _say_nothing(installation: Installation, sources: Sequence[str], job: int) -> None:
    warn(f"nothing is known of job {job}")
    if not sources and installation.is_off:
        warn(f"switched off on this host by {installation.off_switch}: hooks note nothing of jobs")
    if not sources and os.geteuid() != 0:
        warn(
            "of your own jobs ask on a node of the job while it runs, and after its end on a host with the store; "
            "administrators can explain any job"
        )


def _show(hooks: Sequence[Hook]) -> None:
    """Print the first node's hooks in full, and of the others what was cold there and what went wrong."""
    for text in story.about(hooks):
        say(text)
    first = story.first_node(hooks)
    for hook in hooks:
        if hook.node == first:
            took = f" in {format_duration(hook.seconds)}" if hook.seconds else ""
            say(f"\n{hook.done_by or hook.name} on {hook.node} at {hook.began}: {hook.outcome}{took}")
            if parts := story.parts(hook):
                show_table(("part", "time", "what"), parts)
    if others := [_row(hook) for hook in hooks if hook.node != first]:
        say("\nother nodes")
        show_table(("node", "hook", "outcome", "time", "what"), others)
    if advice := story.advice(hooks):
        say("\nwhat to do")
        for text in advice:
            say(f"- {text}")


def _row(hook: Hook) -> tuple[str, ...]:
    bad = [part for part in story.parts(hook) if part.what.startswith("cold") or (part.what and part.part[0] != " ")]
    what = "; ".join(f"{part.part.strip()}: {part.what}" for part in bad)
    took = format_duration(hook.seconds) if hook.seconds else ""
    return (hook.node, hook.done_by or hook.name, hook.outcome, took, what)
