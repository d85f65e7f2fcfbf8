"""What maintenance of a node does for the wing: it removes copies beyond the policy's bound, or of no model."""

from __future__ import annotations

from warmstart.session import Session
from warmstart.wings.models.attempts import prune


def maintain(session: Session) -> int:
    """Remove them; return how many models went. A policy that names no prefixes keeps nothing."""
    return prune(session.policy, session.paths, session.audit) if session.policy.paths.shelf else 0
