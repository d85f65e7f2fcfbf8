"""The same jobs without warmstart, observed, and enforced: what observing changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.lib.accounts import ALICE, BOB
from tests.lib.shell_profiles import profiles
from tests.lib.site import Site

POLICY = """\
mode: {mode}
{profiles}
rules:
  - {{name: everyone, match: {{partition: main}}, profiles: [alpha], env: {{FROM_POLICY: "yes"}}}}
"""
# What a job sees of the node, then what it does: it fills the caches that it was given.
SCRIPT = """\
#!/bin/sh
env | LC_ALL=C sort
echo "--- mounts"; grep -o " {base}[^ ]* .*" /proc/self/mountinfo
echo "--- files"; ls -AR {workspace} {constant} 2>/dev/null
ls -Ad /var/tmp/warmstart-*-$(id -u)-* /tmp/.warmstart* 2>/dev/null
echo "--- steps"
srun --ntasks-per-node=1 sh -c 'echo "$(env | grep -c WARMSTART) ${{TMPDIR-unset}} ${{FROM_POLICY-unset}}"' | sort
for directory in "$ALPHA_CACHE" "$BETA_CACHE"; do
    [ ! -d "$directory" ] || echo code >"$directory/entry.bin"
done
"""
# Of the job and not of warmstart.
VOLATILE = re.compile(
    r"SLURM_(JOB_?ID|JOB_SLUID|JOB_START_TIME|JOB_END_TIME|TASK_PID|NODELIST|JOB_NODELIST|TOPOLOGY_ADDR|ARRAY_\w+|GTIDS)|_|SLURMD_NODENAME|HOSTNAME"
)


class Kind(NamedTuple):
    """One job: what it asks for, its user and further options."""

    asks: str
    user: str = ALICE
    options: tuple[str, ...] = ("--nodelist=n1",)


TWO_NODES = ("--nodes=2", "--nodelist=n1,n2")
KINDS = (
    Kind(""),
    Kind("profiles=beta", BOB, ("--nodelist=n2",)),
    Kind("image={a}", BOB, ("--nodelist=n3",)),
    Kind("", ALICE, TWO_NODES),
    Kind("image={a} profiles=beta", ALICE, TWO_NODES),
    Kind("refresh", ALICE, ("--nodelist=n3", "--partition=ci")),
    Kind("image={b} image={a}", ALICE, ("--nodelist=n4",)),
    Kind("fresh", BOB, ("--nodelist=n4",)),
    Kind("profiles=nope", ALICE, ("--nodelist=n2",)),
)


def run(site: Site, images: dict[str, str], *kinds: Kind) -> list[str]:
    """Run jobs at once; return what they printed, without what differs between any two jobs."""
    script = SCRIPT.format(base=site.cluster.base, workspace=site.workspace, constant=site.constant)
    jobs = []
    for kind in kinds:
        asked = [f"--comment=warmstart: {kind.asks.format(**images)}"] if kind.asks else []
        jobs.append(site.cluster.submit(script, kind.user, *asked, *kind.options))
    outputs = [site.finish(job).output.splitlines() for job in jobs]
    return ["\n".join(line for line in lines if not VOLATILE.fullmatch(line.partition("=")[0])) for lines in outputs]


def files(*places: Path) -> dict[str, int]:
    """Return every path below some directories, with its size if it is a file."""
    found = {}
    for place in places:
        for directory, _, names in os.walk(place):
            found[directory] = -1
            found |= {f"{directory}/{name}": os.lstat(f"{directory}/{name}").st_size for name in names}
    return found


def test_observing_changes_nothing(site: Site, fresh_image: Callable[[], str]) -> None:
    """Environment, files and mounts of every job are those without warmstart; enforcing is seen."""
    images = {"a": fresh_image(), "b": fresh_image()}
    store = site.new_store(site.cluster.base / "store-observing")
    names = profiles(alpha="*.bin", beta="*.bin")
    site.write_policy(POLICY.format(mode="observe", profiles=names), store=str(store))
    off = site.etc / "off"
    off.touch()
    try:
        without = run(site, images, *KINDS)
    finally:
        off.unlink()
    before = files(store, site.workspace, site.constant)
    assert run(site, images, *KINDS) == without
    assert files(store, site.workspace, site.constant) == before
    site.write_policy(POLICY.format(mode="enforce", profiles=names), store=str(store))
    assert run(site, images, KINDS[0]) != without[:1]
