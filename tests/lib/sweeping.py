"""What the sweeps of hooks share: which cases a run takes, what is wrong after one, and the report of all.

The reports are JSON files in build/reliability.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.lib.faults import STORE, Done, Fault
from tests.lib.hook_site import JOB, LATER_S, OF_WINGS, HookSite
from tests.lib.reports import REPORTS, made
from warmstart.steps.environment import OWN

# What drains a node: errors of its own disks that no user can cause.
NODE_FAULTS = ("EIO", "EROFS")
OF_THE_NODE = ("state", "workspace", "constant path")
# Hooks whose status Slurm acts upon. That of the others tells a person or systemd.
DRAINING = ("prolog", "epilog")
# CloneNSScript and slurmctld's hooks always end with 0: another status would fail or requeue the job.
ALWAYS_0 = ("job-container", *(name for wing in OF_WINGS for name in wing.acts))
Case = TypeVar("Case")


class Outcome(NamedTuple):
    """What one fault did, for the report."""

    hook: str
    call: str
    where: str
    domain: str
    error: str
    outcome: str  # "none", "notice", "drained", or the errors' codes
    left: list[str]  # when the hook had run again
    repaired: str  # by what


class Killed(NamedTuple):
    """What a kill before one call left, for the report."""

    hook: str
    number: int  # of the call, among those that change something
    call: str
    where: str
    domain: str
    left: list[str]  # when the hook had run again
    repaired: str  # by what


def chosen(cases: Sequence[Case], *, whole: bool) -> list[Case]:
    """Return all cases, or one of SWEEP_SHARE (80), by SWEEP_SEED."""
    if whole:
        return list(cases)
    number = -(-len(cases) // int(os.environ.get("SWEEP_SHARE", "80")))
    # S311: no secret
    picked = random.Random(os.environ.get("SWEEP_SEED", "1")).sample(range(len(cases)), number)
    return [cases[index] for index in sorted(picked)]


def wrong_after(site: HookSite, hook: str, fault: Fault, done: Done, events: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with how a hook took a fault: class, status, a job that got half of its preparation."""
    wrong = []
    if not done.hits:
        wrong.append("the call did not happen")
    if "Traceback" in done.stderr or any(event["event"] == "hook.crashed" for event in events):
        wrong.append(f"taken for a bug: {crash(done, events)}")
    if done.status is None:
        wrong.append("it was killed")
    elif done.status and hook in ALWAYS_0:
        wrong.append(f"status {done.status}")
    elif done.status and hook in DRAINING and not (fault.site.domain in OF_THE_NODE and fault.error in NODE_FAULTS):
        wrong.append(f"drains the node: {done.stderr.strip()}")
    kinds = {event["error"]["kind"] for event in events if event.get("error")}
    if fault.site.domain == STORE and "node" in kinds:
        wrong.append("the store's failure is called the node's")
    return wrong + (_half_prepared(site) if hook == "prolog" else [])


def crash(done: Done, events: list[dict[str, Any]]) -> str:
    """Return the last lines of a traceback."""
    text = "".join(event["traceback"] for event in events if event["event"] == "hook.crashed") or done.stderr
    return " | ".join(line.strip() for line in text.strip().splitlines()[-8:])


def _half_prepared(site: HookSite) -> list[str]:
    """Return what the job's variables name that is not there or not the job's."""
    wrong = []
    text = site.view().get("environment", "")
    for line in text.splitlines()[3:]:
        name, _, value = line.lstrip("!").partition("=")
        if name == OWN:  # names and values
            continue
        constant = str(site.base / "constant/cache")
        if value.startswith(constant):
            value = text.splitlines()[2] + value.removeprefix(constant)
        if value.startswith(str(site.base)) and not Path(value).exists():
            wrong.append(f"the job's {name} is missing: {value}")
    return wrong


def what_happened(done: Done, events: list[dict[str, Any]]) -> str:
    """Return the outcome of a fault in a few words."""
    codes = dict.fromkeys(
        f"{event['error']['code']} ({event['error']['kind']})" for event in events if event.get("error")
    )
    text = ", ".join(codes) or ("message" if done.stderr else "none")
    return f"{text}; drains" if done.status and "node.drained" in {event["event"] for event in events} else text


def _job_over(site: HookSite) -> None:
    for wing in OF_WINGS:
        if wing.part and os.listdir(site.base / wing.part):
            site.hook(wing.over)


def recover(site: HookSite, hook: str) -> tuple[list[str], str, list[str]]:
    """Run the hook again, and what comes after it; then maintenance, if something is left.

    Return what was left before maintenance, what repaired it, and what is left then.
    """
    if hook == "epilog":
        _job_over(site)
    if not site.problems(settled=True):
        return [], "", []
    site.hook(hook)
    if any(site.workspace.glob(f"{JOB}.*")) or os.path.exists(f"{site.paths.state}/{JOB}"):
        site.hook("epilog")
    _job_over(site)
    left = site.problems(settled=True)
    if not left:
        return [], "", []
    for name in ("maintain", "maintain-store"):
        site.hook(name, later=LATER_S)
        if not (still := site.problems(settled=True)):
            return left, name.replace("-", " --"), []
    return left, "", still


def report(name: str, outcomes: Sequence[NamedTuple], cases: int) -> None:
    """Write the outcomes of a sweep with so many cases."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    text = {"made": made(), "cases": cases, "outcomes": [outcome._asdict() for outcome in outcomes]}
    (REPORTS / f"{name}.json").write_text(json.dumps(text, indent=1))
