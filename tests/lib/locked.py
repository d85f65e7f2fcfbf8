"""What packaging/requirements/*.txt lock.

`python -m tests.lib.locked PYTHON NAME...` prints what they lock for that Python on this machine, as requirements
with hashes and without markers.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / "packaging" / "requirements"


class Target(NamedTuple):
    """A CPython (`3.13`) and a machine (`x86_64`), on Linux."""

    python: str
    machine: str

    def takes(self, requirement: Requirement) -> bool:
        """Return whether the requirement's marker holds there."""
        environment = {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }
        return requirement.marker is None or requirement.marker.evaluate(dict(environment))


class Pin(NamedTuple):
    """One entry of a file: a requirement and its hashes as pip's options (`--hash=sha256:…`)."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The package's normalized name."""
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """The version; empty if it is not exactly one."""
        operators = {each.operator: each.version for each in self.requirement.specifier}
        return operators.get("==", "") if len(operators) == 1 else ""


def locked(name: str) -> list[Pin]:
    """Return the entries of `NAME.txt`."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text().replace("\\\n", "").splitlines()
    entries = (line.split() for line in lines if line and not line.lstrip().startswith("#"))
    return [
        Pin(
            Requirement(" ".join(word for word in words if not word.startswith("--"))),
            tuple(word for word in words if word.startswith("--")),
        )
        for words in entries
    ]


def locked_for(name: str, target: Target) -> dict[str, Pin]:
    """Return what is locked for a target, by name. Raises ValueError if a package is locked twice."""
    pins = [pin for pin in locked(name) if target.takes(pin.requirement)]
    found = {pin.name: pin for pin in pins}
    if len(found) != len(pins):
        raise ValueError(f"{name}.txt locks a package twice for {target}")
    return found


def main(python: str, *names: str) -> None:
    """Write to stdout what the files lock for a Python on this machine."""
    target = Target(python, platform.machine())
    pins = {package: pin for name in names for package, pin in locked_for(name, target).items()}
    for package, pin in sorted(pins.items()):
        sys.stdout.write(" ".join((f"{package}=={pin.version}", *pin.hashes)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
