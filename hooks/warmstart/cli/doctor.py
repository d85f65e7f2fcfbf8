"""`warmstart doctor`: check this node, the store and Slurm. Users other than root get some `unknown`."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from warmstart.cli.output import json_option, say, show_json, show_table, warn, working
from warmstart.doctor import (
    constant_path,
    containers,
    installed,
    node,
    permissions,
    slurm,
    slurm_files,
    store,
    trials,
)
from warmstart.doctor import policy as site_policy
from warmstart.doctor.finding import (
    ADVICE,
    AS_ROOT,
    BAD,
    CRITICAL,
    OK,
    UNKNOWN,
    WRONG,
    Check,
    Result,
    left_out,
    part,
    run,
)
from warmstart.doctor.node import Node
from warmstart.doctor.slurm import Slurm
from warmstart.doctor.wings import of_wings
from warmstart.errors import StoreError
from warmstart.host.deadline import after
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld

GOOD, PROBLEMS, SEVERE, NOT_RUN = range(4)  # the exit statuses
_WINGS = of_wings()
POLICY = (*site_policy.CHECKS, permissions.permissions)
NODE = (*node.CHECKS, *trials.CHECKS, *(check for part in _WINGS for check in part.node))
STORE = store.CHECKS
SLURM = (
    *slurm.CHECKS,
    *containers.CHECKS,
    *constant_path.CHECKS,
    *(check for part in _WINGS for check in part.slurm),
)
EVERY: tuple[Check[Any], ...] = (*POLICY, *NODE, *STORE, *SLURM)
# Whole groups whose checks cannot be made, too. Not Slurm's: a slurmctld that does not answer is no fault of a node.
CRITICAL_ONES = {"node", "store", *(check.name for check in EVERY if check.critical)}
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
@click.option("-a", "--all", "everything", is_flag=True, help="Print also what is ok.")
@json_option
@click.pass_obj
def doctor(installation: Installation, *, everything: bool, as_json: bool) -> None:
    """Check this node, the store and Slurm's settings, and suggest what to change: problems, then one line.

    Changes nothing. Run it as root on a node; for other users some checks are `unknown`.

    Exit status: 0 nothing to do; 1 something is wrong or unknown; 2 something is critical, or a check that could find
    it is unknown; 3 it could not run, or wrong usage.
    """
    try:
        with working("checking"):
            results = examine(installation)
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


def examine(installation: Installation) -> list[Result]:
    """Return the findings of all checks."""
    policy = None
    with suppress(Exception):  # of which policy.in-force tells
        policy = current_policy(installation).policy
    results = run(POLICY, installation)
    groups = (("node", NODE, _node), ("store", STORE, _store), ("slurm", SLURM, _slurm))
    for group, checks, examined in groups:
        if policy is None:
            results.append(left_out(group, checks, "no policy is in force"))
        else:
            results += part(group, examined, installation, policy)
    return results


def _node(installation: Installation, policy: Policy) -> list[Result]:
    return run(NODE, Node(installation, policy))


def _store(installation: Installation, policy: Policy) -> list[Result]:
    if os.geteuid() not in (0, policy.store_user.uid):
        # Only the store's owner can read the store, and only root can become that owner.
        return [left_out("store", STORE, "only root can read the store as its owner", AS_ROOT)]
    try:
        with store.opened(policy, installation) as opened:
            return run(store.possible(opened), opened)
    except StoreError as error:  # one row, and one deadline: the other checks would hang, too
        return [Result("store.mount", CRITICAL, str(error), error.hint)]


def _slurm(installation: Installation, policy: Policy) -> list[Result]:
    scontrol = policy.paths.scontrol
    try:
        settings = Slurmctld(Access(scontrol, os.environ.get("SLURM_CONF", ""))).settings(after(QUERY_S))
        conf = slurm_files.directory(installed.prefix(scontrol), settings.one("SLURM_CONF"))
        plugins = slurm_files.plugins(os.path.join(conf, settings.one("PlugStackConfig") or "plugstack.conf"))
    except LookUpFailed as error:
        return [left_out("slurm", SLURM, str(error), "run doctor where slurmctld answers, or correct paths.scontrol")]
    except OSError as error:
        return [left_out("slurm", SLURM, f"{error.filename}: {error.strerror}", AS_ROOT)]
    version = installed.release(scontrol, settings.one("SLURM_VERSION"))
    return run(SLURM, Slurm(settings, installation, policy, version, conf, tuple(plugins), slurm.ENROOT))


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
