"""Ask for the images of `prefetch.images` before jobs start. Runs as root.

A prefetch is a hook that does not wait. It looks each image up, and writes a request for a background import where one
is missing (`images.imports.requests`). An image whose import failed is left alone for `PAUSE_S`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from warmstart.host import wire
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_path, touch
from warmstart.images import private
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.query import Site, query_by_rules
from warmstart.images.reference import Reference, parse
from warmstart.images.store import published
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.policy.match import including
from warmstart.queue import Queue
from warmstart.run.state import using_state

KEY = "prefetch"  # of the policy
ImageReference = str
PAUSE_S = 3600.0
RUN_S = 300.0  # for all look-ups into the store
PRESENT, REQUESTED, FAILED = "present", "requested", "failed within the hour"


class Prefetch(NamedTuple):
    """Images that are imported before any job asks for them ([prefetch](../wings/prefetch.md))."""

    images: tuple[ImageReference, ...] = ()
    """Images that `warmstart prefetch` keeps in the store. They count in no quota."""


class Prefetched(NamedTuple):
    """What became of one image."""

    reference: str
    result: str  # PRESENT, REQUESTED, FAILED, or why no request could be written


def offered(policy: Policy) -> Prefetch:
    """Return what the policy says."""
    return wire.from_object(Prefetch, policy.own[KEY]) if KEY in policy.own else Prefetch()


def wanted(policy: Policy) -> Iterator[tuple[Reference, str]]:
    """Yield the images of `prefetch.images`, each with the first private store that has its repository, else ""."""
    for reference in map(parse, offered(policy).images):
        repository = f"{reference.registry}/{reference.repository}"
        yield reference, next((item.name for item in including(policy, repository)), "")


def run(policy: Policy, site: Site, installation: Installation) -> list[Prefetched]:
    """Ask for the images that are missing, and start the imports whose turn it is. `site` is the shared store's.

    Raises `StoreFailed`, `WorkerSilent`, `StateFull` and `FileSystemBroken`.
    """
    paths = installation.node(site.requester.node)
    deadline = after(RUN_S)
    with using_state(paths.root):
        ensure_path(paths.root, 0o755)
        touch(paths.began)  # makes this host a node with maintenance, although no hook runs here
        done = []
        for reference, name in wanted(policy):
            of_image = private.site_of(site, name, deadline) if name else site
            done.append(Prefetched(reference.canonical(), _ask(reference, of_image, deadline)))
        Queue(paths, IMPORTS).start_due()
    return done


def _ask(reference: Reference, site: Site, deadline: Deadline) -> str:
    """Write a request for an image if it is missing; return what became of it."""
    query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    # A tag is asked again in the second half of its life, so no job finds it expired.
    query = query._replace(fresh_after=time.time() - site.rules.tag_ttl / 2)
    if image := site.look_up(query, "reused", deadline):
        site.record_use(image.name, deadline)  # so that it is not evicted
        return PRESENT
    request = ImportRequest.of(query, site)
    here = requests.last_failure(site.paths, request.image)
    for failure in (here, site.store.run(deadline, published.last_failure, query.lock)):
        if failure is not None and failure.uid == -1 and 0 <= time.time() - failure.at < PAUSE_S:
            return FAILED
    return requests.submit(site.paths, request) or REQUESTED
