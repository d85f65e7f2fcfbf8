"""What every run of maintenance and every change by an administrator has: root, the policy in force, a journal.

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
from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_path
from warmstart.paths import Installation, NodePaths
from warmstart.policy import refresh
from warmstart.policy.compiled import Policy
from warmstart.record import writing_state
from warmstart.repack.merge import RepackSettings
from warmstart.store.client import StoreClient

STORE_SECONDS = 60.0  # for one question to the store
BUNDLE_SECONDS = 900.0  # for reading, unpacking, packing and writing one bundle


class NotRoot(UserError):
    """Only root changes what warmstart keeps."""

    code = "not-root"
    template = "this needs root: {what}"
    hint = "run it as root: sudo"


class MaintenanceSession(NamedTuple):
    """One run of maintenance, for one node's own things or for the store."""

    policy: Policy
    paths: NodePaths
    node: str
    audit: Journal
    run_id: str
    store: StoreClient  # ends with the run, and with it the locks that it holds

    @property
    def bench(self) -> RepackSettings:
        """Where bundles are unpacked, and as whom."""
        return RepackSettings(self.paths.maintenance, self.store, self.policy.validate_user)

    def store_deadline(self) -> Deadline:
        """Return the deadline for one question to the store."""
        return after(STORE_SECONDS)

    def bundle_deadline(self) -> Deadline:
        """Return the deadline for working on one bundle."""
        return after(BUNDLE_SECONDS)

    def failed(self, step: str, error: WarmstartError) -> None:
        """Write down what failed beside the rest."""
        self.audit.emit(events.STEP_FAILED, step=step, error=error.as_audit())


@contextmanager
def maintenance_session(installation: Installation, hook: str, node: str) -> Iterator[MaintenanceSession]:
    """Give a run; `NotRoot`, a `PolicyError` where no policy is in force, `StateUnusable`, `StateFull`."""
    if os.geteuid() != 0:
        raise NotRoot(what=f"warmstart {hook}")
    os.umask(0o022)
    policy, _ = refresh.current(installation)
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
