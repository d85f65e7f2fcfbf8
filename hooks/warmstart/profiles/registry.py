"""Look up profiles by name. Hot path.

Those that come with warmstart are in `shipped`. A site's own, and `files`, are in its policy.
"""

from __future__ import annotations

from warmstart.errors import PolicyError
from warmstart.lean import Sequence
from warmstart.profiles.contract import Profile


class ProfileUnknown(PolicyError):
    """No profile has this name. The policy loader refuses such names, so it is from a run or an older policy."""

    code = "profile-unknown"
    template = "there is no profile {name}; there are: {known}"
    hint = "correct `profiles` in the policy, or install the release that has this profile"


def names(defined: Sequence[Profile] = ()) -> list[str]:
    """Return the names of all profiles, sorted. `defined` are the policy's own profiles."""
    return sorted({profile.name for profile in (*_shipped(), *defined)})


def get(name: str, defined: Sequence[Profile] = ()) -> Profile:
    """Return the profile `name`; those that come with warmstart win. Raises `ProfileUnknown` if there is none."""
    found = next((profile for profile in (*_shipped(), *defined) if profile.name == name), None)
    if found is None:
        raise ProfileUnknown(name=name, known=", ".join(names(defined)))
    return found


def is_of_user(name: str) -> bool:
    """Return whether a profile's entries stay in their user's own scope."""
    return any(profile.user_scope for profile in _shipped() if profile.name == name)


def _shipped() -> tuple[Profile, ...]:
    from warmstart.profiles.shipped import PROFILES  # not for jobs without profiles

    return PROFILES
