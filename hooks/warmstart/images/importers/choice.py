"""Which importer the policy names. Hot path: the importer itself is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmstart.host.worker import Identity

if TYPE_CHECKING:
    from warmstart.images.importers.contract import Importer


def choose(name: str, identity: Identity, insecure: tuple[str, ...]) -> Importer:
    """Return the importer `name` ("oci", or "auto" for the best there is) for an account.

    `insecure`: registries that are reached without TLS. `ValueError` for a name that the policy would refuse.
    """
    if name not in ("auto", "oci"):
        raise ValueError(f"no importer is called {name!r}")
    from warmstart.images.importers.oci import Oci

    return Oci(identity, insecure)
