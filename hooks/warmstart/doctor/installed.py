"""The Slurm that doctor judges, of which a node may have several: the policy's `paths.scontrol` tells which.

Its slurmd is the best witness of the release: it loads the plugins and runs the hooks, and `slurmd -V` reads no file
and asks nobody. scontrol does for a node without it, or where it is a wrapper elsewhere: `scontrol -V` needs no
slurmctld, but a slurm.conf without mistakes and its plugins (seen on 22.05, 26.05). slurmctld may be of another
release, and tells paths of its own host (`scontrol show config`), so it is asked only for a slurm.conf that is in none
of the usual places.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import QUERY_S

PLUGINS = ("lib64/slurm", "lib/slurm", "lib/*/slurm-wlm", "lib/*/slurm")  # of Slurm's build, EL and Debian


def prefix(scontrol: str) -> str:
    """Return the directory that Slurm is installed under: /opt/slurm/25.11 of a link /opt/slurm/current."""
    return os.path.dirname(os.path.dirname(os.path.realpath(scontrol)))


def release(scontrol: str, slurm_conf: str) -> tuple[int, ...] | None:
    """Return the release, (24, 11, 5) for example; None if neither slurmd nor scontrol tells it."""
    for program in (f"{prefix(scontrol)}/sbin/slurmd", scontrol):
        with suppress(WarmstartError, OSError):  # also a missing program
            if text := commands.release(Access(program, slurm_conf), after(QUERY_S)):
                return tuple(map(int, text.split(".")))
    return None


def plugin_places(scontrol: str, plugin_dir: str) -> list[str]:
    """Return the directories of Slurm's plugins: PluginDir's, else those under its prefix; [] if none is known."""
    if plugin_dir or not scontrol:
        return plugin_dir.split(":") if plugin_dir else []
    return [place for pattern in PLUGINS for place in glob.glob(f"{glob.escape(prefix(scontrol))}/{pattern}")]


def slurm_conf(scontrol: str) -> str:
    """Return the path of the running slurmctld's slurm.conf, "" without an answer."""
    with suppress(WarmstartError, OSError, ValueError):
        return commands.slurm_conf(Access(scontrol), after(QUERY_S))
    return ""
