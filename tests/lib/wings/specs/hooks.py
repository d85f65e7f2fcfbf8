"""The hooks of slurmctld, for the sweeps of all hooks."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from tests.lib.wing_hooks import WingHooks
from warmstart.wings.specs.programs import epilog_slurmctld, prolog_slurmctld


def _make(base: Path) -> None:
    (base / "specs").mkdir()
    own = base / "var/lib/warmstart-slurmctld"
    own.mkdir(parents=True, mode=0o700)
    for directory in (base / "specs", own):
        os.chown(directory, *pwd.getpwnam("games")[2:4])


HOOKS = WingHooks(
    policy="slurmctld: {{user: games, spec_directory: {base}/specs}}\n",
    make=_make,
    acts={"prolog-slurmctld": prolog_slurmctld.main, "epilog-slurmctld": epilog_slurmctld.main},
    before=dict.fromkeys(("prolog", "epilog", "epilog-slurmctld"), "prolog-slurmctld"),
    over="epilog-slurmctld",
    part="specs",
)
