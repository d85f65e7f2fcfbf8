"""The profiles that exist, by name; a module is loaded only for a job that has its profile.

Hot path.
"""

from __future__ import annotations

import sys

from warmstart.errors import PolicyError
from warmstart.profiles.contract import Profile

_MODULES = {
    "deepgemm": "warmstart.profiles.deepgemm",
    "flashinfer": "warmstart.profiles.flashinfer",
    "inductor": "warmstart.profiles.inductor",
    "jax": "warmstart.profiles.jax",
    "numba": "warmstart.profiles.numba",
    "sglang": "warmstart.profiles.sglang",
    "tilelang": "warmstart.profiles.tilelang",
    "torch-extensions": "warmstart.profiles.torch_extensions",
    "triton": "warmstart.profiles.triton",
    "vllm": "warmstart.profiles.vllm",
}


class ProfileUnknown(PolicyError):
    """A name that no profile of this release has; the policy loader refuses it earlier."""

    code = "profile-unknown"
    template = "there is no profile {name}; this release has: {known}"
    hint = "correct `profiles` in the policy, or install the release that has this profile"


def names() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(_MODULES)


def get(name: str) -> Profile:
    """Return the profile `name`; `ProfileUnknown` where there is none."""
    module = _MODULES.get(name)
    if module is None:
        raise ProfileUnknown(name=name, known=", ".join(names()))
    __import__(module)
    profile = sys.modules[module].PROFILE
    assert isinstance(profile, Profile)
    return profile
