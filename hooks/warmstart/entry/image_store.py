"""The image store as the command line uses it: as its owner where root asks, and as whoever asks otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import click

from warmstart.audit.events import Event
from warmstart.audit.journal import Journal
from warmstart.entry.in_force import hint_for, in_force
from warmstart.entry.terminal import fail, warn
from warmstart.entry.upkeep_run import upkeep_run
from warmstart.errors import PolicyError, UserError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.worker import Identity, Worker
from warmstart.images.asked import Site
from warmstart.images.importers.choice import choose, recipe
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

    def call(self, function: Callable[..., Any], *arguments: object, seconds: float = LISTING_S) -> Any:  # noqa: ANN401
        """Call one of the store's functions with the store and these arguments."""
        with store_errors(f"the image store of {self.policy.paths.store}"):
            return self.worker.call(function, self.policy.paths.store, *arguments, deadline=after(seconds))

    def tell(self, event: Event, **fields: object) -> None:
        """Audit a change."""
        assert self.audit is not None, "only root changes anything"
        self.audit.emit(event, **fields)

    def inventory(self) -> list[Entry]:
        """Return all images, the least recently used first."""
        found: list[Entry] = self.call(inventory, self.policy.images.keep.lease)
        return found

    def the(self, image: str) -> Entry:
        """Return the image of a reference, a digest, or the beginning of a name; exits with 1 unless there is one."""
        found = [entry for entry in self.inventory() if _is_meant(entry, image)]
        if len(found) != 1:
            warn(f"{image}: {'no such image' if not found else 'more than one; write more of its name'}")
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
        policy, node = self.policy, _node()
        return Site(
            store=policy.paths.store,
            worker=self.worker,
            importer=partial(choose, policy.images.importer, policy.import_user, policy.images.insecure),
            validator=policy.validate_user,
            rules=policy.images,
            recipe=recipe(policy.images.importer),
            workspace=policy.paths.workspace,
            uses=self.installation.node(node).uses,
            node=node,
            run_id=f"cli{os.getpid()}",
            job_id=0,
        )


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
            yield Store(installation, policy, worker, None)
        except WarmstartError as error:
            fail(error, error.hint)


@contextmanager
def changed(installation: Installation) -> Iterator[Store]:
    """Give the store for changing it, which is audited; what goes wrong ends the command with status 2."""
    try:
        with upkeep_run(installation, "images", _node()) as run:
            yield Store(installation, run.policy, run.store, run.audit)
    except WarmstartError as error:
        fail(error, error.hint)


def _node() -> str:
    return os.uname().nodename.partition(".")[0]


def _is_meant(entry: Entry, text: str) -> bool:
    if len(text) >= SHORTEST and entry["name"].startswith(text):
        return True
    try:
        return bool(text == entry["digest"] or parse(text).canonical() == entry["reference"])
    except ImageReferenceInvalid:
        return False
