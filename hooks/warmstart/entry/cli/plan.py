"""`warmstart plan`: what a given job would get and why, rule by rule. Touches nothing."""

from __future__ import annotations

import os
import pwd

import click

from warmstart.entry.cli.current_policy import CurrentPolicy, current_policy, hint_for
from warmstart.entry.cli.output import fail, json_option, say, show_json, show_table, warn
from warmstart.entry.preview import Preview, preview, switched_off
from warmstart.errors import PolicyError
from warmstart.job import Job
from warmstart.paths import Installation

REFUSED = 1
SHOWN = ("partition", "account", "qos", "job_name", "array", "constraint", "node", "comment")
NO_JOB = 1  # a job id is never asked of anything here


@click.command()
@click.option("--user", help="Whose job; you by default.")
@click.option("--partition", default="", help="The job's partition; without one no rule on partitions matches.")
@click.option("--account", default="", help="The job's account.")
@click.option("--qos", default="", help="The job's QOS.")
@click.option("--job-name", default="", help="The job's name.")
@click.option("--array", default="", help="JOBID_TASKID, for a task of an array.")
@click.option("--constraint", default="", help="What the job gives to --constraint.")
@click.option("--node", help="The node that it runs on; this one by default.")
@click.option("--comment", default="", help='The job\'s comment, e.g. "warmstart: image=… profiles=…".')
@click.option("--image", default="", help="What the job gives to --container-image.")
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
    array: str,
    constraint: str,
    node: str | None,
    comment: str,
    image: str,
    as_json: bool,
) -> None:
    """Show what a job would get, rule by rule, and why.

    Describe the job by options. Nothing is written, imported or looked up in the store; groups are those of the
    user on this node. Any user who can read the policy's files may ask.

    Exit status: 0 the job would run; 1 it would be refused; 2 wrong usage, or no policy can be read.
    """
    job = _owned_by(user)._replace(partition=partition, account=account, comment=comment, pyxis_image=image)
    job = job._replace(node=node or job.node, qos=qos, job_name=job_name, array=array, constraints=constraint)
    try:
        policy = current_policy(installation)
    except PolicyError as error:
        fail(error, hint_for(error))
    off = switched_off(installation.off_switch)
    found = preview(policy.policy, job)
    if as_json:
        show_json({**found, "off": off, "policy": _origin(policy)})
    else:
        _print(found, policy, installation.off_switch if off else "")
    if found["verdict"]:
        raise click.exceptions.Exit(REFUSED)


def _owned_by(user: str | None) -> Job:
    try:
        found = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
    except KeyError:
        raise click.BadParameter(f"no user {user!a} on this node", param_hint="--user") from None
    here = os.uname().nodename.partition(".")[0]
    return Job(
        id=NO_JOB, uid=found.pw_uid, gid=found.pw_gid, user=found.pw_name, node=here, cluster="", partition="",
        account="", nodelist="", het_id=None, constraints="", comment="", pyxis_image="",
    )  # fmt: skip


def _origin(policy: CurrentPolicy) -> dict[str, object]:
    problem = policy.problem.as_audit() if policy.problem else None
    return {"file": policy.origin, "changed": policy.changed, "problem": problem}


def _print(found: Preview, policy: CurrentPolicy, off_switch: str) -> None:
    if off_switch:
        warn(f"switched off by {off_switch}: hooks do nothing until it is removed")
    if policy.problem:
        warn(f"{policy.problem}\nthe last good policy stays in force")
    job = found["job"]
    asked = ", ".join(f"{key} {value}" for key, value in job.items() if key in SHOWN and value)
    say(f"Job of {job['user']} (uid {job['uid']}): {asked}\nPolicy: {policy.origin}")
    rules = [
        (rule["name"], "yes" if rule["matched"] else "no", rule["reason"], rule["place"]) for rule in found["rules"]
    ]
    show_table(("rule", "applies", "because", "place"), rules)
    if found["nothing_because"]:
        say(f"warmstart does nothing for this job: {found['nothing_because']}", "bold")
    elif found["verdict"]:
        say(f"The job would be refused: {found['verdict']['reason']}\n{found['verdict']['hint']}", "bold red")
    elif not found["steps"]["prolog"]:
        say("No rule gives this job anything, and it asks for nothing.", "bold")
    _print_parts(found)


def _print_parts(found: Preview) -> None:
    if found["images"]:
        wanted = [(row["image"], row["from"], row["private"], row["reason"] or "allowed") for row in found["images"]]
        show_table(("image", "wanted by", "private", "verdict"), wanted)
    if found["profiles"]:
        rows = [
            (row["name"], row["from"], " ".join(f"{key}={value}" for key, value in row["variables"].items()))
            for row in found["profiles"]
        ]
        show_table(("profile", "wanted by", "variables"), rows)
    if found["left_out"]:
        say(f"Left out, for this node has no constant path (policy: constant_path): {', '.join(found['left_out'])}")
    if found["rendezvous"]:
        rule = found["rendezvous"]
        where = "also on shared nodes" if rule["shared_nodes"] else "on a first node that is the job's alone"
        say(f"Jobs of several nodes get MASTER_ADDR and MASTER_PORT ({rule['low']}-{rule['high']}), {where}.")
    if found["environment"]:
        show_table(("variable", "value set by the policy"), list(found["environment"].items()))
    if found["keep"]:
        say(f"The job's TMPDIR stays on its nodes for {found['keep']} s after it.")
    if found["override"]:
        say(f"The user can't set these for himself: {', '.join(found['override'])}")
    if found["steps"]["prolog"]:
        scopes = found["scopes"]
        say(f"Reads the caches of: {', '.join(scopes['read'])}; publishes to: {scopes['publish'] or 'nothing'}")
        limits = [f"{key} {value}" for key, value in found["limits"].items()]
        say(f"Limits (seconds, bytes, entries): {', '.join(limits)}")
        for hook, steps in found["steps"].items():
            say(f"{hook}: {' → '.join(steps)}")
