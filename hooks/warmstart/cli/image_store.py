"""The image store for the command line, and the imports under way for it: those at work, and those that wait here.

Root uses the store as its owner; other users read it as themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click

from warmstart.audit.line import Event
from warmstart.audit.log import Log
from warmstart.cli.output import fail, warn
from warmstart.errors import PolicyError, UserError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportAbandoned, ImportRequest
from warmstart.images.query import Requester, Site
from warmstart.images.reference import ImageReferenceInvalid, Reference, check_allowed, parse
from warmstart.images.store import eviction, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.eviction import ImageEntry
from warmstart.images.store.layout import reference_of
from warmstart.images.store.published import ImageProducer, RememberedFailure
from warmstart.paths import Installation, NodePaths
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.queue import Queue
from warmstart.session import open_session

NOT_DONE = 1
LISTING_S = 60.0
SHORTEST = 6  # characters of a name's prefix
WAITS = "waits for its turn"


class Import(NamedTuple):
    """An import that is under way. Bytes are of the present phase."""

    reference: str
    machine: str  # uname's, of the nodes that can use the image
    node: str
    job_id: int  # that asked first; 0 for an administrator
    since: str  # UTC, ISO 8601
    phase: str
    done: int  # bytes
    private: str  # its store of private images, "" for the shared one


class ImageStore(NamedTuple):
    """The image store of an installation."""

    installation: Installation
    policy: Policy
    images: ImageStoreClient
    audit: Log | None  # None if the store is only read

    def emit(self, event: Event, **fields: object) -> None:
        """Audit a change."""
        assert self.audit is not None, "the store was opened for reading"
        self.audit.emit(event, **fields)

    def inventory(self) -> list[ImageEntry]:
        """Return all images, least recently used first; for root also those of private stores."""
        lease, images = self.policy.images.keep.lease, list[ImageEntry]()
        for name, store in self.stores():
            tags = store.run(after(LISTING_S), eviction.tags)
            for entry in store.run(after(LISTING_S), eviction.inventory, lease):
                own = tags.get(entry.digest, [])
                # Only the store's owner can read which reference it was imported as.
                images.append(entry._replace(private=name, tags=own, reference=entry.reference or ", ".join(own)))
        return sorted(images, key=lambda entry: entry.last_use)

    def stores(self) -> Iterator[tuple[str, ImageStoreClient]]:
        """Yield (name, client) of the shared store, whose name is "", and of the stores of private images."""
        yield "", self.images
        # Only the owner may list the stores of private images.
        for path in self.images.run(after(LISTING_S), eviction.stores) if os.geteuid() == 0 else ():
            if path != self.images.path:
                yield os.path.basename(path), self.images.at(path)

    def has(self, image: str) -> bool:
        """Return whether there is an image with a reference, digest, path or name prefix."""
        return any(_matches(entry, image) for entry in self.inventory())

    def find(self, image: str) -> ImageEntry:
        """Return the image with a reference, digest, path or name prefix. Exits with 1 unless exactly one matches.

        A tag is what it means now; the reference that an image was imported as counts if no tag fits.
        """
        images = self.inventory()
        fitting = [entry for entry in images if _matches(entry, image)]
        fitting = fitting or [entry for entry in images if entry.reference == canonical(image)]
        if len(fitting) != 1:
            warn(
                f"{image}: {'no such image' if not fitting else 'more than one image; give a longer name, or its path'}"
            )
            raise click.exceptions.Exit(NOT_DONE)
        return fitting[0]

    def reference(self, text: str) -> Reference:
        """Parse a reference. Exits with 2 if it is invalid, or the policy does not allow it."""
        try:
            reference = parse(text)
            check_allowed(reference, self.policy.images.allowed)
        except UserError as error:
            fail(error, error.hint)
        return reference

    def imports(self) -> list[Import]:
        """Return all imports under way. Only root can see them; for others there are none."""
        if os.geteuid() != 0:
            return []
        imports = []
        for name, images in self.stores():
            for lock, producer in images.run(after(LISTING_S), published.under_way).items():
                key, machine, _ = lock.rsplit(".", 2)
                imports.append(_at_work(reference_of(key), machine, producer, name))
        known = {(known.reference, known.private) for known in imports}
        for paths, request in self._requests():
            if (request.reference, request.private) not in known:
                known.add((request.reference, request.private))
                node = paths.node
                since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(request.asked))
                place = (request.reference, request.kind.partition(".")[0], node, request.job_id, since)
                imports.append(Import(*place, WAITS, 0, request.private))
        return imports

    def cancel(self, reference: str) -> bool:
        """Remove this host's requests for an image, by its canonical reference, and end their imports.

        Return whether there was either. Those who wait are told.
        """
        cancelled = False
        for paths, request in self._requests():
            if request.reference == reference:
                cancelled = True
                error = ImportAbandoned.of(reference, paths.node, "it was cancelled")
                requests.remember_failure(paths, request.image, RememberedFailure.of(error))
                Queue(paths, IMPORTS).drop(request.key)
        return cancelled

    def _requests(self) -> Iterator[tuple[NodePaths, ImportRequest]]:
        """Yield this host's requests, with their nodes' directories."""
        for paths in map(self.installation.node, self.installation.nodes()):
            for _, request in requests.waiting(paths):
                yield paths, request

    def site(self) -> Site:
        """Return the site as a prolog on this host has it, except that no user's quota is charged."""
        requester = Requester(_node(), f"cli{os.getpid()}", 0)
        return Site.of(self.policy, self.installation.node(requester.node), self.images, requester)


@contextmanager
def opened(installation: Installation) -> Iterator[ImageStore]:
    """Open the store for reading. Prints an error and exits with status 2."""
    try:
        policy = current_policy(installation).policy
    except PolicyError as error:
        fail(error, error.hint)
    me = Identity("you", os.geteuid(), os.getegid())
    images = ImageStoreClient.of(me if os.geteuid() else policy.store_user, policy.paths.store)
    try:
        yield ImageStore(installation, policy, images, None)
    except WarmstartError as error:
        fail(error, error.hint)


@contextmanager
def changed(installation: Installation) -> Iterator[ImageStore]:
    """Open the store for audited changes, which need root. Prints an error and exits with status 2."""
    try:
        with open_session(installation, "images", _node()) as session:
            images = ImageStoreClient(session.store.worker, session.policy.paths.store)
            yield ImageStore(installation, session.policy, images, session.audit)
    except WarmstartError as error:
        fail(error, error.hint)


def _node() -> str:
    return os.uname().nodename.partition(".")[0]


def _matches(entry: ImageEntry, text: str) -> bool:
    if text in (entry.path, entry.digest) or (len(text) >= SHORTEST and entry.name.startswith(text)):
        return True
    return canonical(text) in entry.tags


def canonical(text: str) -> str | None:
    """Return a reference in canonical form; None if the text is none."""
    try:
        return parse(text).canonical()
    except ImageReferenceInvalid:
        return None


def _at_work(reference: str, machine: str, producer: ImageProducer, private: str) -> Import:
    return Import(
        reference=reference,
        machine=machine,
        node=producer.host,
        job_id=producer.job,
        since=producer.since,
        phase=producer.phase or "begins",
        done=producer.done,
        private=private,
    )
