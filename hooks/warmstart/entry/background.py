"""`background WHAT NODE`: do off the clock of jobs what their hooks had no time for. Runs as root, for no job.

| WHAT      | is                                                        | waits in             |
|-----------|-----------------------------------------------------------|----------------------|
| `fetches` | bundles that did not come within `seed.fetch_budget`      | `seed.wanted`        |

Hooks start it detached (`host.detached`) at idle priority, and maintenance does the same work. One process does each
on a node at a time, so that the rate of `seed.fetch_rate` is the node's. It may be killed at any point: what is left
still waits, and whoever finds it starts the program again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from warmstart.audit import events
from warmstart.errors import WarmstartError
from warmstart.host import files, process
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.paths import Installation
from warmstart.seed import node_cache, wanted
from warmstart.seed.node_cache import NotOffered
from warmstart.seed.wanted import Wanted
from warmstart.session import Session, open_session
from warmstart.store.bundles import BundleGone, CopyFailed, FetchOverBudget

FETCH_S = 3600.0  # for one attempt at a bundle; longer if the rate is low
FAILED, WRONG_USAGE = 1, 2


def main(prefix: str, arguments: list[str]) -> int:
    """Do what waits on a node. Return the exit status."""
    installation = Installation(prefix)
    try:
        if len(arguments) != 2 or arguments[0] not in WORK or arguments[1] not in installation.nodes():
            print(f"usage: background {'|'.join(WORK)} NODE", file=sys.stderr)  # noqa: T201 - who calls it by hand
            return WRONG_USAGE
        what, node = arguments
        if not installation.is_off:
            process.be_idle()
            with open_session(installation, "background", node) as session, session.isolated(what):
                WORK[what](session)
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    except OSError as error:  # of this node's disk; all that waits stays
        print(f"warmstart: background work: {error}", file=sys.stderr)  # noqa: T201 - who calls it by hand
        return FAILED
    return 0


def fetch_all(session: Session) -> None:
    """Fetch the bundles of which an attempt is due, unless another process is at it."""
    tried = set()
    with files.opened_lock(session.paths.locks, wanted.FETCHES) as fd:
        while waiting := [item for item in wanted.due(session.paths.bundles) if item.sha256 not in tried]:
            if not files.try_flock(fd):
                return
            tried.add(waiting[0].sha256)
            with session.isolated(f"fetch of {waiting[0].bundle}"):
                _fetch(session, waiting[0])


def _fetch(session: Session, item: Wanted) -> None:
    """Make one attempt at a bundle, and audit it under the job that asked first."""
    directory, rules = session.paths.bundles, session.policy.seed
    audit = session.audit.for_job(**item.job._asdict())
    about = {"profile": item.profile, "namespace": item.namespace, "scope": item.scope, "bundle": item.bundle}
    started = time.monotonic()
    with opened_dir(directory) as fd:
        wanted.write(fd, item._replace(attempts=item.attempts + 1, tried=time.time()))
    try:
        if item.size > min(rules.max_fetch, rules.keep):
            problem = f"it has {item.size} bytes, which is more than seed.max_fetch or seed.keep"
            raise FetchOverBudget(bundle=item.bundle, problem=problem)
        node_cache.prune(directory, session.paths.layers, rules.keep - item.size, time.time())
        deadline = after(max(FETCH_S, 2 * item.size / rules.fetch_rate))
        node_cache.fetch_wanted(directory, item, store=session.store, rate=rules.fetch_rate, deadline=deadline)
    except (WarmstartError, OSError) as error:
        is_over = isinstance(error, BundleGone | NotOffered)
        if is_over:
            with opened_dir(directory) as fd:
                wanted.forget(fd, item.sha256)
        failure = error if isinstance(error, WarmstartError) else CopyFailed(bundle=item.bundle, problem=error.strerror)
        session.failures.append(failure)
        audit.emit(
            events.BUNDLE_FETCH_FAILED, **about, attempt=item.attempts + 1, again=not is_over, error=failure.as_audit()
        )
        return
    took = round((time.monotonic() - started) * 1000, 3)
    audit.emit(events.BUNDLE_FETCHED, **about, size=item.size, attempt=item.attempts + 1, duration_ms=took)


WORK: dict[str, Callable[[Session], None]] = {wanted.FETCHES: fetch_all}
