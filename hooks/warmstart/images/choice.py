"""Choose the importer that the policy names. Hot path: the importer's own module is loaded only when it is needed."""

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
    """Return the policy's importer, whose programs run as `identity` ("auto": enroot if it is installed, else oci).

    `login` is the site's own at one registry. Raises `ValueError` for a name that the policy's schema does not have.
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
    """Return the part of an image's name that stands for the importer and the version of its options.

    The number goes up with every change of options that changes the bytes of an image. A new release of the importer's
    programs does not count, because a job finds the same files in the image.
    """
    return f"{_installed(name)}1"


def is_per_machine(recipe: str) -> bool:
    """Return whether this importer resolves a tag to a digest that depends on the CPU of the node."""
    return recipe.startswith("enroot")


def _installed(name: str) -> str:
    if name == "auto":
        return "enroot" if os.path.exists(ENROOT) else "oci"
    return name
