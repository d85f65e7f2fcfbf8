"""Choose the importer that the policy names. Hot path: the importer's own module is loaded only when it is needed.

An importer is a module of `images.importers` with `PROGRAMS`, the absolute paths of the programs that it needs, and
`make(identity, rules, mount_point, login) -> Importer`.
"""

from __future__ import annotations

import os
import sys

from warmstart.host.identity import Identity
from warmstart.lean import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from warmstart.images.credentials import Login
    from warmstart.images.importers.base import Importer
    from warmstart.policy.compiled import Images

ENROOT = "/usr/bin/enroot"


class Kind(NamedTuple):
    """What hooks know of an importer without its module.

    `recipe` goes up with every change of options that changes the bytes of an image. A new release of the importer's
    programs does not count, because a job finds the same files in the image. `keeps_layers`: on the node, between
    imports (layers.py).
    """

    recipe: int
    keeps_layers: bool = False


IMPORTERS = {"enroot": Kind(recipe=1), "oci": Kind(recipe=2, keeps_layers=True)}


def choose(rules: Images, identity: Identity, mount_point: str, login: Login | None = None) -> Importer:
    """Return the policy's importer, whose programs run as `identity` ("auto": enroot if it is installed, else oci).

    `mount_point` is where containers see a job's cache; `login` is the site's own at one registry. Raises `ValueError`
    for a name that the policy's schema does not have.
    """
    name = _load(rules.importer)
    importer: Importer = sys.modules[name].make(identity, rules, mount_point, login)
    return importer


def programs(name: str) -> tuple[str, ...]:
    """Return the absolute paths of the programs that an importer needs."""
    paths: tuple[str, ...] = sys.modules[_load(name)].PROGRAMS
    return paths


def recipe(name: str) -> str:
    """Return the part of an image's name that stands for the importer and its recipe: `oci1`."""
    installed = _installed(name)
    return f"{installed}{IMPORTERS[installed].recipe}"


def keeps_layers(name: str) -> bool:
    """Return whether an importer keeps layers on the node."""
    return IMPORTERS[_installed(name)].keeps_layers


def shares_layers(kind: str) -> bool:
    """Return whether images of a kind (MACHINE.RECIPE) share layers that their importer keeps on the node."""
    importer = IMPORTERS.get(kind.rpartition(".")[2].rstrip("0123456789"))
    return importer is not None and importer.keeps_layers


def _installed(name: str) -> str:
    if name == "auto":
        return "enroot" if os.path.exists(ENROOT) else "oci"
    return name


def _load(name: str) -> str:
    """Import an importer's module and return the module's name."""
    installed = _installed(name)
    if installed not in IMPORTERS:
        raise ValueError(f"no importer is called {installed!r}")
    module = f"warmstart.images.importers.{installed}"
    __import__(module)
    return module
