"""Change what a signed scope consists of, on a host that has the key or its agent (docs/wings/signing.md). Root.

A new list is made of the last one that this host believes and of what is promoted now, never of what else lies in the
scope's directory: any node can write there. A listing is complete before the list that names it, and the last one stays
for readers of the last list.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from warmstart.host.deadline import Deadline, after
from warmstart.lean import dumps
from warmstart.repack.rewrite import RepackSettings, draft_of, packed_again, to_promote
from warmstart.session import Session
from warmstart.store import index, listing, maintenance
from warmstart.store.bundles import Published
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace, is_component
from warmstart.store.listing import Listing
from warmstart.wings.signing import signatures, stored
from warmstart.wings.signing.guard import SignedScopes, guard
from warmstart.wings.signing.lists import NotSigned
from warmstart.wings.signing.settings import settings
from warmstart.wings.signing.stored import Envelope, SignedList, ToSign

SIGNING_S = 300.0  # a passphrase, or a touch of a token


class Signing(NamedTuple):
    """How to sign the list of one scope."""

    store: StoreClient
    guard: SignedScopes
    scope: str
    key: str  # path of the key, or of the public key whose private one an agent has
    valid: int  # seconds


def signing(session: Session, scope: str, key: str, valid: int) -> Signing:
    """Return how to sign a scope; raises `NotSigned` if the policy does not ask for it."""
    if not (settings(session.policy).has(scope) and is_component(scope)):
        raise NotSigned(scope=scope, problem="the policy does not ask for it (signing.scopes)")
    if not key:
        raise NotSigned(scope=scope, problem="no key is given: --key FILE, or the .pub of a key that an agent has")
    return Signing(session.store, guard(session.policy, session.paths, session.store), scope, key, valid)


def last(how: Signing, deadline: Deadline) -> SignedList | None:
    """Return the list to go on from, None for a scope that never had one; raises `NotSigned` if it is not known."""
    how.guard.lists.forget_recent()
    verdict = how.guard.verdict(how.scope, deadline)
    remembered = how.guard.lists.remembered(how.scope)
    if remembered is None and how.store.look(deadline, stored.read, how.scope) is not None:
        raise NotSigned(scope=how.scope, problem=verdict.problem)
    return remembered


def promote(  # noqa: PLR0917 - as `rewrite.promote`, and how to sign
    settings: RepackSettings, how: Signing, where: Namespace, bundle: str, entries: Collection[str], deadline: Deadline
) -> Published:
    """Publish entries of a bundle (default: all) in a signed scope that does not have them, and sign its list.

    Raises `PromotionRefused`, `NotSigned`, else errors as `rewrite.promote`.
    """
    target = where._replace(scope=how.scope)
    base = last(how, deadline)
    chosen = to_promote(settings, where, bundle, entries, deadline, scope=how.scope)
    known = index.providers(_listing(how, base, target, deadline).bundles)
    chosen = chosen._replace(entries=[entry for entry in chosen.entries if entry not in known])
    if not chosen.entries:
        return Published(None, "", 0, indexed=False)
    draft = draft_of(chosen.manifest, [chosen])
    with (
        packed_again(settings, chosen, target, draft, deadline) as fd,
        how.store.worker.another(keep=[fd]) as worker,
    ):
        made = worker.run(deadline, stored.publish, target, fd, draft, how.store.writer)
    sign(how, base, deadline, added={target: made})
    return made.published


def sign(
    how: Signing,
    base: SignedList | None,
    deadline: Deadline,
    *,
    added: Mapping[Namespace, ToSign] | None = None,
    without: Collection[str] = (),
) -> SignedList:
    """Sign a list that goes on from `base`, with other bundles; return it.

    Raises `NotSigned`, `SigningFailed`, and the errors of the store.
    """
    namespaces = dict(base.namespaces) if base else {}
    wanted = {_namespace(how, name) for name in namespaces if without} | set(added or {})
    left = set(without)
    for where in sorted(wanted):
        before = _listing(how, base, where, deadline)
        left -= before.manifests.keys()
        changed = _changed(before, (added or {}).get(where), without)
        if changed != before:
            name = stored.of(where.profile, where.name)
            namespaces.pop(name, None)
            if changed.bundles:
                namespaces[name] = how.store.run_in(deadline, stored.write_listing, where, listing.encoded(changed))
    if left:
        raise NotSigned(scope=how.scope, problem=f"its list does not name bundle {min(left)}")
    now = time.time()
    serial = max(int(now), base.serial + 1 if base else 0)  # by the clock: a list that starts anew replaces all others
    store = base.store if base else how.guard.lists.store_id() or how.store.run(deadline, maintenance.identify)
    made = SignedList(stored.FORMAT, store, how.scope, serial, now, now + how.valid, namespaces)
    text = dumps(made._asdict())
    envelope = Envelope(text, signatures.sign(how.key, text, after(SIGNING_S)))
    if not how.guard.lists.holds(envelope, after(SIGNING_S)):
        raise NotSigned(scope=how.scope, problem=f"{how.key} is none of the policy's keys (signing.keys)")
    how.store.run(deadline, stored.write, how.scope, envelope, how.store.writer)
    how.guard.lists.forget_recent()
    if problem := how.guard.verdict(how.scope, deadline).problem:
        raise NotSigned(scope=how.scope, problem=f"this host does not believe what it has just signed: {problem}")
    for where in sorted(wanted):
        name = stored.of(where.profile, where.name)
        keep = [sha256 for sha256 in (namespaces.get(name), base and base.namespaces.get(name)) if sha256]
        how.store.worker.run(deadline, stored.remove_listings, where, keep)
    return made


def _changed(before: Listing, added: ToSign | None, without: Collection[str]) -> Listing:
    bundles = [listed for listed in before.bundles if listed.bundle not in without]
    if added:
        bundles.append(added.listed)
    hashes = {**before.manifests, **({added.listed.bundle: added.manifest} if added else {})}
    return Listing(bundles, {listed.bundle: hashes[listed.bundle] for listed in bundles})


def _listing(how: Signing, base: SignedList | None, where: Namespace, deadline: Deadline) -> Listing:
    sha256 = base.namespaces.get(stored.of(where.profile, where.name), "") if base else ""
    return how.store.worker.run(deadline, listing.read, where, sha256) if sha256 else Listing([], {})


def _namespace(how: Signing, name: str) -> Namespace:
    profile, _, namespace = name.partition("/")
    return Namespace(how.store.path, how.scope, profile, namespace)
