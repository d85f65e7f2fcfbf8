"""What the policy says of ready roots, and the names in a run's directory. Hot path of jobs with images."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import NamedTuple
from warmstart.policy.compiled import Policy

KEY = "ready_roots"
# In a run's directory, the job's: what containers write, in a directory each, and a file from-WAY.* for each container.
OWN = "ready-roots"
SAID = "from-"
TREE, IMAGE, UNPACKED = WAYS = ("tree", "image", "unpacked")  # what the root of a container came from


class Settings(NamedTuple):
    """The policy's section."""

    wait: int  # seconds


def settings(policy: Policy) -> Settings:
    """Return the section; the policy uses the wing."""
    found: Settings = wire.from_object(Settings, policy.own[KEY])
    return found
