"""Guarded scopes: nodes publish nothing there, and readers take what a wing's guard names. Runs as root.

The compiled policy says which wing guards a scope. Where that wing is gone nothing is taken: no scope is read as if
nobody guarded it. Hot path of jobs that read such a scope; nothing else loads this.
"""

from __future__ import annotations

from warmstart.errors import StoreError
from warmstart.lean import TYPE_CHECKING, Iterable, NamedTuple
from warmstart.store.layout import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from warmstart.host.deadline import Deadline
    from warmstart.policy.compiled import Policy

    class Guard(Protocol):
        """What `guard(policy, paths, store)` of a wing's `guard.py` returns, for one client of the store."""

        def listing(self, where: Namespace, deadline: Deadline) -> tuple[str, str]:
            """Return the hash of the listing that counts, "" if nothing may be taken, and what is wrong, if anything.

            Both may be there: what is wrong with the store need not hurt what this host knows.
            """

        def require_unnamed(self, where: Namespace, bundle: str, deadline: Deadline) -> None:
            """Raise a `WarmstartError` if readers are told to take a bundle, which is about to be removed."""


class GuardMissing(StoreError):
    """The wing that guards a scope is not here, so nothing is taken from there."""

    code = "guard-missing"
    template = "the scope {scope} is guarded by the wing {wing}, which cannot be loaded: {problem}"
    hint = "install warmstart with that wing, as on the other nodes"


class NotBorneOut(StoreError):
    """Another node proposes what the guard of a scope does not name, so it is not taken."""

    code = "not-borne-out"
    template = "the scope {scope}: the head node proposes a bundle that its listing does not name so"
    hint = "find out who wrote into the store as that node; run `warmstart doctor`"


class Listings(NamedTuple):
    """What readers may take of a namespace."""

    named: dict[str, str]  # guarded scope → SHA-256 of its listing, "" if nothing may be taken
    problems: dict[str, str]  # SCOPE/* → what is wrong


class Guards:
    """The guards of a policy's scopes, each loaded when it is asked."""

    def __init__(self, policy: Policy, load: Callable[[str], Guard]) -> None:
        """`load` returns the guard of a wing; raises `ImportError`."""
        self._policy = policy
        self._load = load
        self._loaded: dict[str, Guard] = {}

    def scopes(self, scopes: Iterable[str]) -> list[str]:
        """Return which of these scopes are guarded."""
        return [scope for scope in scopes if self._policy.is_guarded(scope)]

    def of(self, scope: str) -> Guard:
        """Return the guard of a guarded scope. Raises `GuardMissing`."""
        name = self._policy.guards[scope.partition("-")[0]]
        if name not in self._loaded:
            try:
                self._loaded[name] = self._load(name)
            except ImportError as error:
                raise GuardMissing(scope=scope, wing=name, problem=str(error)) from error
        return self._loaded[name]

    def listings(self, scopes: Iterable[str], profile: str, namespace: str, deadline: Deadline) -> Listings:
        """Return what readers may take of a namespace in those of these scopes that are guarded."""
        found = Listings({}, {})
        for scope in self.scopes(scopes):
            where = Namespace(self._policy.paths.store, scope, profile, namespace)
            problem = ""
            try:
                found.named[scope], problem = self.of(scope).listing(where, deadline)
            except GuardMissing as error:
                found.named[scope], problem = "", str(error)
            if problem:
                found.problems[f"{scope}/*"] = problem
        return found
