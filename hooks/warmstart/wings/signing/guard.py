"""What readers take from signed scopes: the listings that a list names which this host believes. Runs as root."""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.store import listing
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.wings.signing import stored
from warmstart.wings.signing.lists import NotSigned, SignedLists, Verdict


def guard(policy: Policy, paths: NodePaths, store: StoreClient) -> SignedScopes:
    """Return the guard, for one client of the store (`store.guards`)."""
    return SignedScopes(SignedLists(policy, paths.shared), store)


class SignedScopes:
    """The signed scopes of the store."""

    def __init__(self, lists: SignedLists, store: StoreClient) -> None:
        """Read lists with `store`."""
        self.lists = lists
        self._store = store

    def verdict(self, scope: str, deadline: Deadline) -> Verdict:
        """Return what this host makes of a scope's list."""
        return self.lists.current(scope, lambda: self._store.look(deadline, stored.read, scope), deadline)

    def listing(self, where: Namespace, deadline: Deadline) -> tuple[str, str]:
        """Return the hash of the listing that the list names, "" for none, and what is wrong with the list."""
        verdict = self.verdict(where.scope, deadline)
        named = verdict.list.namespaces if verdict.list else {}
        return named.get(stored.of(where.profile, where.name), ""), verdict.problem

    def require_unnamed(self, where: Namespace, bundle: str, deadline: Deadline) -> None:
        """Raise `NotSigned` if the last list of the scope names a bundle: nodes would look for it in vain."""
        last = self.lists.remembered(where.scope)
        sha256 = last.namespaces.get(stored.of(where.profile, where.name), "") if last else ""
        if sha256 and bundle in self._store.worker.run(deadline, listing.read, where, sha256).manifests:
            problem = f"it names {bundle}: sign it without, `warmstart signing sign {where.scope} --without …`"
            raise NotSigned(scope=where.scope, problem=problem)
