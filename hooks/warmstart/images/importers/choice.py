"""Which importer the policy names. Hot path: the importer itself is loaded when it is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from warmstart.host.worker import Identity

if TYPE_CHECKING:
    from warmstart.images.credentials import Login
    from warmstart.images.importers.contract import Importer

ENROOT = "/usr/bin/enroot"


def choose(name: str, identity: Identity, insecure: tuple[str, ...], login: Login | None = None) -> Importer:
    """Return the importer `name` ("enroot", "oci"; "auto": enroot where it is installed) for an account.

    `insecure`: registries that are reached without TLS. `login`: the site's own, for one registry.
    `ValueError` for a name that the policy would refuse.
    """
    name = _installed(name)
    if name == "enroot":
        from warmstart.images.importers.enroot import Enroot

        return Enroot(identity, insecure, ENROOT, login)
    if name == "oci":
        from warmstart.images.importers.oci import Oci

        return Oci(identity, insecure, login)
    raise ValueError(f"no importer is called {name!r}")


def recipe(name: str) -> str:
    """Return what stands in an image's name for what that importer does to the bytes.

    The number goes up with every change of the options that change the bytes; a release of the importer's
    programs that packs differently does not change what a job finds in the image, and does not count.
    """
    return f"{_installed(name)}1"


def _installed(name: str) -> str:
    if name == "auto":
        return "enroot" if os.path.exists(ENROOT) else "oci"
    return name
