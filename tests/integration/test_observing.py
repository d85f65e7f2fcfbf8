"""The same jobs without warmstart, observed, and enforced: what observing changes, and what it foretells."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.accounts import ALICE, BOB
from tests.cluster.site import Site
from tests.support.shell_profiles import profiles
from warmstart.audit.runs import runs
from warmstart.wings.forecast.prediction import Hits, Predicted, Prediction

POLICY = """\
mode: {mode}
{profiles}
rules:
  - {{name: everyone, match: {{partition: main}}, profiles: [alpha], env: {{FROM_POLICY: "yes"}}}}
  - {{name: ports, match: {{partition: main}}, rendezvous: {{ports: 20000-20999, shared_nodes: true}}}}
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
        "warmstart: keep",
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


def differences(ran: Ran, other: Ran) -> dict[int, set[str]]:
    """Return the lines that only one of two runs of a job printed, by the job's number; none if the order differs."""
    pairs = enumerate(zip(ran.outputs, other.outputs, strict=True))
    return {number: {*one.splitlines()} ^ {*two.splitlines()} for number, (one, two) in pairs if one != two}


def files(*places: Path) -> dict[str, int]:
    """Return every path below some directories, with its size if it is a file."""
    found = {}
    for place in places:
        for directory, _, names in os.walk(place):
            found[directory] = -1
            found |= {f"{directory}/{name}": os.lstat(f"{directory}/{name}").st_size for name in names}
    return found


def counted(site: Site, ran: Ran) -> Predicted:
    """Return what the hooks of these jobs did, as a prediction counts it."""
    events: Counter[str] = Counter()
    starts: Counter[str] = Counter()
    warm: Counter[str] = Counter()
    for line in site.audit():
        if line.get("job_id") not in ran.ids:
            continue
        events[line["event"]] += 1
        if line["event"] == "cache.seeded" and line["entries"]:
            warm[line["profile"]] += 1
        if line["event"] == "step.finished" and line["step"] == "environment":
            for name in ("alpha", "beta"):
                starts[name] += f"{name.upper()}_CACHE" in line["variables"]
    return Predicted(
        jobs=len(ran.ids),
        refused=events["job.refused"],
        drains=events["node.drained"],
        imports=events["image.imported"],
        avoided=events["image.reused"] + events["image.waited"] - events["image.imported"],  # imports are apart
        saved_s=0.0,
        saves_unknown=0,
        profiles=tuple(Hits(name, warm[name], starts[name] - warm[name]) for name in sorted(starts)),
    )


def close(predicted: Predicted, done: Predicted, share: float) -> bool:
    """Return whether no count is off by more than this share."""
    pairs = [(predicted.imports, done.imports), (predicted.avoided, done.avoided), (predicted.refused, done.refused)]
    for said, hits in zip(predicted.profiles, done.profiles, strict=True):
        assert said.name == hits.name
        pairs += [(said.warm, hits.warm), (said.warm + said.cold, hits.warm + hits.cold)]
    return all(abs(one - other) <= share * other for one, other in pairs)


@pytest.mark.parametrize("number", [12, pytest.param(200, marks=pytest.mark.sweep)])
def test_observing_changes_nothing_and_foretells_all(site: Site, fresh_image: Callable[[], str], number: int) -> None:
    """Environment, files and mounts of every job are those without warmstart; enforcing then does what was said."""
    jobs = mix(number, [fresh_image() for _ in range(3)])
    # Few jobs: every count is exact. Many at once: which of them come too early for the cache is chance.
    together = (
        waves(jobs) if number < AT_ONCE else [range(number)[at : at + AT_ONCE] for at in range(0, number, AT_ONCE)]
    )
    store = site.new_store(site.cluster.base / f"store-observe-{number}")
    site.write_policy(POLICY.format(mode="observe", profiles=PROFILES), store=str(store))
    try:
        (site.etc / "off").touch()
        without = run(site, jobs, together)
    finally:
        (site.etc / "off").unlink()
    before = files(store, site.workspace, site.constant)
    observed = run(site, jobs, together)
    assert differences(observed, without) == {}
    assert files(store, site.workspace, site.constant) == before
    prediction = Prediction()
    for one in runs(line for line in site.audit() if line.get("job_id") in observed.ids):
        prediction.add(one)
    predicted = prediction.result()
    site.write_policy(POLICY.format(mode="enforce", profiles=PROFILES), store=str(store))
    enforced = run(site, jobs, together)
    done = counted(site, enforced)
    print(predicted, done, sep="\n")  # noqa: T201 - pytest shows it on failure, and with -rP
    assert enforced.outputs != without.outputs
    assert (predicted.drains, done.drains) == (0, 0)
    assert min(done.imports, done.avoided, done.refused, *(hits.warm for hits in done.profiles)) > 0
    assert close(predicted, done, 0.1 if number > AT_ONCE else 0.0), (predicted, done)
