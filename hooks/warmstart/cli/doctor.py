"""`warmstart doctor`: check this node, the store and Slurm's files. Users other than root get some `unknown`."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

from warmstart.cli.output import json_option, say, show_json, show_table, warn, working
from warmstart.doctor import (
    constant_path,
    containers,
    installed,
    job_side,
    kernel,
    node,
    slurm,
    slurm_conf,
    store,
)
from warmstart.doctor import policy as site_policy
from warmstart.doctor.finding import (
    ADVICE,
    AS_ROOT,
    BAD,
    CRITICAL,
    CRITICAL_CHECKS,
    OK,
    UNKNOWN,
    WRONG,
    Result,
    left_out,
    part,
    run,
)
from warmstart.doctor.node import Node
from warmstart.doctor.slurm import Slurm
from warmstart.doctor.wings import of_wings
from warmstart.errors import StoreError
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy

GOOD, PROBLEMS, SEVERE, NOT_RUN = range(4)  # the exit statuses
_WINGS = of_wings()
_OF_WINGS = {name: check for part in _WINGS for name, check in part.node.items()}
NODE = {**_OF_WINGS, **node.CHECKS, **kernel.CHECKS, **job_side.CHECKS}
STORE = {**store.CHECKS, **{name: check for part in _WINGS for name, check in part.store.items()}}
SLURM = {**slurm.CHECKS, **{name: check for part in _WINGS for name, check in part.slurm.items()}}
TASKS = {**containers.CHECKS, **constant_path.CHECKS}
CRITICAL_ONES = CRITICAL_CHECKS.union(*(part.critical for part in _WINGS))
WORST_FIRST = (CRITICAL, WRONG, UNKNOWN, ADVICE, OK)
COLORS = {CRITICAL: "red", WRONG: "yellow", UNKNOWN: "yellow"}


class _Doctor(click.Command):
    """A command whose wrong usage is status 3, because 2 means a critical finding."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.show()
            raise click.exceptions.Exit(NOT_RUN) from None


@click.command(cls=_Doctor)
@click.option(
    "--slurm-conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Check this slurm.conf instead of $SLURM_CONF or that of the policy's Slurm.",
)
@click.option("-a", "--all", "everything", is_flag=True, help="Print also what is ok.")
@json_option
@click.pass_obj
def doctor(
    installation: Installation,
    *,
    slurm_conf: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Check this node, the store and slurm.conf, and suggest what to change: problems, then one line.

    Changes nothing. Run it as root on a node; for other users some checks are `unknown`.

    Exit status: 0 nothing to do; 1 something is wrong or unknown; 2 something is critical, or a check that could find
    it is unknown; 3 it could not run, or wrong usage.
    """
    try:
        with working("checking"):
            results = examine(installation, slurm_conf)
    except Exception as error:
        if isinstance(error, click.ClickException):
            raise
        traceback.print_exc()
        raise click.exceptions.Exit(NOT_RUN) from None
    status = status_of(results)
    if as_json:
        findings = [result._asdict() for result in results]
        show_json({"ok": status == GOOD, "status": status, "findings": findings})
    else:
        _print(results, everything=everything)
    if status != GOOD:
        raise click.exceptions.Exit(status)


def status_of(results: Sequence[Result]) -> int:
    """Return the exit status of some findings."""
    if any(result.status == CRITICAL for result in results):
        return SEVERE
    unknown = [result.check for result in results if result.status == UNKNOWN]
    if not CRITICAL_ONES.isdisjoint(unknown):
        return SEVERE
    return PROBLEMS if unknown or any(result.status in BAD for result in results) else GOOD


def examine(installation: Installation, conf_path: str | None = None) -> list[Result]:
    """Return the findings of all checks. `conf_path` is a slurm.conf to check instead of the default one."""
    policy = None
    with suppress(Exception):  # of which policy.in-force tells
        policy = current_policy(installation).policy
    results = run(site_policy.CHECKS, installation)
    if policy is None:
        why = "no policy is in force"
        results += [left_out("node", NODE, why), left_out("store", STORE, why)]
    else:
        results += part("node", _node, installation, policy) + part("store", _store, installation, policy)
    return results + part("slurm", _slurm, installation, policy, conf_path)


def _node(installation: Installation, policy: Policy) -> list[Result]:
    return run(NODE, Node(installation, policy))


def _store(installation: Installation, policy: Policy) -> list[Result]:
    if os.geteuid() not in (0, policy.store_user.uid):
        # Only the store's owner can read the store, and only root can become that owner.
        return [left_out("store", STORE, "only root can read the store as its owner", AS_ROOT)]
    try:
        with store.opened(policy, installation) as opened:
            return run(STORE, opened)
    except StoreError as error:  # one row, and one deadline: the other checks would hang, too
        return [Result("store.reachable", CRITICAL, str(error), error.hint)]


def _slurm(installation: Installation, policy: Policy | None, conf_path: str | None) -> list[Result]:
    scontrol = policy.paths.scontrol if policy else ""  # "": nothing tells which Slurm counts
    path = slurm_conf.find(conf_path, installed.prefix(scontrol) if scontrol else "")
    path = path or (scontrol and installed.slurm_conf(scontrol)) or slurm_conf.PLACES[0]
    checks = {**SLURM, **TASKS}
    try:
        conf = slurm_conf.read(path)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        return [left_out("slurm", checks, why, "run it on a node, or give the file's path: --slurm-conf FILE")]
    version = installed.release(scontrol, path) if scontrol else None
    subject = Slurm(conf, installation, policy, version)
    return run(SLURM, subject) + part("slurm.tasks", _tasks, subject)


def _tasks(subject: Slurm) -> list[Result]:
    try:
        return run(TASKS, containers.tasks(subject))
    except OSError as error:
        return [left_out("slurm.tasks", TASKS, f"{error.filename}: {error.strerror}", AS_ROOT)]


def _print(results: list[Result], *, everything: bool) -> None:
    ordered = sorted(results, key=lambda result: WORST_FIRST.index(result.status))
    shown = [result for result in ordered if everything or result.status != OK]
    if shown:
        rows = [(r.status, r.check, f"{r.found}. To do: {r.change}" if r.change else r.found) for r in shown]
        show_table(("status", "check", "finding"), rows)
    counts = {status: sum(result.status == status for result in results) for status in WORST_FIRST}
    worst = next(status for status, count in counts.items() if count)
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    say(words, bold=True, fg=COLORS.get(worst, "green"))
    if counts[UNKNOWN] and os.geteuid() != 0:
        warn("some checks need root")
