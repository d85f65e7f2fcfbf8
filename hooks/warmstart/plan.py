"""Which steps apply to a job, in which order. Static: no discovery, nothing from the policy but options.

prolog   workspace → image → seed → environment
epilog   harvest → release
"""

from __future__ import annotations

import grp
import os
from functools import partial

from warmstart import request
from warmstart.errors import UserError
from warmstart.images import reference as references
from warmstart.images.reference import Reference
from warmstart.job import Job
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant, combine, matching
from warmstart.profiles import registry
from warmstart.record import Record
from warmstart.runner import Prepared, Step


class ProfileNotOffered(UserError):
    """The job asks for a profile that warmstart does not have."""

    code = "profile-not-offered"
    template = "the job asks for the profile {profile!r}, which warmstart does not have"
    hint = "profiles are listed by `warmstart plan`"


def grant(policy: Policy, job: Job) -> Grant:
    """Return what the rules give the job."""
    return combine(policy, matching(policy, job, partial(groups, job)), job)


def groups(job: Job) -> list[str]:
    """Return the user's groups as this node's own NSS knows them; gids without a name are left out."""
    names = []
    for gid in os.getgrouplist(job.user, job.gid):
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return names


def profiles(job: Job, grant: Grant) -> list[str]:
    """Return the job's profiles, those of the policy first; `ProfileNotOffered` for a wish that can't be met."""
    if grant.reason:
        return []
    wanted = request.of(job).profiles
    known = registry.names()
    for name in wanted:
        if name not in known:
            raise ProfileNotOffered(profile=name)
    return list(dict.fromkeys([*grant.profiles, *wanted]))


def images(policy: Policy, job: Job, grant: Grant) -> list[Reference]:
    """Return the job's images: its own wish first, then the policy's; raises the verdict on a refused one."""
    if grant.reason:
        return []
    wanted = [references.parse(text) for text in request.of(job).images]
    for reference in wanted:
        references.check_allowed(reference, policy.images.registries)
    return list(dict.fromkeys([*wanted, *(references.parse(text) for text in grant.images)]))


def prolog(policy: Policy, job: Job, grant: Grant) -> list[Step]:
    """Return the steps before `environment`, which `environment()` makes of what they found out."""
    names, wanted = profiles(job, grant), images(policy, job, grant)
    if not (names or wanted or grant.env):
        return []
    from warmstart.steps import workspace

    subdirs = tuple(registry.get(name).subdir for name in names)
    steps = [Step(workspace.NAME, partial(workspace.run, options=workspace.Options(subdirs)))]
    if wanted:
        from warmstart.steps import image

        steps.append(Step(image.NAME, partial(image.run, options=image.Options(tuple(wanted)))))
    if names:
        from warmstart.steps import seed

        steps.append(Step(seed.NAME, partial(seed.run, options=seed.Options(tuple(names))), in_workspace=True))
    return steps


def environment(job: Job, grant: Grant, prepared: Prepared) -> Step:
    """Return the last step of a prolog."""
    from warmstart.steps import environment as step

    cache = prepared.context.record.environment.get("WARMSTART_CACHE", "")
    variables: dict[str, str] = {}
    for name in profiles(job, grant) if cache else ():
        variables.update(registry.get(name).environment(cache))
    options = step.Options(variables, dict(grant.env), tuple(prepared.notices))
    return Step(step.NAME, partial(step.run, options=options))


def epilog(policy: Policy, record: Record) -> list[Step]:
    """Return the steps for what the record says there is."""
    from warmstart.steps import release

    steps = []
    if record.head and record.publish_scope and record.environment.get("WARMSTART_CACHE"):
        from warmstart.steps import harvest

        options = harvest.Options(policy.harvest.budget, policy.harvest.max_size, policy.harvest.max_entries)
        steps.append(Step(harvest.NAME, partial(harvest.run, options=options)))
    steps.append(Step(release.NAME, partial(release.run, options=release.Options())))
    return steps
