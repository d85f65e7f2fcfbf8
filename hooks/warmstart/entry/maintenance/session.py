"""A session: what maintenance and an administrator's changes need, namely root, the current policy and a journal.

Its events go the way of a hook's: into a journal of this host, and from there into the audit log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.audit.sink import flush
from warmstart.errors import ResourceError, UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_path
from warmstart.paths import Installation, NodePaths
from warmstart.policy import refresh
from warmstart.policy.compiled import Policy
from warmstart.record import writing_state
from warmstart.repack.merge import RepackSettings
from warmstart.repack.transfer import Item
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle

STORE_SECONDS = 60.0  # for one question to the store
BUNDLE_SECONDS = 900.0  # for reading, unpacking, packing and writing one bundle


class NotRoot(UserError):
    """Only root changes what warmstart keeps."""

    code = "not-root"
    template = "this needs root: {what}"
    hint = "run it as root: sudo"


class MaintenanceBusy(ResourceError):
    """Another run of maintenance has the lock of the node, or of the store."""

    code = "maintenance-busy"
    template = "another maintenance run is at work: {what}"
    hint = "nothing; it does the same"


class MaintenanceSession(NamedTuple):
    """One run of maintenance, of a node or of the store, or of a command that changes something."""

    policy: Policy
    paths: NodePaths
    node: str
    audit: Journal
    run_id: str
    store: StoreClient  # closed at the session's end, which releases the store's lock

    @property
    def repack_settings(self) -> RepackSettings:
        """Where bundles are unpacked, and who judges what is in them."""
        return RepackSettings(self.paths.maintenance, self.store, self.policy.validate_user)

    def namespace(self, item: Bundle | Item) -> Namespace:
        """Return the namespace in this store of a bundle, or of one in an export."""
        return Namespace(self.policy.paths.store, item.scope, item.profile, item.namespace)

    def store_deadline(self) -> Deadline:
        """Return the deadline for one question to the store."""
        return after(STORE_SECONDS)

    def bundle_deadline(self) -> Deadline:
        """Return the deadline for working on one bundle."""
        return after(BUNDLE_SECONDS)

    def failed(self, step: str, error: WarmstartError) -> None:
        """Audit an error that leaves the rest to be done."""
        self.audit.emit(events.STEP_FAILED, step=step, error=error.as_audit())


@contextmanager
def maintenance_session(installation: Installation, hook: str, node: str = "") -> Iterator[MaintenanceSession]:
    """Open a session for the length of a `with`; its journal is moved into the audit log at the end.

    Args:
        installation: The installation that is maintained.
        hook: The command's name, as events show it in `hook`.
        node: The node whose directory the session's journal lies in; this host by default.

    Raises:
        NotRoot: Another user called it.
        PolicyError: There is no usable policy.
        StateUnusable, StateFull: The node's state directory can't be written.
    """
    if os.geteuid() != 0:
        raise NotRoot(what=f"warmstart {hook}")
    os.umask(0o022)
    policy, _ = refresh.current(installation)
    node = node or os.uname().nodename.partition(".")[0]
    paths = installation.node(node)
    with writing_state(paths.root):
        ensure_path(paths.root, 0o755)
    run_id = os.urandom(4).hex()
    journal = Journal(paths.journal, {"hook": hook, "run_id": run_id, "node": node})
    journal.emit(events.HOOK_STARTED)
    started = time.monotonic()
    outcome = "failed"
    try:
        with StoreClient(policy.store_user, policy.paths.store, f"{node}-{run_id}") as store:
            yield MaintenanceSession(policy, paths, node, journal, run_id, store)
        outcome = "ok"
    finally:
        journal.finish(outcome=outcome, duration_ms=round((time.monotonic() - started) * 1000, 3))
        flush(paths.journal, policy.paths.audit)


def labels(where: Namespace) -> dict[str, str]:
    """Return a namespace as the fields of an event."""
    return {"scope": where.scope, "profile": where.profile, "namespace": where.name}
