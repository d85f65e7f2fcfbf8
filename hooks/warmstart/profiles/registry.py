"""Look up profiles by name. Hot path.

Profiles that come with warmstart are modules, loaded only when needed. A site's own, and `files`, are
`DefinedProfile`s of its policy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from warmstart.errors import PolicyError
from warmstart.profiles.contract import Profile
from warmstart.profiles.defined import DefinedProfile, profile_of

_MODULES = {
    "cuda-computecache": "warmstart.profiles.cuda_computecache",
    "deepgemm": "warmstart.profiles.deepgemm",
    "flashinfer": "warmstart.profiles.flashinfer",
    "inductor": "warmstart.profiles.inductor",
    "jax": "warmstart.profiles.jax",
    "numba": "warmstart.profiles.numba",
    "sglang": "warmstart.profiles.sglang",
    "tilelang": "warmstart.profiles.tilelang",
    "torch-extensions": "warmstart.profiles.torch_extensions",
    "triton": "warmstart.profiles.triton",
    "trt-rtx": "warmstart.profiles.trt_rtx",
    "vllm": "warmstart.profiles.vllm",
}


class ProfileUnknown(PolicyError):
    """No profile has this name. The policy loader refuses such names, so it is from a record or an older policy."""

    code = "profile-unknown"
    template = "there is no profile {name}; there are: {known}"
    hint = "correct `profiles` in the policy, or install the release that has this profile"


def names(defined: Sequence[DefinedProfile] = ()) -> list[str]:
    """Return the names of all profiles, sorted. `defined` are the policy's own profiles."""
    return sorted({*_MODULES, *(profile.name for profile in defined)})


def get(name: str, defined: Sequence[DefinedProfile] = ()) -> Profile:
    """Return the profile `name`; those that come with warmstart win. Raises `ProfileUnknown` if there is none."""
    module = _MODULES.get(name)
    if module is None:
        for profile in defined:
            if profile.name == name:
                return profile_of(profile)
        raise ProfileUnknown(name=name, known=", ".join(names(defined)))
    __import__(module)
    found = sys.modules[module].PROFILE
    assert isinstance(found, Profile)
    return found
