"""The image store for the command line: used as its owner by root, else as the user who runs the command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click

from warmstart.audit.events import Event
from warmstart.audit.journal import Journal
from warmstart.entry.cli.output import fail, warn
from warmstart.entry.maintenance.session import maintenance_session
from warmstart.errors import PolicyError, UserError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.client import ImageStoreClient
from warmstart.images.eviction import ImageEntry, QuarantinedImage
from warmstart.images.query import Requester, Site
from warmstart.images.reference import ImageReferenceInvalid, Reference, check_allowed, parse
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy, hint_for

NOT_DONE = 1
LISTING_S = 60.0
SHORTEST = 6  # letters of a name that may stand for the whole


class Store(NamedTuple):
    """The image store of an installation."""

    installation: Installation
    policy: Policy
    images: ImageStoreClient
    audit: Journal | None  # None if the store is only read

    def tell(self, event: Event, **fields: object) -> None:
        """Audit a change."""
        assert self.audit is not None, "only root changes anything"
        self.audit.emit(event, **fields)

    def inventory(self) -> list[ImageEntry]:
        """Return all images, the least recently used first; for root those of private stores, too."""
        lease = self.policy.images.keep.lease
        found = [
            entry._replace(private=name)
            for name, store in self._stores()
            for entry in store.inventory(lease, after(LISTING_S))
        ]
        return sorted(found, key=lambda entry: entry.last_use)

    def quarantined(self) -> list[QuarantinedImage]:
        """Return all that lies in quarantine, the oldest first."""
        found = [
            entry._replace(private=name)
            for name, store in self._stores()
            for entry in store.quarantined(after(LISTING_S))
        ]
        return sorted(found, key=lambda entry: entry.at)

    def _stores(self) -> Iterator[tuple[str, ImageStoreClient]]:
        """Yield the shared store (with "") and the stores of private images with their names."""
        yield "", self.images
        # Nobody but its owner may look into the stores of private images, nor know their names.
        for path in self.images.stores(after(LISTING_S)) if os.geteuid() == 0 else ():
            if path != self.images.path:
                yield os.path.basename(path), self.images.at(path)

    def the(self, image: str) -> ImageEntry:
        """Return the image of a reference, digest, path, or the beginning of a name; exits with 1 unless it is one."""
        found = [entry for entry in self.inventory() if _is_meant(entry, image)]
        if len(found) != 1:
            warn(f"{image}: {'no such image' if not found else 'more than one; write more of its name, or its path'}")
            raise click.exceptions.Exit(NOT_DONE)
        return found[0]

    def reference(self, text: str) -> Reference:
        """Return a reference that the policy allows; exits with 2 for any other."""
        try:
            reference = parse(text)
            check_allowed(reference, self.policy.images.registries)
        except UserError as error:
            fail(error, error.hint)
        return reference

    def site(self) -> Site:
        """Return the site that a prolog on this host would have, in nobody's quota."""
        requester = Requester(_node(), f"cli{os.getpid()}", 0)
        return Site.of(self.policy, self.images, self.installation.node(requester.node).uses, requester)


@contextmanager
def opened(installation: Installation) -> Iterator[Store]:
    """Give the store for reading; an error ends the command with status 2."""
    try:
        policy = current_policy(installation).policy
    except PolicyError as error:
        fail(error, hint_for(error))
    me = Identity("you", os.geteuid(), os.getegid())
    with ImageStoreClient.of(me if os.geteuid() else policy.store_user, policy.paths.store) as images:
        try:
            yield Store(installation, policy, images, None)
        except WarmstartError as error:
            fail(error, error.hint)


@contextmanager
def changed(installation: Installation) -> Iterator[Store]:
    """Give the store for changing it, which is audited; an error ends the command with status 2."""
    try:
        with maintenance_session(installation, "images", _node()) as session:
            images = ImageStoreClient(session.store.worker, session.policy.paths.store)
            yield Store(installation, session.policy, images, session.audit)
    except WarmstartError as error:
        fail(error, error.hint)


def _node() -> str:
    return os.uname().nodename.partition(".")[0]


def _is_meant(entry: ImageEntry, text: str) -> bool:
    if text == entry.path or (len(text) >= SHORTEST and entry.name.startswith(text)):
        return True
    try:
        return text == entry.digest or parse(text).canonical() == entry.reference
    except ImageReferenceInvalid:
        return False
