"""Look up profiles by name. Hot path.

Those that come with warmstart are in `shipped`. The compiled policy has those that its rules grant, a site's own, and
`files`.
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
    """Return the names of all profiles, sorted. `defined` are the policy's."""
    from warmstart.profiles.shipped import PROFILES

    return sorted({profile.name for profile in (*PROFILES, *defined)})


def find(name: str, defined: Sequence[Profile] = ()) -> Profile | None:
    """Return the profile `name`, None if there is none. `defined` are the policy's."""
    for profile in defined:
        if profile.name == name:
            return profile
    from warmstart.profiles.shipped import PROFILES  # for jobs that ask for more than rules grant

    return next((profile for profile in PROFILES if profile.name == name), None)


def get(name: str, defined: Sequence[Profile] = ()) -> Profile:
    """Return the profile `name` as `find` does. Raises `ProfileUnknown` if there is none."""
    if profile := find(name, defined):
        return profile
    raise ProfileUnknown(name=name, known=", ".join(names(defined)))


def is_of_user(name: str) -> bool:
    """Return whether a profile's entries stay in their user's own scope."""
    profile = find(name)
    return profile is not None and profile.user_scope
