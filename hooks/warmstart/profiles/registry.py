"""Look up profiles by name. Hot path.

Profiles that come with warmstart are modules, loaded only when needed. A site's own, and `files`, are
`DefinedProfile`s of its policy.
"""

from __future__ import annotations

import sys

from warmstart.errors import PolicyError
from warmstart.lean import Sequence
from warmstart.profiles.contract import Profile
from warmstart.profiles.defined import DefinedProfile, profile_of

# Each is PROFILE of the module with its name, `_` for `-`.
_SHIPPED = (
    "cudnn-frontend",
    "cupy",
    "cute-dsl",
    "deepgemm",
    "flashinfer",
    "helion",
    "hybrid-ep",
    "inductor",
    "jax",
    "numba",
    "sglang",
    "tilelang",
    "torch-extensions",
    "triton",
    "trt-rtx",
    "tvm-ffi",
    "vllm",
    "warp",
)


class ProfileUnknown(PolicyError):
    """No profile has this name. The policy loader refuses such names, so it is from a record or an older policy."""

    code = "profile-unknown"
    template = "there is no profile {name}; there are: {known}"
    hint = "correct `profiles` in the policy, or install the release that has this profile"


def names(defined: Sequence[DefinedProfile] = ()) -> list[str]:
    """Return the names of all profiles, sorted. `defined` are the policy's own profiles."""
    return sorted({*_SHIPPED, *(profile.name for profile in defined)})


def get(name: str, defined: Sequence[DefinedProfile] = ()) -> Profile:
    """Return the profile `name`; those that come with warmstart win. Raises `ProfileUnknown` if there is none."""
    if (profile := shipped(name)) is not None:
        return profile
    for definition in defined:
        if definition.name == name:
            return profile_of(definition)
    raise ProfileUnknown(name=name, known=", ".join(names(defined)))


def shipped(name: str) -> Profile | None:
    """Return the profile `name` if it comes with warmstart."""
    if name not in _SHIPPED:
        return None
    module = f"warmstart.profiles.{name.replace('-', '_')}"
    __import__(module)
    profile = sys.modules[module].PROFILE
    assert isinstance(profile, Profile)
    return profile


def is_of_user(name: str) -> bool:
    """Return whether a profile's entries stay in their user's own scope."""
    profile = shipped(name)
    return profile is not None and profile.user_scope
