"""What a job would get and why, as plain data: the hooks' own decisions, taken without doing anything.

Each part asks the functions that a prolog asks (`plan`, `policy.match`, `images.reference`), so a preview can't
differ from what a hook does with the same job. Nothing here looks at the store or at a registry.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TypedDict

from warmstart import plan as planning
from warmstart.errors import Fields, UserError, WarmstartError
from warmstart.images import reference as references
from warmstart.job import Job
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant, Matched, combine, matching
from warmstart.profiles import registry
from warmstart.record import Record, Seeded
from warmstart.request import NOTHING, Request

CACHE = "$WARMSTART_CACHE"  # the job's own; its path is known when the job has a run id
NO_STEPS: dict[str, list[str]] = {"prolog": [], "epilog": []}


class Described(TypedDict):
    """The job, as the options describe it."""

    user: str
    uid: int
    partition: str
    account: str
    qos: str | None
    job_name: str | None
    array: str | None
    constraint: str
    node: str
    comment: str


class RuleShown(TypedDict):
    """One rule, and whether it applies."""

    name: str
    place: str
    matched: bool
    reason: str


# `from` is "job" or "policy".
ImageShown = TypedDict("ImageShown", {"image": str, "from": str, "private": str, "allowed": bool, "reason": str})
ProfileShown = TypedDict("ProfileShown", {"name": str, "from": str, "variables": dict[str, str]})


class Scopes(TypedDict):
    """The scopes that a job reads, the most trusted first, and the one that it publishes to."""

    read: list[str]
    publish: str


class Preview(TypedDict):
    """What a job would get; `warmstart plan --json` prints it."""

    job: Described
    nothing_because: str
    verdict: Fields | None
    rules: list[RuleShown]
    images: list[ImageShown]
    profiles: list[ProfileShown]
    left_out: list[str]
    scopes: Scopes
    environment: dict[str, str]
    override: list[str]
    rendezvous: dict[str, object] | None
    keep: int | None
    limits: dict[str, object]
    steps: dict[str, list[str]]


def preview(policy: Policy, job: Job) -> Preview:
    """Return rules, images, profiles, scopes, environment, limits and steps for the job."""
    matches = matching(policy, job, partial(planning.groups, job))
    grant = combine(policy, matches, job)
    asked, invalid = _requested(job, grant)
    steps, verdict = _steps(policy, job, grant, asked)
    if invalid:
        steps, verdict = NO_STEPS, invalid
    return {
        "job": {
            "user": job.user,
            "uid": job.uid,
            "partition": job.partition,
            "account": job.account,
            "qos": job.qos,
            "job_name": job.job_name,
            "array": job.array,
            "constraint": job.constraint,
            "node": job.node,
            "comment": job.comment,
        },
        "nothing_because": grant.reason,
        "verdict": verdict.as_audit() if verdict else None,
        "rules": [_rule(match) for match in matches],
        "images": _images(policy, job, grant, asked),
        "profiles": _profiles(policy, grant, asked),
        "left_out": _left_out(policy, grant, asked),
        "scopes": {"read": grant.read_scopes, "publish": grant.publish_scope},
        "environment": grant.env,
        "override": sorted(grant.override),
        "rendezvous": grant.rendezvous._asdict() if grant.rendezvous else None,
        "keep": policy.limits.keep if verdict is None and planning.keeps(policy, asked) else None,
        "limits": {
            "images.wait": policy.images.wait,
            **{f"seed.{key}": value for key, value in policy.seed._asdict().items()},
            **{f"harvest.{key}": value for key, value in policy.harvest._asdict().items()},
        },
        "steps": steps,
    }


def _rule(match: Matched) -> RuleShown:
    rule = match.rule
    return {"name": rule.name, "place": rule.place, "matched": match.matched, "reason": match.reason}


def _requested(job: Job, grant: Grant) -> tuple[Request, UserError | None]:
    try:
        return planning.requested(job, grant), None
    except UserError as error:
        return NOTHING, error


def _steps(policy: Policy, job: Job, grant: Grant, asked: Request) -> tuple[dict[str, list[str]], UserError | None]:
    """Return the names of the steps per hook, and the verdict that would take their place."""
    try:
        prolog = [step.name for step in planning.prolog(policy, job, grant, asked)]
    except UserError as error:
        return NO_STEPS, error
    if not prolog:
        return NO_STEPS, None
    seeded = {name: Seeded("", []) for name in planning.profiles(policy, grant, asked)}
    record = _record(job)._replace(publish_scope=grant.publish_scope, seeded=seeded, cache=CACHE)
    epilog = [step.name for step in planning.epilog(policy, record)]
    return {"prolog": [*prolog, "environment"], "epilog": epilog}, None


def _record(job: Job) -> Record:
    return Record(
        run_id="", boot_id="", job_id=job.id, view_id=job.view_id, uid=job.uid, gid=job.gid, user=job.user,
        account=job.account, partition=job.partition, cluster=job.cluster, node=job.node, head=True,
    )  # fmt: skip


def _images(policy: Policy, job: Job, grant: Grant, asked: Request) -> list[ImageShown]:
    """Return every image, the job's own first, each allowed or refused and why."""
    return [
        *(_image(policy, job, text, "job") for text in asked.images),
        *(_image(policy, job, text, "policy") for text in grant.images),
    ]


def _image(policy: Policy, job: Job, text: str, source: str) -> ImageShown:
    shown, problem, private = text, "", ""
    try:
        reference = references.parse(text)
        shown = reference.canonical()
        if source == "job":
            references.check_allowed(reference, policy.images.registries)
        private = "".join(name for _, name in planning.private_images(policy, job, [reference]))
    except WarmstartError as error:
        problem = str(error)
    return {"image": shown, "from": source, "private": private, "allowed": not problem, "reason": problem}


def _profiles(policy: Policy, grant: Grant, asked: Request) -> list[ProfileShown]:
    try:
        names = planning.profiles(policy, grant, asked)
    except UserError:
        names = grant.profiles  # the job's wish is the verdict
    return [
        {
            "name": name,
            "from": "policy" if name in grant.profiles else "job",
            "variables": registry.get(name, policy.profiles).environment(CACHE),
        }
        for name in names
    ]


def _left_out(policy: Policy, grant: Grant, asked: Request) -> list[str]:
    try:
        return planning.left_out(policy, grant, asked)
    except UserError:
        return []  # the job's wish is the verdict


def switched_off(off_switch: str) -> bool:
    """Tell whether warmstart is switched off on this host."""
    return os.path.exists(off_switch)
