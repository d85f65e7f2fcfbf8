"""`warmstart explain`: the story of one job, from the audit log or, for its user, from what hooks left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click

from warmstart.audit.query import LineFilter, epoch
from warmstart.cli.audit import log_options, reading
from warmstart.cli.output import as_objects, json_option, say, show_json, show_table, warn
from warmstart.cli.own import log_for
from warmstart.paths import Installation
from warmstart.policy.units import format_duration
from warmstart.report.lines import hooks
from warmstart.report.story import HookStory, Story, tell

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
    with the store.

    Exit status: 0 explained; 1 nothing is known of the job; 2 wrong usage, or a log cannot be read.
    """
    log = log_for(installation, sources)
    with reading(log, sources):
        lines = log.lines(LineFilter(job=job, since=since, until=until))
        found = hooks(lines, epoch(until) if until else time.time())
    if not found:
        _say_nothing(installation, sources, job)
        raise click.exceptions.Exit(NOTHING)
    story = tell(found)
    if as_json:
        show_json(as_objects(story))
    else:
        _show(story)


def _say_nothing(installation: Installation, sources: Sequence[str], job: int) -> None:
    warn(f"nothing is known of job {job}")
    if not sources and installation.is_off:
        warn(f"switched off on this host by {installation.off_switch}: hooks note nothing of jobs")
    if not sources and os.geteuid() != 0:
        warn(
            "of your own jobs ask on a node of the job while it runs, and after its end on a host with the store; "
            "administrators can explain any job"
        )


def _show(story: Story) -> None:
    say(", ".join([f"job {story.job} of {story.user or '?'}", *map(" ".join, story.about.items())]))
    for name, words in story.plan.items():
        say(f"{name}: {', '.join(words)}")
    if story.excluded:
        say(f"warmstart does nothing for it: {story.excluded}")
    if story.refused:
        say(f"refused: {story.refused}")
    for notice in story.notices:
        say(notice)
    _show_hooks(story)
    if story.advice:
        say("\nwhat to do")
        for advice in story.advice:
            say(f"- {advice}")


def _show_hooks(story: Story) -> None:
    """Print the first node's hooks in full, and of the others what was cold there and what went wrong."""
    others = [hook for hook in story.hooks if hook.node in story.nodes[1:]]
    for hook in story.hooks:
        if hook not in others:
            took = f" in {format_duration(hook.seconds)}" if hook.seconds else ""
            say(f"\n{hook.hook} on {hook.node} at {hook.started}: {hook.outcome}{took}")
            if hook.parts:
                show_table(("part", "time", "what"), hook.parts)
    if others:
        say("\nother nodes")
        show_table(("node", "hook", "outcome", "time", "what"), map(_row, others))


def _row(hook: HookStory) -> tuple[str, ...]:
    bad = [part for part in hook.parts if part.what.startswith("cold") or (part.what and part.part[0] != " ")]
    what = "; ".join(f"{part.part.strip()}: {part.what}" for part in bad)
    return (hook.node, hook.hook, hook.outcome, format_duration(hook.seconds) if hook.seconds else "", what)
