"""warmstart's units of systemd: where their files are, whether they are enabled, and which installation they run."""

from __future__ import annotations

import glob
import os
import re

from warmstart.host.detached import SYSTEMD
from warmstart.host.files import read_small
from warmstart.paths import Installation

UNITS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
LARGEST = 1 << 20


def files() -> list[str]:
    """Return the units' files and directories; of a name that stands in several places, the first one counts."""
    return [path for place in UNITS for path in sorted(glob.glob(f"{place}/warmstart*"))]


def scheduled(installation: Installation, unit: str, otherwise: str) -> str:
    """Return what to do so that a unit's work is done, or, where systemd does not run, `otherwise`."""
    if not os.path.isdir(SYSTEMD):
        return otherwise
    path = next((path for path in files() if os.path.basename(path) == unit), "")
    enable = f"`systemctl enable --now {unit}`"
    copy = f"`cp {installation.prefix}/share/warmstart/systemd/* {UNITS[0]}/`, `systemctl daemon-reload`, {enable}"
    if not path:
        return copy
    if os.path.realpath(path) == os.devnull:
        return f"it is masked: `systemctl unmask {unit}`, then {enable}"
    if other := _other(installation):
        return f"the units here are those of {other}: keep one installation; for this one {copy}"
    if any(glob.glob(f"{place}/*.wants/{unit}") for place in UNITS):
        return f"{unit} is enabled: `systemctl start {unit}`, and see what its units say (`journalctl -u 'warmstart*'`)"
    return enable


def _other(installation: Installation) -> str:
    """Return the prefix of another installation that the units run, "" if it is this one."""
    services = {os.path.basename(path): os.path.realpath(path) for path in reversed(files()) if ".service" in path}
    texts = [read_small(path, LARGEST).decode("utf-8", "replace") for path in services.values() if os.path.isfile(path)]
    found = re.findall(r"^Exec\w+=(\S*?)/(?:bin|libexec)/warmstart\b", "\n".join(texts), re.MULTILINE)
    return next((prefix for prefix in found if prefix != installation.prefix), "")
