"""Look up profiles by name. Hot path.

Those that come with warmstart are in `shipped`. A site's own, and `files`, are in its policy.
"""

from __future__ import annotations

from warmstart.errors import PolicyError
from warmstart.lean import Sequence
from warmstart.profiles.contract import Profile
from warmstart.profiles.shipped import PROFILES

_SHIPPED = {profile.name: profile for profile in PROFILES}


class ProfileUnknown(PolicyError):
    """No profile has this name. The policy loader refuses such names, so it is from a record or an older policy."""

    code = "profile-unknown"
    template = "there is no profile {name}; there are: {known}"
    hint = "correct `profiles` in the policy, or install the release that has this profile"


def names(defined: Sequence[Profile] = ()) -> list[str]:
    """Return the names of all profiles, sorted. `defined` are the policy's own profiles."""
    return sorted({*_SHIPPED, *(profile.name for profile in defined)})


def get(name: str, defined: Sequence[Profile] = ()) -> Profile:
    """Return the profile `name`; those that come with warmstart win. Raises `ProfileUnknown` if there is none."""
    for profile in (_SHIPPED.get(name), *defined):
        if profile is not None and profile.name == name:
            return profile
    raise ProfileUnknown(name=name, known=", ".join(names(defined)))


def shipped(name: str) -> Profile | None:
    """Return the profile `name` if it comes with warmstart."""
    return _SHIPPED.get(name)


def is_of_user(name: str) -> bool:
    """Return whether a profile's entries stay in their user's own scope."""
    profile = shipped(name)
    return profile is not None and profile.user_scope
