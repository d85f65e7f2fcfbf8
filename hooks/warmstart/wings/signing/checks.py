"""What doctor looks at: the lists of signed scopes (docs/wings/signing.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from warmstart.doctor.finding import ADVICE, AS_ROOT, OK, UNKNOWN, WRONG, Finding
from warmstart.doctor.store import DEADLINE, Store
from warmstart.doctor.wings import Checks
from warmstart.host.deadline import after
from warmstart.policy.units import format_duration
from warmstart.store import maintenance
from warmstart.wings.signing import stored
from warmstart.wings.signing.lists import SignedLists
from warmstart.wings.signing.settings import settings
from warmstart.wings.signing.stored import Envelope

EXPIRES_SOON_S = 14 * 86400.0


def signed_lists(store: Store) -> Iterator[Finding]:
    """Check the lists of scopes that must be signed: without one that holds, nothing is taken from there."""
    wanted = settings(store.policy)
    if not wanted.scopes:
        yield Finding(OK, "no scope needs a signed list (signing.scopes)")
        return
    if store.run_root is None:
        yield Finding(UNKNOWN, "only root knows which lists this host has seen", AS_ROOT)
        return
    lists = SignedLists(store.policy, store.shared)
    there = filter(wanted.has, store.run(maintenance.scopes, store.path))
    for scope in sorted({*there} | {name for name in wanted.scopes if name == "site"}):
        verdict = lists.current(scope, partial(_list, store, scope), after(DEADLINE))
        if verdict.problem or verdict.list is None:
            words = "" if verdict.list else "; jobs are seeded with nothing of it"
            yield Finding(WRONG, f"scope {scope}: {verdict.problem}{words}", "wings/signing.md, What a node says")
            continue
        left = verdict.list.expires - time.time()
        words = f"scope {scope}: its list with the serial {verdict.list.serial} holds for {format_duration(left)}"
        if left < EXPIRES_SOON_S:
            yield Finding(ADVICE, words, f"`warmstart signing sign {scope} --key …` on the host that signs")
        else:
            yield Finding(OK, words)


def _list(store: Store, scope: str) -> Envelope | None:
    return store.run(stored.read, store.path, scope)


CHECKS = Checks(store={"store.signed": signed_lists})
