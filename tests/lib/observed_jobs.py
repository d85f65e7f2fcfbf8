"""Jobs of all kinds under a policy that observes, or enforces, and what they print."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
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
PROFILES = profiles(alpha="*.bin", beta="*.bin")
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
AT_ONCE = 25
# Of the job and not of warmstart.
VOLATILE = re.compile(
    r"SLURM_(JOB_?ID|JOB_SLUID|JOB_START_TIME|JOB_END_TIME|TASK_PID|NODELIST|JOB_NODELIST|TOPOLOGY_ADDR|ARRAY_\w+|GTIDS)|_|SLURMD_NODENAME|HOSTNAME"
)


class Kind(NamedTuple):
    """One job: its user, its first image, sbatch's options."""

    user: str
    image: str
    options: list[str]


class Ran(NamedTuple):
    """Jobs that were run: what each printed, and their ids."""

    outputs: list[str]
    ids: set[int]


def mix(number: int, images: Sequence[str]) -> list[Kind]:
    """Return jobs of all kinds, each kind as often as its share of `number`."""
    a, b, c = images
    asked = (
        "",
        "warmstart: profiles=beta",
        f"warmstart: image={a}",
        "",
        f"warmstart: image={a} profiles=beta",
        f"warmstart: image={b}",
        "warmstart: refresh",
        f"warmstart: image={b} image={c}",
        "warmstart: fresh",
        "warmstart: profiles=nope",
    )
    kinds = []
    for index in range(number):
        comment = asked[index % len(asked)]
        options = [f"--comment={comment}"] if comment else []
        several = index % 8 == 3
        options += ["--nodes=2", "--nodelist=n1,n2"] if several else [f"--nodelist=n{index % 4 + 1}"]
        options += ["--partition=ci"] if index % 11 == 6 else []
        kinds.append(Kind(BOB if index % 4 == 2 else ALICE, comment.partition("image=")[2].partition(" ")[0], options))
    return kinds


def waves(jobs: Sequence[Kind]) -> list[list[int]]:
    """Return the jobs' numbers in waves, so that no two jobs of a wave could warm each other's caches."""
    found: list[list[int]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for number, kind in enumerate(jobs):
        wave = seen[kind.user, kind.image]
        seen[kind.user, kind.image] += 1
        found += [[]] if wave == len(found) else []
        found[wave].append(number)
    return found


def run(site: Site, jobs: Sequence[Kind], together: Sequence[Sequence[int]]) -> Ran:
    """Run the jobs, those together whose numbers are together."""
    base = site.cluster.base
    script = SCRIPT.format(base=base, workspace=site.workspace, constant=site.constant)
    ids = dict.fromkeys(range(len(jobs)), 0)
    for numbers in together:
        for number in numbers:
            ids[number] = site.cluster.submit(script, jobs[number].user, *jobs[number].options)
        site.cluster.wait_empty(900)
    outputs = []
    for kind, job in zip(jobs, ids.values(), strict=True):
        path = site.cluster.account(kind.user).home / f"slurm-{job}.out"
        outputs.append(_normal(path.read_text()) if path.is_file() else "")
    return Ran(outputs, set(ids.values()))


def _normal(output: str) -> str:
    """Return what a job printed, without what differs between any two jobs."""
    lines = output.splitlines()
    return "\n".join(line for line in lines if not VOLATILE.fullmatch(line.partition("=")[0]))


def together(jobs: Sequence[Kind]) -> list[list[int]]:
    """Return which jobs run together: of few, none that could warm each other's caches; of many, `AT_ONCE`."""
    number = len(jobs)
    return (
        waves(jobs) if number < AT_ONCE else [[*range(number)[at : at + AT_ONCE]] for at in range(0, number, AT_ONCE)]
    )
