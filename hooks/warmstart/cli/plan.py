"""`warmstart plan`: preview what a job would get, rule by rule, and why. Runs as any user and changes nothing.

Each part calls the functions that a prolog calls (`plan`, `policy.match`, `images.reference`), so a preview cannot
differ from what a hook does for the same job. It queries neither the store nor a registry.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import click

from warmstart import plan as planning
from warmstart import wing
from warmstart.cli.output import fail, json_option, say, show_json, show_table, warn
from warmstart.doctor import containers, slurm_files
from warmstart.ending.harvesting import to_harvest
from warmstart.errors import PolicyError, UserError, WarmstartError
from warmstart.host.wire import Json
from warmstart.images import reference as references
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.current import CurrentPolicy, current_policy
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant, combine, matching, parted
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES
from warmstart.request import NOTHING, Request, known_words
from warmstart.run.state import Caches, Run, Seeded

REFUSED = 1
SHOWN = ("partition", "account", "qos", "job_name", "node", "comment")
NO_JOB = 1  # any id will do: the preview looks up no job
CACHE = "$WARMSTART_CACHE"  # stands for the job's cache, whose path depends on the run id
NO_STEPS: dict[str, list[str]] = {"prolog": [], "epilog": []}


@click.command()
@click.option("--user", help="The job's user; default: you.")
@click.option("--partition", default="", help="The job's partition; without it no rule on partitions matches.")
@click.option("--account", default="", help="The job's account.")
@click.option("--qos", default="", help="The job's QOS.")
@click.option("--job-name", default="", help="The job's name.")
@click.option("--node", help="The node that the job runs on; default: this host.")
@click.option("--comment", default="", help='The job\'s comment, e.g. "warmstart: image=… profiles=…".')
@click.option("--image", default="", help="The job's value of --container-image.")
@json_option
@click.pass_obj
def plan(
    installation: Installation,
    *,
    user: str | None,
    partition: str,
    account: str,
    qos: str,
    job_name: str,
    node: str | None,
    comment: str,
    image: str,
    as_json: bool,
) -> None:
    """Show what a job would get, rule by rule, and why.

    The options describe the job. Its groups are those of the user on this node. Writes nothing, imports nothing, and
    does not read the store. Works for any user who can read the policy's files.

    Exit status: 0 the job would run; 1 it would be refused; 2 wrong usage, or no policy can be read.
    """
    job = _owned_by(user)._replace(partition=partition, account=account, comment=comment, pyxis_image=image)
    job = job._replace(node=node or job.node, qos=qos, job_name=job_name)
    try:
        policy = current_policy(installation)
    except PolicyError as error:
        fail(error, error.hint)
    off = installation.is_off
    shown = preview(policy.policy, job)
    if shown["images"] and (way := _way()):
        shown["remarks"].insert(0, way)
    if as_json:
        show_json({**shown, "off": off, "policy": _origin(policy)})
    else:
        _print(shown, policy, installation.off_switch if off else "")
    if shown["verdict"]:
        raise click.exceptions.Exit(REFUSED)


def _way() -> str:
    """Return how containers start by the files beside this host's slurm.conf, "" if it has none."""
    try:
        return containers.way(slurm_files.directory())
    except OSError:
        return ""


def _owned_by(user: str | None) -> Job:
    try:
        passwd = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
    except KeyError:
        raise click.BadParameter(f"no user {user!a} on this node", param_hint="--user") from None
    here = os.uname().nodename.partition(".")[0]
    return Job(
        id=NO_JOB, uid=passwd.pw_uid, gid=passwd.pw_gid, user=passwd.pw_name, node=here, cluster="", partition="",
        account="", nodelist="", het_id=None, comment="", pyxis_image="",
    )  # fmt: skip


def preview(policy: Policy, job: Job) -> dict[str, Json]:
    """Return what the job would get, as --json prints it."""
    matches = matching(policy, job, partial(planning.groups, job))
    grant = combine(policy, matches, job)
    requested, invalid = _requested(policy, job, grant)
    grant = parted(job, grant, requested.cache)
    used = {known.name for known in policy.wings if known.used}
    steps, verdict = _steps(policy, job, grant, requested)
    if invalid:
        steps, verdict = NO_STEPS, invalid
    return {
        "job": {key: getattr(job, key) for key in ("user", "uid", *SHOWN)},
        "nothing_because": grant.reason,
        "mode": "observe" if grant.observed else "enforce",
        "verdict": verdict.as_audit() if verdict else None,
        "rules": [{"name": rule.name, "matched": matched, "reason": reason} for rule, matched, reason, _ in matches],
        "images": _images(policy, job, grant, requested),
        "profiles": _profiles(policy, grant, requested),
        "left_out": _left_out(policy, grant, requested),
        "offered": [name for name in registry.names(policy.profiles) if name != FILES],
        "words": known_words([word.name for word in policy.words if word.wing in used]),
        "scopes": {"read": grant.read_scopes, "publish": grant.publish_scope},
        "cache": grant.cache,
        "environment": grant.env,
        "override": sorted(grant.override),
        "own": grant.own,
        "remarks": [
            *filter(None, [planning.slip_of(policy, job)]),
            *(() if verdict else _remarks_of_wings(policy, job, grant, requested)),
        ],
        "steps": steps,
    }


def _requested(policy: Policy, job: Job, grant: Grant) -> tuple[Request, UserError | None]:
    try:
        return planning.request_of(policy, job, grant), None
    except UserError as error:
        return NOTHING, error


def _steps(policy: Policy, job: Job, grant: Grant, requested: Request) -> tuple[dict[str, list[str]], UserError | None]:
    """Return the names of the steps per hook, or none and the verdict if the job would be refused."""
    try:
        prolog = [step.name for step in planning.prolog(policy, job, grant, requested)]
    except UserError as error:
        return NO_STEPS, error
    if not prolog:
        return NO_STEPS, None
    seeded = {name: Seeded("") for name in planning.profiles(policy, grant, requested)}
    run = _run(job)._replace(own=Caches(publish_scope=grant.publish_scope, path=CACHE, seeded=seeded))
    epilog = ["harvest", "release"] if to_harvest(policy, run) else ["release"]
    return {"prolog": [*prolog, "environment"], "epilog": epilog}, None


def _run(job: Job) -> Run:
    return Run(
        run_id="", job_id=job.id, view_id=job.view_id, uid=job.uid, gid=job.gid, user=job.user,
        account=job.account, partition=job.partition, cluster=job.cluster, node=job.node,
    )  # fmt: skip


def _images(policy: Policy, job: Job, grant: Grant, requested: Request) -> list[Json]:
    """Return every image, the job's own first, with the reason if it is refused."""
    return [
        *(_image(policy, job, text, requested) for text in requested.images),
        *(_image(policy, job, text, None) for text in grant.images),
    ]


def _image(policy: Policy, job: Job, text: str, requested: Request | None) -> Json:
    """Return one image, of the job's request or, without one, of the policy."""
    shown, problem, private = text, "", ""
    try:
        reference = planning.reference_of(requested, text) if requested else references.parse(text)
        shown = reference.canonical()
        if requested:
            references.check_allowed(reference, policy.images.allowed)
        private = "".join(name for _, name in planning.private_images(policy, job, [reference]))
    except WarmstartError as error:
        problem = str(error)
    return {
        "image": shown,
        "from": "job" if requested else "policy",
        "private": private,
        "allowed": not problem,
        "reason": problem,
    }


def _profiles(policy: Policy, grant: Grant, requested: Request) -> list[Json]:
    try:
        names = planning.profiles(policy, grant, requested)
    except UserError:
        names = grant.profiles  # the job's own request is refused
    return [
        {
            "name": name,
            "from": "policy" if name in grant.profiles else "job",
            "variables": registry.get(name, policy.profiles).environment(CACHE, lambda: "~"),
            "experimental": registry.get(name, policy.profiles).experimental,
        }
        for name in names
    ]


def _left_out(policy: Policy, grant: Grant, requested: Request) -> dict[str, str]:
    try:
        return planning.left_out(policy, grant, requested)
    except UserError:
        return {}  # the job's own request is refused


def _origin(policy: CurrentPolicy) -> Json:
    problem = policy.problem.as_audit() if policy.problem else None
    return {"file": policy.origin, "problem": problem}


def _print(shown: dict[str, Json], policy: CurrentPolicy, off_switch: str) -> None:
    if off_switch:
        warn(f"switched off by {off_switch}: hooks do nothing until it is removed")
    if policy.problem:
        warn(f"{policy.problem}\nthe last good policy stays in force")
    job = shown["job"]
    described = ", ".join(f"{key} {value}" for key, value in job.items() if key in SHOWN and value)
    say(f"Job of {job['user']} (uid {job['uid']}): {described}\nPolicy: {policy.origin}")
    rules = [(rule["name"], rule["matched"], rule["reason"]) for rule in shown["rules"]]
    show_table(("rule", "applies", "reason"), rules)
    if shown["mode"] == "observe":
        say("Observed: hooks write into the audit log what is below, and touch nothing.", bold=True)
    if shown["nothing_because"]:
        say(f"warmstart does nothing for this job: {shown['nothing_because']}", bold=True)
    elif shown["verdict"]:
        say(f"The job would be refused: {shown['verdict']['reason']}\n{shown['verdict']['hint']}", bold=True, fg="red")
    elif not shown["steps"]["prolog"]:
        say("No rule gives this job anything, and it requests nothing.", bold=True)
    _print_parts(shown)


class CommandsPart(Protocol):
    """`commands.py` of a wing."""

    def remarks(self, policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:
        """Yield sentences on what a job gets. Raises `UserError`."""


def _remarks_of_wings(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:
    for part in _of_wings():
        yield from part.remarks(policy, job, grant, requested)


def _of_wings() -> list[CommandsPart]:
    parts: list[CommandsPart] = [wing.load(module) for module in wing.with_part("commands")]
    return parts


def _remarks(shown: dict[str, Json]) -> list[str]:
    """Return what there is to know about the job's profiles."""
    experimental = [row["name"] for row in shown["profiles"] if row["experimental"]]
    remarks = [f"Left out: {name} {why}" for name, why in shown["left_out"].items()]
    if not shown["nothing_because"]:
        remarks.append(f"A job may ask for the profiles {', '.join(shown['offered'])}.")
        remarks.append(f"Its comment may have the words {' '.join(shown['words'])}.")
    if experimental:
        remarks.insert(0, f"Experimental, because they were never run with their tools: {', '.join(experimental)}")
    return remarks


def _print_parts(shown: dict[str, Json]) -> None:
    if shown["images"]:
        rows = [(row["from"], row["private"], row["image"], row["reason"] or "allowed") for row in shown["images"]]
        show_table(("from", "private", "image", "verdict"), rows)
    if shown["profiles"]:
        profiles = [
            (row["name"], row["from"], " ".join(f"{key}={value}" for key, value in row["variables"].items()))
            for row in shown["profiles"]
        ]
        show_table(("profile", "from", "variables"), profiles)
    for line in _remarks(shown):
        say(line)
    for remark in shown["remarks"]:
        say(remark)
    if shown["environment"]:
        show_table(("variable", "value set by the policy"), list(shown["environment"].items()))
    if shown["override"]:
        say(f"The user cannot override: {', '.join(shown['override'])}")
    if shown["steps"]["prolog"]:
        scopes = shown["scopes"]
        named = f"; the caches' name: {shown['cache']}" if shown["cache"] else ""
        say(f"Reads the caches of: {', '.join(scopes['read'])}; publishes to: {scopes['publish'] or 'no scope'}{named}")
        for hook, steps in shown["steps"].items():
            say(f"{hook}: {' → '.join(steps)}")
