"""The profiles that exist, by name; a module is loaded only for a job that has its profile.

Those that come with warmstart are modules; a site's own are `DefinedProfile`s of its policy, `files` among them.

Hot path.
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
    """A name that no profile of this release has; the policy loader refuses it earlier."""

    code = "profile-unknown"
    template = "there is no profile {name}; there are: {known}"
    hint = "correct `profiles` in the policy, or install the release that has this profile"


def names(defined: Sequence[DefinedProfile] = ()) -> list[str]:
    """Return the names of all profiles, sorted; `defined` are those of the policy."""
    return sorted({*_MODULES, *(profile.name for profile in defined)})


def get(name: str, defined: Sequence[DefinedProfile] = ()) -> Profile:
    """Return the profile `name`, one that comes with warmstart first; `ProfileUnknown` where there is none."""
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
