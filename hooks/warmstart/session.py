"""Session of maintenance, an import, or a command that changes something: root, the policy, the log, a store client."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from warmstart.audit.log import Log
from warmstart.errors import ResourceError, UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_path
from warmstart.paths import Installation, NodePaths
from warmstart.policy.current import current_policy
from warmstart.policy.keys import Policy
from warmstart.run.state import using_state
from warmstart.store.client import StoreClient

# How often the timers in packaging/systemd start maintenance; doctor alarms after three intervals without success.
NODE_INTERVAL_S = 1800
STORE_INTERVAL_S = 86400
STORE_SECONDS = 60.0  # for one operation on the store


class NotRoot(UserError):
    """The command needs root."""

    code = "not-root"
    template = "this needs root: {what}"
    hint = "run it with sudo"


class MaintenanceBusy(ResourceError):
    """Another maintenance run holds the lock of the node, or of the store."""

    code = "maintenance-busy"
    template = "another maintenance run is active {what}"
    hint = "wait until it is over, then run this again"


class MaintenanceFailed(ResourceError):
    """A part of maintenance, or its work on one run, failed on this node's disk or met a bug."""

    code = "maintenance-failed"
    template = "{part}: {problem}"
    hint = "read the reason; the next run tries again"


class Session(NamedTuple):
    """One run of maintenance, of an import, or of a command that changes something."""

    installation: Installation
    policy: Policy
    paths: NodePaths
    node: str
    audit: Log
    run_id: str
    store: StoreClient
    failures: list[WarmstartError]  # audited; the rest was done, but the session's outcome is `failed`

    def store_deadline(self) -> Deadline:
        """Return the deadline for one operation on the store."""
        return store_deadline()

    @contextmanager
    def isolated(self, part: str, step: str = "maintenance") -> Iterator[None]:
        """Audit and remember what a `with` block raises, bugs included, so that the next part is done."""
        try:
            yield
            return
        except WarmstartError as error:
            failure = error
        except OSError as error:
            failure = MaintenanceFailed(part=part, problem=error.strerror or str(error))
        except Exception:  # noqa: BLE001 - whatever one job's files trigger
            self.audit.say(traceback=traceback.format_exc())
            problem = "a bug in warmstart; the traceback is in the audit log"
            failure = MaintenanceFailed(part=part, problem=problem)
        self.failed(step, failure)

    def failed(self, step: str, error: WarmstartError) -> None:
        """Audit an error after which the run continues, and remember it."""
        self.failures.append(error)
        self.audit.failed(error, step)


@contextmanager
def open_session(installation: Installation, hook: str, node: str = "") -> Iterator[Session]:
    """Open a session for a `with` block; at its end the log gets its last line.

    Args:
        installation: The installation to work on.
        hook: The command's name, for the field `hook` of its events.
        node: The node to work on; this host by default.

    Raises:
        NotRoot: The caller is not root.
        PolicyError: There is no usable policy.
        FileSystemBroken, StateFull: The node's state directory cannot be written.

    An error that ends the session, such as a lock that another run holds, is audited. So is SIGTERM, which is no crash:
    a job or step is over, or a unit is stopped.
    """
    require_root(hook)
    os.umask(0o022)
    policy = current_policy(installation, keep=True).policy
    node = node or os.uname().nodename.partition(".")[0]
    paths = installation.node(node)
    with using_state(paths.root):
        ensure_path(paths.root, 0o755)
        ensure_path(paths.runtime, 0o755)
    run_id = os.urandom(4).hex()
    from warmstart.audit.rendering import ProgramLog  # structlog is slow to import

    log = ProgramLog(policy.paths.audit, {"hook": hook, "run_id": run_id, "node": node}, syslog=policy.audit.syslog)
    log.begin()
    started = time.monotonic()
    outcome = "failed"
    is_ended = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ended:
        signal.signal(signal.SIGTERM, partial(_end, log, os.getpid(), started))
    try:
        store = StoreClient.of(policy, f"{node}-{run_id}")
        session = Session(installation, policy, paths, node, log, run_id, store, [])
        yield session
        outcome = "failed" if session.failures else "ok"
    except WarmstartError as error:
        log.failed(error, hook)
        raise
    finally:
        if is_ended:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _finish(log, outcome, started)


def _finish(log: Log, outcome: str, started: float) -> None:
    log.finish(outcome=outcome, duration_ms=round((time.monotonic() - started) * 1000, 3))


def _end(log: Log, own: int, started: float, number: int, _frame: object) -> None:
    """End this process as the signal does alone, with no more than its last line: it may die at any point."""
    if os.getpid() == own:  # no child that has forked
        _finish(log, "ended", started)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def is_root() -> bool:
    """Return whether the caller is root."""
    return os.geteuid() == 0


def require_root(command: str) -> None:
    """Raise `NotRoot` unless the caller is root."""
    if not is_root():
        raise NotRoot(what=f"warmstart {command}")


def store_deadline() -> Deadline:
    """Return the deadline for one operation on the store."""
    return after(STORE_SECONDS)
