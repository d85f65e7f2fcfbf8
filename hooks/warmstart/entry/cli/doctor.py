"""`warmstart doctor`: check this node, the store and Slurm's files. Users other than root get some `unknown`."""

from __future__ import annotations

import os

import click

from warmstart.entry.cli.output import json_option, say, show_json, show_table, warn, working
from warmstart.entry.doctor import constant_path, containers, finding, kernel, node, slurm, slurm_conf, store
from warmstart.entry.doctor import policy as site_policy
from warmstart.entry.doctor.finding import ADVICE, AS_ROOT, BAD, OK, UNKNOWN, Result, not_run, run
from warmstart.entry.doctor.node import Node
from warmstart.entry.doctor.slurm import Slurm
from warmstart.errors import PolicyError, StoreError
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy

WRONG = 1
NODE = {**node.CHECKS, **kernel.CHECKS}
TASKS = {**containers.CHECKS, **constant_path.CHECKS}
# Only the store's owner can read the store, and only root can become that owner.
NOT_ROOT = "only root can read the store as its owner"


@click.command()
@click.option(
    "--slurm-conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Check this slurm.conf instead of $SLURM_CONF or /etc/slurm/slurm.conf.",
)
@json_option
@click.pass_obj
def doctor(installation: Installation, slurm_conf: str | None, as_json: bool) -> None:
    """Check this node, the store and slurm.conf, and suggest what to change.

    Changes nothing. Run it as root on a node; for other users some checks are `unknown`.

    Exit status: 0 nothing is wrong or critical; 1 something is; 2 wrong usage.
    """
    with working("checking"):
        results = examine(installation, slurm_conf)
    bad = [result for result in results if result.status in BAD]
    if as_json:
        show_json({"ok": not bad, "findings": [result._asdict() for result in results]})
    else:
        _print(results)
    if bad:
        raise click.exceptions.Exit(WRONG)


def examine(installation: Installation, conf_path: str | None = None) -> list[Result]:
    """Return the findings of all checks. `conf_path` is a slurm.conf to check instead of the default one."""
    try:
        policy = current_policy(installation).policy
    except PolicyError:
        policy = None
    results = run(site_policy.CHECKS, installation)
    results += _node_and_store(installation, policy)
    return results + _slurm(installation, policy, conf_path)


def _node_and_store(installation: Installation, policy: Policy | None) -> list[Result]:
    """Run the checks that need the paths and accounts of a policy."""
    if policy is None:
        return not_run([*NODE, *store.CHECKS], "no policy is in force", "fix the policy first")
    results = run(NODE, Node(installation, policy))
    if os.geteuid() not in (0, policy.store_user.uid):
        return results + not_run(store.CHECKS, NOT_ROOT, AS_ROOT)
    try:
        with store.opened(policy) as opened:
            return results + run(store.CHECKS, opened)
    except StoreError as error:
        first, *others = store.CHECKS  # do not wait for a deadline per check
        return [
            *results,
            Result(first, finding.WRONG, str(error), error.hint),
            *not_run(others, str(error), error.hint),
        ]


def _slurm(installation: Installation, policy: Policy | None, conf_path: str | None) -> list[Result]:
    path = slurm_conf.find(conf_path)
    try:
        conf = slurm_conf.read(path)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        return not_run([*slurm.CHECKS, *TASKS], why, "give its path: --slurm-conf FILE")
    subject = Slurm(conf, installation, policy)
    try:
        tasks = containers.tasks(subject)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        return run(slurm.CHECKS, subject) + not_run(TASKS, why, AS_ROOT)
    return run(slurm.CHECKS, subject) + run(TASKS, tasks)


def _print(results: list[Result]) -> None:
    show_table(("check", "status", "found", "change"), results)
    counts = {status: sum(result.status == status for result in results) for status in (OK, ADVICE, *BAD, UNKNOWN)}
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts[UNKNOWN] and os.geteuid() != 0:
        warn("some checks need root")
