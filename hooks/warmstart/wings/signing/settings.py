"""What the policy says of signed scopes, in the form that hooks read."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import NamedTuple
from warmstart.policy.compiled import Policy

KEY = "signing"  # of the policy


class Settings(NamedTuple):
    """Which scopes are signed, and by whom; by default none."""

    scopes: list[str] = []  # noqa: RUF012 - account | site; never mutated
    keys: list[str] = []  # noqa: RUF012 - public, as OpenSSH writes them; never mutated

    def has(self, scope: str) -> bool:
        """Return whether the list of a scope, a directory of the store, must be signed."""
        return scope.partition("-")[0] in self.scopes


def settings(policy: Policy) -> Settings:
    """Return what the policy says of signed scopes."""
    return wire.from_object(Settings, policy.own[KEY]) if KEY in policy.own else Settings()
