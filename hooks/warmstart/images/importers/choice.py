"""Which importer the policy names. Hot path: the importer itself is loaded when it is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from warmstart.host.identity import Identity

if TYPE_CHECKING:
    from warmstart.images.credentials import Login
    from warmstart.images.importers.base import Importer
    from warmstart.policy.compiled import Images

ENROOT = "/usr/bin/enroot"


def choose(rules: Images, identity: Identity, login: Login | None = None) -> Importer:
    """Return the policy's importer for an account ("auto": enroot where it is installed).

    `login`: the site's own, for one registry. `ValueError` for a name that the policy would refuse.
    """
    from warmstart.images.importers.egress import Reach

    name, reach = _installed(rules.importer), Reach(rules.hosts, rules.proxy)
    if name == "enroot":
        from warmstart.images.importers.enroot import Enroot

        return Enroot(identity, rules.insecure, ENROOT, login, reach)
    if name == "oci":
        from warmstart.images.importers.oci import Oci

        return Oci(identity, rules.insecure, login, reach)
    raise ValueError(f"no importer is called {name!r}")


def recipe(name: str) -> str:
    """Return what stands in an image's name for what that importer does to the bytes.

    The number goes up with every change of the options that change the bytes; a release of the importer's
    programs that packs differently does not change what a job finds in the image, and does not count.
    """
    return f"{_installed(name)}1"


def is_per_machine(made_by: str) -> bool:
    """Tell whether what a tag means to that recipe's importer depends on the CPU that it is asked on."""
    return made_by.startswith("enroot")


def _installed(name: str) -> str:
    if name == "auto":
        return "enroot" if os.path.exists(ENROOT) else "oci"
    return name
