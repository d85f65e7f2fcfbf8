"""Fetch bundles that did not come within `seed.fetch_budget`. One process of a node, so `RATE` is its."""

from __future__ import annotations

import time

from warmstart.audit import events
from warmstart.errand import Errands
from warmstart.errands.loop import DONE, LATER, Outcome, Turn, Work
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.profiles.defined import is_whole
from warmstart.seed import node_cache
from warmstart.seed.node_cache import Keep
from warmstart.seed.wanted import FETCHES, Wanted
from warmstart.session import Session
from warmstart.store.bundles import BundleGone, CopyFailed, FetchOverBudget

RATE = 64 << 20  # bytes per second
FETCH_S = 3600.0  # for one attempt at a bundle; longer for a very large one


def fetch(turn: Turn) -> Outcome:
    """Make one attempt at a bundle, and audit it under the job that asked first."""
    session, attempt = turn.session, turn.errand.attempts
    item = Errands(session.paths, FETCHES).read(turn.errand, Wanted)
    if item is None:
        return DONE
    audit = session.audit.for_job(**item.job._asdict())
    about = {"profile": item.profile, "namespace": item.namespace, "scope": item.scope, "bundle": item.bundle}
    started = time.monotonic()
    try:
        _fetch(session, item)
    except (WarmstartError, OSError) as error:
        is_over = isinstance(error, BundleGone)
        failure = error if isinstance(error, WarmstartError) else CopyFailed(bundle=item.bundle, problem=error.strerror)
        session.failures.append(failure)
        audit.emit(events.BUNDLE_FETCH_FAILED, **about, attempt=attempt, again=not is_over, error=failure.as_audit())
        return DONE if is_over else LATER
    took = round((time.monotonic() - started) * 1000, 3)
    audit.emit(events.BUNDLE_FETCHED, **about, size=item.size, attempt=attempt, duration_ms=took)
    return DONE


def _fetch(session: Session, item: Wanted) -> None:
    directory, rules, keep = session.paths.bundles, session.policy.seed, Keep.of(session.policy)
    if is_whole(item.profile):
        most, keys = keep.wholes.get(item.profile, 0), "a node keeps of its kind"
    else:
        most, keys = min(rules.max_fetch, keep.caches), "seed.max_fetch or seed.keep"
    if item.size > most:
        raise FetchOverBudget(bundle=item.bundle, problem=f"it has {item.size} bytes, which is more than {keys}")
    node_cache.prune(directory, session.paths.layers, keep.less(item.profile, item.size), time.time())
    deadline = after(max(FETCH_S, 2 * item.size / RATE))
    node_cache.fetch_wanted(directory, item, store=session.store, rate=RATE, deadline=deadline)


WORK = {FETCHES.name: Work(FETCHES, fetch)}
