"""Ask for images before jobs start: those of `prefetch.images`, and what pending jobs will need. Runs as root.

A prefetch is a hook that does not wait. It looks each image up, and writes a request for a background import where one
is missing (`images.imports.requests`), as a prolog on this host would: what the rules give a job, its user, its quota
and the registries decide. So nothing is imported that the job's own prolog would not import.

What jobs ask for is their owners' text, and there may be a thousand of them:

- One query to slurmctld, and a bounded answer (`slurm.pending`, `squeue`).
- Of each user `MOST_JOBS` jobs that differ are read, and `MOST_IMAGES` images looked up.
- Not more requests of jobs than `images.parallel` are there at a time, but each user may have one, so that nobody's
  slow images keep others' out. Users take turns, in an order of chance.
- An image whose import failed is left alone for `PAUSE_S`, so it stands in nobody's way.

A job has no node yet, so rules that match on `node` do not match it.
"""

from __future__ import annotations

import os
import pwd
import random
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from warmstart import plan
from warmstart.errand import Errands
from warmstart.errors import PolicyError, UserError, WarmstartError
from warmstart.host import wire
from warmstart.host.deadline import after
from warmstart.host.files import ensure_path
from warmstart.images import private
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.query import Site, query_by_rules
from warmstart.images.reference import Reference, parse, split_login
from warmstart.images.store import published
from warmstart.images.store.layout import NOBODY, Charged, ImageQuery
from warmstart.images.store.published import RememberedFailure
from warmstart.job import NO_WARM, PYXIS_IMAGE, WARM_IMAGE, Job, from_environment
from warmstart.paths import Installation
from warmstart.policy import trust
from warmstart.policy.compiled import Policy
from warmstart.policy.match import serves_repository
from warmstart.record import using_state
from warmstart.slurm.facts import Access
from warmstart.slurm.pending import PendingJob
from warmstart.slurm.slurmctld import QUERY_S, Slurmctld
from warmstart.wings.prefetch import squeue

KEY = "prefetch"  # of the policy
MOST_JOBS = 100
MOST_IMAGES = IMPORTS.most
MOST_PARTITIONS = 8  # of one job
PAUSE_S = 3600.0
RUN_S = 300.0  # for all look-ups into the store
PRESENT, UNDER_WAY, REQUESTED = "present", "under way", "requested"
FAILED, NO_SLOT = "failed within the hour", "waits for a slot (images.parallel)"


class Wanted(NamedTuple):
    """An image, who is charged for it, and the job that needs it (0: the policy wants it)."""

    reference: Reference
    private: str = ""  # name of the store of private images, "" for the shared one
    charged: Charged = NOBODY
    job_id: int = 0
    cluster: str = ""


class Prefetched(NamedTuple):
    """What became of one image."""

    reference: str
    result: str  # PRESENT … NO_SLOT, or why no request could be written
    job_id: int
    private: str


def wanted(
    policy: Policy, installation: Installation, *, of_policy: bool, of_jobs: bool
) -> tuple[list[Wanted], int, WarmstartError | None]:
    """Return the images, how many jobs are refused, and why slurmctld could not be asked about pending jobs."""
    images = wanted_by_policy(policy) if of_policy else []
    if not of_jobs:
        return images, 0, None
    access = Access(policy.paths.scontrol, os.environ.get("SLURM_CONF", ""), installation.slurm_libraries)
    try:
        pending = Slurmctld(access).pending(after(QUERY_S), squeue.pending)
    except WarmstartError as error:
        return images, 0, error
    known = {(own.reference, own.private) for own in images}
    further, refused = wanted_by_jobs(policy, pending)
    return [*images, *(own for own in further if (own.reference, own.private) not in known)], refused, None


def wanted_by_policy(policy: Policy) -> list[Wanted]:
    """Return the images of `prefetch.images`, each with the first private repository that includes it."""
    images = []
    for reference in map(parse, wire.decode(list[str], policy.own.get(KEY, []))):
        repository = f"{reference.registry}/{reference.repository}"
        known = policy.images.credentials.repositories if policy.images.credentials else ()
        names = (item.name for item in known if serves_repository(policy, item.name, repository))
        images.append(Wanted(reference, next(names, "")))
    return images


def wanted_by_jobs(policy: Policy, pending: Iterable[PendingJob]) -> tuple[list[Wanted], int]:
    """Return what jobs need, the users' in turns, and how many jobs are malformed or ask for what they may not have.

    `pending` comes by priority, and so do each user's images. An image is wanted once for each of its users: one of
    them may have no place for another request.
    """
    of_users: dict[int, dict[tuple[Reference, str], Wanted]] = {}
    known: dict[int, set[PendingJob]] = {}
    refused = 0
    for job in pending:
        own = known.setdefault(job.uid, set())
        alike = job._replace(job_id=0, array=bool(job.array))
        if alike in own or len(own) >= MOST_JOBS:
            continue
        own.add(alike)
        try:
            for wanted in _needs(policy, job):
                of_users.setdefault(job.uid, {}).setdefault((wanted.reference, wanted.private), wanted)
        except (UserError, PolicyError):  # PolicyError: JobUnreadable
            refused += 1
    users = [list(images.values())[:MOST_IMAGES] for images in of_users.values()]
    random.shuffle(users)  # no secret
    turns = [images[turn] for turn in range(MOST_IMAGES) for images in users if turn < len(images)]
    return turns, refused


def _needs(policy: Policy, pending: PendingJob) -> Iterator[Wanted]:
    """Yield the images of a job, as its prolog would obtain them. Raises `UserError` and `JobUnreadable`."""
    for partition in pending.partition.split(",")[:MOST_PARTITIONS]:
        job = _as_in_a_prolog(pending, partition)
        grant = plan.grant(policy, job)
        if grant.observed:
            continue
        requested = plan.request_of(policy, job, grant)
        images = plan.images(policy, grant, requested)
        if requested.pyxis_image and split_login(requested.pyxis_image)[0]:  # of the user's own credentials
            images.remove(plan.reference_of(requested, requested.pyxis_image))
        by_policy = {parse(text) for text in grant.images}
        stores = dict(plan.private_images(policy, job, images))
        account = "" if "account" in trust.unproven(policy) else job.account
        for reference in images:
            charged = NOBODY if reference in by_policy else Charged(job.user, job.uid, account)
            yield Wanted(reference, stores.get(reference, ""), charged, job.id, job.cluster)


def _as_in_a_prolog(pending: PendingJob, partition: str) -> Job:
    """Return the job as slurmd would describe it. Raises `JobUnreadable`, also if this host does not know the user."""
    try:
        user = pwd.getpwuid(pending.uid).pw_name
    except KeyError:
        user = ""
    job = from_environment(
        {
            "SLURM_JOB_ID": str(pending.job_id),
            "SLURM_JOB_UID": str(pending.uid),
            "SLURM_JOB_GID": str(pending.gid),
            "SLURM_JOB_USER": user,
            "SLURMD_NODENAME": "none",
            "SLURM_CLUSTER_NAME": pending.cluster,
            "SLURM_JOB_PARTITION": partition,
            "SLURM_JOB_ACCOUNT": pending.account,
            "SLURM_JOB_QOS": pending.qos,
            "SLURM_JOB_CONSTRAINTS": pending.constraints,
            "SLURM_JOB_COMMENT": pending.comment,
            "SLURM_JOB_RESTART_COUNT": "",
            PYXIS_IMAGE: pending.pyxis_image,
            WARM_IMAGE: pending.warm_image,
            NO_WARM: "1" if pending.no_warm else "",
        }
    )
    return job._replace(node="", job_name=pending.name, array=f"{pending.array}_" if pending.array else "")


def run(site: Site, installation: Installation, images: Iterable[Wanted]) -> list[Prefetched]:
    """Ask for the images that are missing, and start the imports whose turn it is. `site` is the shared store's.

    Raises `StoreFailed`, `WorkerSilent`, `StateFull` and `StateUnusable`.
    """
    paths = installation.node(site.requester.node)
    with using_state(paths.root):
        ensure_path(paths.state, 0o700)  # makes this host a node with maintenance, although no hook runs here
        ours = _Run(site)
        done = [Prefetched(w.reference.canonical(), ours.ask(w), w.job_id, w.private) for w in images]
        Errands(paths, IMPORTS).start_due()
    return done


class _Run:
    """One prefetch on this host."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._deadline = after(RUN_S)
        self._lifetime_s = site.rules.import_deadline
        present = [item for _, item in requests.waiting(site.paths) if not item.is_expired(self._lifetime_s)]
        self._images = {request.image for request in present}
        # The users of the requests of jobs, each named once for each.
        self._users = [request.uid for request in present if request.job_id]

    def ask(self, wanted: Wanted) -> str:
        """Write a request for an image if it is missing; return what became of it."""
        requester = self._site.requester._replace(job_id=wanted.job_id, cluster=wanted.cluster)
        site = self._site._replace(charged=wanted.charged, requester=requester)
        if wanted.private:
            site = private.site_of(site, wanted.private, self._deadline)
        query, site = query_by_rules(wanted.reference, site.rules, site.recipe), site.about(wanted.reference)
        if not wanted.job_id:
            # A tag of the policy's is asked again in the second half of its life: no job finds it expired.
            query = query._replace(fresh_after=time.time() - site.rules.tag_ttl / 2)
        if image := site.look_up(query, "reused", self._deadline):
            if not wanted.job_id:
                site.record_use(image.name, self._deadline)  # so that it is not evicted
            return PRESENT
        request = ImportRequest.of(query, site)
        if request.image in self._images:
            requests.submit(site.paths, request, self._lifetime_s)  # for its user's turn
            return UNDER_WAY
        if site.store.look(self._deadline, published.is_at_work, query.lock):
            return UNDER_WAY
        if self._has_failed(query, site, request):
            return FAILED
        if wanted.job_id and request.uid in self._users and len(self._users) >= site.rules.parallel:
            return NO_SLOT
        problem = requests.submit(site.paths, request, self._lifetime_s)
        if not problem:
            self._images.add(request.image)
            self._users += [request.uid] * bool(wanted.job_id)
        return problem or REQUESTED

    def _has_failed(self, query: ImageQuery, site: Site, request: ImportRequest) -> bool:
        here = requests.last_failure(site.paths, request.image)
        failures = (here, site.store.look(self._deadline, published.last_failure, query.lock))
        return any(failure is not None and _is_recent(failure, request.uid) for failure in failures)


def _is_recent(failure: RememberedFailure, uid: int) -> bool:
    return failure.uid in (-1, uid) and 0 <= time.time() - failure.at < PAUSE_S
