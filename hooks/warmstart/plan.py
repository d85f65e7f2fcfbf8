"""The plan: which steps apply to a job, and in which order.

prolog   workspace → early steps of wings → image → unpack → seed → late steps of wings → environment

The order is fixed. The policy and the job's request decide only which steps run, and with which options.
"""

from __future__ import annotations

import grp
import os
import pwd

from warmstart import request
from warmstart.errors import UserError
from warmstart.job import Job
from warmstart.lean import TYPE_CHECKING, partial, suppress
from warmstart.policy.keys import Policy
from warmstart.policy.match import NO_RULE, Grant, combine, matching, names_nodes, private_repository, scope_key
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES
from warmstart.request import NOTHING, Request
from warmstart.slurm import nodes

if TYPE_CHECKING:
    from typing import Protocol

    from warmstart.images.reference import PyxisImage, Reference
    from warmstart.runner import Prepared, Step
    from warmstart.store.barrier import Barrier

    class StepPart(Protocol):
        """`step.py` of a wing. Hot path."""

        def planned(self, policy: Policy, job: Job, grant: Grant, requested: Request) -> Step | None:
            """Return the step of a prolog, None if the job needs none. Raises `UserError` for a request in vain."""


# For all work of a prolog that has no budget in the policy. With the policy's defaults it is below the
# PrologEpilogTimeout that packaging/slurm sets.
PROLOG_SECONDS = 20.0
MOUNTING_SECONDS = 2.0  # that an image leaves to the mounts of the seeded bundles
VIEW_SECONDS = 1.0  # and to the job's view
NO_RULE_MATCHES = (
    "warmstart: no rule of this cluster matches this job on node {node}, so it gets nothing of its request"
)
NO_CONSTANT_PATH = "needs a constant path (policy: constant_path)"
SHARED_SCOPE = "is kept in its user's own scope, and this job publishes into a shared one"
NO_COLON = (
    "warmstart: the comment has {words!r} without a colon after the name, and so asks for nothing: write "
    "--comment='warmstart: …'"
)


class NotOffered(UserError):
    """The job asks for something that no rule of this cluster offers, or for a profile that there is not."""

    code = "not-offered"
    template = "{sentence}"
    hint = "leave the word out, or ask the administrators for it"


def grant(policy: Policy, job: Job) -> Grant:
    """Return what the matching rules grant the job."""
    return combine(policy, matching(policy, job, partial(groups, job)), job)


def groups(job: Job) -> list[str | None]:
    """Return the names of the user's groups from this node's NSS. Groups without a name are left out.

    None stands for all others where the node does not know the user: of a directory that is not up yet there is no
    error, and no member.
    """
    names: list[str | None] = []
    gids = os.getgrouplist(job.user, job.gid)
    for gid in gids:
        with suppress(KeyError):
            names.append(grp.getgrgid(gid).gr_name)
    if len(gids) == 1:
        try:
            pwd.getpwnam(job.user)
        except KeyError:
            names.append(None)
    return names


def request_of(policy: Policy, job: Job, grant: Grant) -> Request:
    """Parse the job's request; `NOTHING` if the job is left alone. Call once per hook. Raises `RequestInvalid`."""
    if grant.reason:
        return NOTHING
    names = [word.name for word in policy.words]
    return request.of(job, names, [word.name for word in policy.words if word.repeats])


def as_audit(grant: Grant, requested: Request, *, head: bool) -> dict[str, object]:
    """Return the plan's fields of a prolog's last line: what the job asks for, and what the rules add."""
    asked = {name: value for name, value in requested._asdict().items() if name != "words"} | requested.words
    fields = {
        "asked": {name: value for name, value in asked.items() if value not in ((), None, "", False)},
        "rules": grant.rules,
        "excluded": grant.reason,
        "granted": {"images": grant.images, "profiles": grant.profiles} if grant.images or grant.profiles else {},
    }
    return {"head": head, **{name: value for name, value in fields.items() if value}}


def notice_of(job: Job, grant: Grant) -> str:
    """Return the line for the output of a job that asks for something and that no rule matches; "" for others."""
    return NO_RULE_MATCHES.format(node=job.node) if grant.reason == NO_RULE and request.asks(job) else ""


def slip_of(policy: Policy, job: Job) -> str:
    """Return what a job is told whose comment asks for something, but for a colon; "" for any other."""
    words = request.slip(job, [word.name for word in policy.words])
    return NO_COLON.format(words=words) if words else ""


def profiles(policy: Policy, grant: Grant, requested: Request) -> list[str]:
    """Return the job's profiles, those of the policy first. Raises `NotOffered` for an unknown profile."""
    return [name for name in _all_profiles(policy, grant, requested) if not _why_not(policy, grant, name)]


def left_out(policy: Policy, grant: Grant, requested: Request) -> dict[str, str]:
    """Return the profiles that the job does not get, with variables and all, and why."""
    reasons = {name: _why_not(policy, grant, name) for name in _all_profiles(policy, grant, requested)}
    return {name: reason for name, reason in reasons.items() if reason}


def _why_not(policy: Policy, grant: Grant, name: str) -> str:
    """Return why the job does not get a profile, "" if it does."""
    profile = registry.get(name, policy.profiles)
    linked = profile.follows_links and policy.constant_path == "link"
    if profile.relocation == "constant-path" and (linked or not policy.constant_cache):
        return NO_CONSTANT_PATH
    if profile.user_scope:
        from warmstart.store.layout import is_user_scope

        # It would not even be seeded from the user's scope: what such a job publishes is made of what it was shown.
        if not is_user_scope(grant.publish_scope):
            return SHARED_SCOPE
    return ""


def _all_profiles(policy: Policy, grant: Grant, requested: Request) -> list[str]:
    known = registry.names(policy.profiles) if requested.profiles else []  # loads those that are shipped
    for name in requested.profiles:
        if name not in known or name == FILES:
            also = ": `warmstart plan` lists what there is; declare files with files=NAME"
            raise NotOffered(
                sentence=f"the job asks for the profile {name!r}, which warmstart does not have", also=also
            )
    # `files` needs a name: without one, the files of one job would be seeded into every later job of the user.
    declared = [FILES] if requested.files else []
    return list(dict.fromkeys([*grant.profiles, *requested.profiles, *declared]))


def images(policy: Policy, grant: Grant, requested: Request) -> list[Reference]:
    """Return the job's images, the requested ones before the policy's.

    Raises `UserError` for a malformed reference or a registry that the policy does not allow.
    """
    if not requested.images and not grant.images:
        return []
    from warmstart.images import reference as references

    own = [reference_of(requested, text) for text in requested.images]
    for reference in own:
        references.check_allowed(reference, policy.images.allowed)
    return list(dict.fromkeys([*own, *(references.parse(text) for text in grant.images)]))


def reference_of(requested: Request, text: str) -> Reference:
    """Parse one of the request's images. Only pyxis's may have a user name. Raises `ImageReferenceInvalid`."""
    from warmstart.images import reference as references

    return references.parse(references.split_login(text)[1] if text == requested.pyxis_image else text)


def prolog_budget(policy: Policy) -> float:
    """Return the seconds that a prolog takes at most. Slurm's timeout has to be longer."""
    seconds = policy.images.wait + policy.seed.fetch_budget + PROLOG_SECONDS
    if policy.paths.shelf and policy.images.registries:
        from warmstart.images.store.layout import UNPACK_S

        seconds += UNPACK_S
    return seconds


def prolog(policy: Policy, job: Job, grant: Grant, requested: Request) -> list[Step]:
    """Return the steps before `environment`. Its options depend on their results, so `environment()` comes later."""
    names, job_images = profiles(policy, grant, requested), images(policy, grant, requested)
    early, late = _of_wings(policy, job, grant, requested)
    barrier = barrier_of(job)
    if not (names or job_images or grant.env or early or late or requested.words):
        return []
    from warmstart.runner import Step
    from warmstart.steps import workspace

    steps = [Step(workspace.NAME, partial(workspace.run, options=workspace.Options(tuple(names))))]
    steps += early
    seeded, ahead = None, None
    if names:
        from warmstart.steps import seed

        in_step = not requested.fresh and any(registry.get(name, policy.profiles).in_step for name in names)
        place = barrier if in_step else None
        seeded = seed.Options(tuple(names), requested.files, requested.fresh, place, grant.cache)
        if job_images and not (place or requested.fresh):
            from warmstart.images.ahead import Ahead

            ahead = Ahead(policy.paths.store, partial(seed.wanted, policy, [*grant.read_scopes], seeded))
            seeded = seeded._replace(ahead=ahead.listings)
    if job_images:
        from warmstart.images import reference as references
        from warmstart.steps import image

        by_policy = frozenset(references.parse(text) for text in grant.images)
        later = (policy.seed.fetch_budget + MOUNTING_SECONDS if names else 0) + VIEW_SECONDS
        private = private_images(policy, job, job_images)
        own = _pyxis_image(requested, job)
        agreed = _agreed_images(policy, job, requested, job_images) if barrier else frozenset()
        options = image.Options(
            references=tuple(job_images),
            by_policy=by_policy,
            private=private,
            later=later,
            pyxis=own,
            refresh=requested.refresh,
            barrier=barrier._replace(topic="images") if barrier and agreed else None,
            agreed=agreed,
            ahead=ahead,
        )
        steps.append(Step(image.NAME, partial(image.run, options=options)))
        if policy.paths.shelf:
            from warmstart.steps import unpack

            first = unpack.Options(job_images[0], dict(private).get(job_images[0], ""), later)
            steps.append(Step(unpack.NAME, partial(unpack.run, options=first)))
    if seeded:
        steps.append(Step(seed.NAME, partial(seed.run, options=seeded), in_workspace=True))
    return steps + late


def _of_wings(policy: Policy, job: Job, grant: Grant, requested: Request) -> tuple[list[Step], list[Step]]:
    """Return the steps of wings before the images, and after the caches. Raises `NotOffered`, and what wings raise."""
    early: list[Step] = []
    late: list[Step] = []
    for known in policy.wings if not grant.reason else ():
        if known.step and known.used and (not known.word or known.word in requested.words):
            from warmstart import wing

            planned: StepPart = wing.load(known.step)
            if step := planned.planned(policy, job, grant, requested):
                (early if known.early else late).append(step._replace(wing=known.name))
    used = {known.name for known in policy.wings if known.used}
    for word in policy.words:
        if word.refuses and word.name in requested.words and word.wing not in used:
            raise NotOffered(sentence=word.refused)
    return early, late


def barrier_of(job: Job) -> Barrier | None:
    """Return where the nodes of a job agree on what they show it; None if it has one."""
    if not nodes.has_several(job.nodelist):
        return None
    from warmstart.store.barrier import Barrier

    return Barrier.of((job.cluster, job.uid), job.id, job.restarts, "caches", job.nodelist)


def _agreed_images(policy: Policy, job: Job, requested: Request, job_images: list[Reference]) -> frozenset[Reference]:
    """Return the tags that the head node resolves for all nodes: those that its rules give to the job, too."""
    own = frozenset(reference for reference in job_images if reference.tag)
    login = _pyxis_image(requested, job)
    if login and login.has_login:
        own -= {login.reference}  # pyxis imports it
    head = nodes.first(job.nodelist)
    if not own or head == job.node or not any(map(names_nodes, policy.rules)):
        return own
    there = job._replace(node=head)
    granted = combine(policy, matching(policy, there, partial(groups, job)), there)
    if granted.reason:
        return frozenset()
    return own.intersection(images(policy, granted, requested))


def _pyxis_image(requested: Request, job: Job) -> PyxisImage | None:
    if not requested.pyxis_image:
        return None
    from warmstart.images import reference as references
    from warmstart.images.reference import PyxisImage

    login, _ = references.split_login(requested.pyxis_image)
    return PyxisImage(reference_of(requested, requested.pyxis_image), bool(login), scope_key("user", job))


def private_images(policy: Policy, job: Job, images: list[Reference]) -> tuple[tuple[Reference, str], ...]:
    """Return the images that are fetched with the site's credentials, each with the name of its private store."""
    private = []
    for reference in images:
        repository = f"{reference.registry}/{reference.repository}"
        if name := private_repository(policy, job, partial(groups, job), repository):
            private.append((reference, name))
    return tuple(private)


def environment(policy: Policy, job: Job, grant: Grant, requested: Request, prepared: Prepared) -> Step:
    """Return the last step of a prolog, which writes the job's view."""
    from warmstart.runner import Step
    from warmstart.steps import environment as step

    cache = prepared.context.run.own.path
    variables: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for name in profiles(policy, grant, requested) if cache else ():
        profile = registry.get(name, policy.profiles)
        variables.update(profile.environment(cache, partial(_home, job.uid)))
        defaults.update(profile.defaults)
    notices = [*prepared.notices, *_refused(policy, requested)]
    notices += filter(None, [slip_of(policy, job)])
    options = step.Options(variables, dict(grant.env), tuple(notices), grant.override, defaults)
    return Step(step.NAME, partial(step.run, options=options))


def _home(uid: int) -> str:
    """Return a user's home by the node's NSS; "" if there is none, or none that a variable can name."""
    import pwd

    home = ""
    with suppress(KeyError):
        home = pwd.getpwuid(uid).pw_dir
    return home.rstrip("/") if home.startswith("/") and home.isprintable() else ""


def _refused(policy: Policy, requested: Request) -> list[str]:
    """Return lines for the words of the request that this cluster does not offer, and that no job fails for."""
    used = {known.name for known in policy.wings if known.used}
    refused = (word for word in policy.words if word.name in requested.words and word.wing not in used)
    return [f"warmstart: {word.name}={requested.words[word.name]}: {word.refused}" for word in refused]
