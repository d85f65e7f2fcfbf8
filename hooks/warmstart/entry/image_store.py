"""The image store as the command line uses it: as its owner where root asks, and as whoever asks otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from warmstart.audit.events import Event
from warmstart.audit.journal import Journal
from warmstart.entry.in_force import hint_for, in_force
from warmstart.entry.terminal import fail, warn
from warmstart.entry.upkeep_run import upkeep_run
from warmstart.errors import PolicyError, UserError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images import quarantine, space
from warmstart.images.asked import Run, Site
from warmstart.images.inventory import inventory
from warmstart.images.reference import ImageReferenceInvalid, Reference, check_allowed, parse
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.store.layout import store_errors

NOT_DONE = 1
LISTING_S = 60.0
SHORTEST = 6  # letters of a name that may stand for all of it
Entry = dict[str, Any]


class Store(NamedTuple):
    """The image store of an installation, as whoever runs the command may use it."""

    installation: Installation
    policy: Policy
    worker: Worker
    audit: Journal | None  # of whoever may change the store
    path: str  # the directory: the policy's, or that of private images

    def at(self, entry: Entry) -> Store:
        """Return the store that an image lies in."""
        return self._replace(path=entry["store"])

    def call(self, function: Callable[..., Any], *arguments: object, seconds: float = LISTING_S) -> Any:  # noqa: ANN401
        """Call one of the store's functions with the store and these arguments."""
        with store_errors(f"the image store of {self.path}"):
            return self.worker.call(function, self.path, *arguments, deadline=after(seconds))

    def tell(self, event: Event, **fields: object) -> None:
        """Audit a change."""
        assert self.audit is not None, "only root changes anything"
        self.audit.emit(event, **fields)

    def inventory(self) -> list[Entry]:
        """Return all images, the least recently used first; root's with `private`, whose they are ("" for all)."""
        found = self._everywhere(inventory, self.policy.images.keep.lease)
        return sorted(found, key=lambda entry: float(entry["last_use"]))

    def quarantined(self) -> list[Entry]:
        """Return all that lies in quarantine, the oldest first."""
        return sorted(self._everywhere(quarantine.quarantined), key=lambda entry: float(entry["at"]))

    def _everywhere(self, function: Callable[..., Any], *arguments: object) -> list[Entry]:
        found = []
        # Nobody but its owner may look into the stores of private images, nor know their names.
        others = [path for path in self.call(space.stores) if path != self.path] if os.geteuid() == 0 else []
        for path in (self.path, *others):
            name = os.path.basename(path) if path != self.path else ""
            here: list[Entry] = self._replace(path=path).call(function, *arguments)
            found += [{**entry, "private": name, "store": path} for entry in here]
        return found

    def the(self, image: str) -> Entry:
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
        """Return what a prolog on this host would go by, in nobody's quota."""
        node = _node()
        return Site.of(self.policy, self.worker, self.installation.node(node).uses, Run(node, f"cli{os.getpid()}", 0))


@contextmanager
def opened(installation: Installation) -> Iterator[Store]:
    """Give the store for looking at; what can't be read ends the command with its error and status 2."""
    try:
        policy = in_force(installation).policy
    except PolicyError as error:
        fail(error, hint_for(error))
    me = Identity("you", os.geteuid(), os.getegid())
    with Worker(me if os.geteuid() else policy.store_user) as worker:
        try:
            yield Store(installation, policy, worker, None, policy.paths.store)
        except WarmstartError as error:
            fail(error, error.hint)


@contextmanager
def changed(installation: Installation) -> Iterator[Store]:
    """Give the store for changing it, which is audited; what goes wrong ends the command with status 2."""
    try:
        with upkeep_run(installation, "images", _node()) as run:
            yield Store(installation, run.policy, run.store.worker, run.audit, run.policy.paths.store)
    except WarmstartError as error:
        fail(error, error.hint)


def _node() -> str:
    return os.uname().nodename.partition(".")[0]


def _is_meant(entry: Entry, text: str) -> bool:
    if text == entry["path"] or (len(text) >= SHORTEST and entry["name"].startswith(text)):
        return True
    try:
        return bool(text == entry["digest"] or parse(text).canonical() == entry["reference"])
    except ImageReferenceInvalid:
        return False
