"""Choose the importer that the policy names. Hot path: the importer's own module is loaded only when it is needed.

An importer is a module of `images.importers` with `PROGRAMS`, the absolute paths of the programs that it needs, and
`make(identity, rules, mount_point, login) -> Importer`.
"""

from __future__ import annotations

import os
import sys

from warmstart.host.identity import Identity
from warmstart.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from warmstart.images.credentials import Login
    from warmstart.images.importers.base import Importer
    from warmstart.policy.keys import Images

ENROOT = "/usr/bin/enroot"
UMOCI = "/usr/bin/umoci"  # the only program of `oci` that `enroot` does without


# Importers, and the numbers of their recipes. A number goes up with every change of options that changes the bytes of
# an image. A new release of the importer's programs does not count: a job finds the same files in the image.
IMPORTERS = {"enroot": 1, "oci": 2}


def choose(rules: Images, identity: Identity, mount_point: str, login: Login | None = None) -> Importer:
    """Return the policy's importer, whose programs run as `identity` (`installed`).

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
    importer = installed(name)
    return f"{importer}{IMPORTERS[importer]}"


def installed(name: str) -> str:
    """Return the importer that a name of the policy means on this node: "auto" is oci, where its programs are."""
    if name == "auto":
        return "oci" if os.path.exists(UMOCI) or not os.path.exists(ENROOT) else "enroot"
    return name


def of_user(rules: Images) -> Images:
    """Return the rules for a user's own imports: "auto" is enroot, which has the user's credentials."""
    return rules._replace(importer="enroot") if rules.importer == "auto" and os.path.exists(ENROOT) else rules


def _load(name: str) -> str:
    """Import an importer's module and return the module's name."""
    importer = installed(name)
    if importer not in IMPORTERS:
        raise ValueError(f"no importer is called {importer!r}")
    module = f"warmstart.images.importers.{importer}"
    __import__(module)
    return module
