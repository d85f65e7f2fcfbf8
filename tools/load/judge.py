"""Whether jobs got what is theirs: judged by what jobs, Slurm and the store's files say, with no code of warmstart.

Jobs say which entries they saw, made and removed, each with its maker (`NAME USER JOB`, tools/load/jobs.py). The audit
is read as JSON.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tools.load.jobs import DONE

PROFILE = "alpha"
# What a message says, and the faults of which one must have happened for it to be true.
CAUSES = {
    r"No space left|is full|bytes are free": {"a full store", "a full state disk"},
    r"Read-only file system": {"a read-only store", "a store gone"},
    r"registry.*(answer|not reached|unreachable|timed out)": {"a silent registry", "a registry talking nonsense"},
    r"not connected": {"a store not connected"},
    r"process that was at work there died": {"a worker killed", "an import killed"},
}
INTERNAL = re.compile(r"Traceback|warmstart\.[a-z]+[.:]|Errno")


class Judged(NamedTuple):
    """The answer to one question: how many were looked at, and what is wrong with which of them."""

    what: str
    of: int
    wrong: list[str]


class Said(NamedTuple):
    """What a job said of entries, each as `NAME USER JOB`."""

    saw: frozenset[str]
    made: frozenset[str]
    removed: frozenset[str]
    is_whole: bool = False  # the job came to its end
    on_nodes: Mapping[str, frozenset[str]] = {}  # of several: what each of them showed at first

    @classmethod
    def of(cls, output: str) -> Said:
        """Read a job's output."""
        lines = [line.partition(" ") for line in output.splitlines()]
        saw, made, removed = (
            frozenset(rest for verb, _, rest in lines if verb == wanted) for wanted in ("saw", "made", "removed")
        )
        nodes: dict[str, set[str]] = {}
        for verb, _, rest in lines:
            if verb == "node":
                node, _, entry = rest.partition(" ")
                nodes.setdefault(node, set()).update([entry] if entry else [])
        on_nodes = {node: frozenset(entries) for node, entries in nodes.items()}
        return cls(saw, made, removed, output.endswith(f"{DONE}\n"), on_nodes)


class Witness(NamedTuple):
    """One job as the cluster knows it."""

    user: str
    uid: int
    began: float  # the last start of its prolog, time.time()
    said: Said


class Event(NamedTuple):
    """One line of the audit log."""

    name: str
    at: float  # time.time()
    job: int
    fields: Mapping[str, object]


def events(lines: Iterable[Mapping[str, object]]) -> list[Event]:
    """Return the audit's events, oldest first."""
    found = []
    for fields in lines:
        job = fields.get("job_id")
        at = _seconds(str(fields["ts"]))
        found.append(Event(str(fields["event"]), at, job if isinstance(job, int) else 0, fields))
    return sorted(found, key=lambda event: event.at)


def caches(event: Event) -> list[Mapping[str, object]]:
    """Return what a last line says of caches, each with its profile."""
    found = event.fields.get("caches")
    named = found.items() if isinstance(found, dict) else ()
    return [{**cache, "profile": name.partition("@")[0]} for name, cache in named]


def published(event: Event) -> list[Mapping[str, object]]:
    """Return those of which a bundle was published; what nodes hand in has no name here."""
    return [cache for cache in caches(event) if "bundle" in cache and "warm" not in cache]


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def judged(seen: Sequence[Event], jobs: Mapping[int, Witness], store: Path, shared: str) -> list[Judged]:
    """Judge what jobs saw, and what was published; entries of the user `shared` are for all."""
    saw = sum(len(job.said.saw) for job in jobs.values())
    bundles = sum(len(published(event)) for event in seen)
    several = sum(len(job.said.on_nodes) > 1 for job in jobs.values())
    return [
        Judged("jobs on several nodes were warm on all of them alike, or on none", several, half_warm(seen, jobs)),
        Judged("entries that jobs saw were the user's own or shared ones", saw, strangers(jobs, shared)),
        Judged("published bundles have the name of who made them", bundles, wrong_producers(seen, jobs, store)),
    ]


def half_warm(seen: Iterable[Event], jobs: Mapping[int, Witness]) -> list[str]:
    """Return the jobs of which a node showed other entries than another one.

    A node that cannot read the store after its vote is cold alone, and its prolog says that it failed.
    """
    failed: dict[int, set[str]] = {}
    for event in seen:
        if event.name == "hook.finished" and event.fields.get("hook") == "prolog":
            nodes, node = failed.setdefault(event.job, set()), str(event.fields.get("node"))
            steps = [failure.get("step") for failure in _dicts(event.fields.get("failures"))]
            nodes.add(node) if "seed" in steps else nodes.discard(node)
    found = []
    for number, job in sorted(jobs.items()):
        shown = {node: names for node, names in job.said.on_nodes.items() if node not in failed.get(number, ())}
        if len({*shown.values()}) > 1:
            found.append(
                f"job {number} was half warm: {', '.join(f'{n} {sorted(e)}' for n, e in sorted(shown.items()))}"
            )
    return found


def _dicts(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def wrong_producers(seen: Iterable[Event], jobs: Mapping[int, Witness], store: Path) -> list[str]:
    """Return the published bundles whose line does not name the job that made them.

    The witness is the bundle itself: each of its entries says who made it.
    """
    found = []
    for event, cache in [(each, cache) for each in seen for cache in published(each)]:
        bundle, said = cache["bundle"], (event.fields.get("user"), event.fields.get("uid"))
        known = jobs.get(event.job)
        if known is None or said != (known.user, known.uid):
            found.append(f"bundle {bundle}: published for {said} of job {event.job}, which is {known and known.user}'s")
            continue
        for path in store.glob(f"caches/*/*/*/{bundle}.sqsh"):
            makers = {maker.split(" ", 1)[1] for maker in _makers(path)}
            if makers - {f"{known.user} {event.job}"}:
                found.append(f"bundle {bundle}: published for job {event.job}, made by {sorted(makers)}")
    return found


def _makers(bundle: Path) -> list[str]:
    """Return the second line of each entry in a bundle; none of a damaged one."""
    with tempfile.TemporaryDirectory(dir=bundle.parents[4]) as directory:
        target = f"{directory}/tree"
        done = subprocess.run(
            ["/usr/bin/unsquashfs", "-n", "-d", target, str(bundle)], capture_output=True, check=False
        )
        if done.returncode != 0:
            return []
        files = [path for path in Path(target).rglob("*") if path.is_file()]
        texts = [path.read_text(errors="replace").splitlines()[:2] for path in files]
        return [lines[1] for lines in texts if len(lines) == 2 and re.fullmatch(r"\S+ \S+ \d+", lines[1])]


def strangers(jobs: Mapping[int, Witness], shared: str) -> list[str]:
    """Return the entries of another user that a job saw, but for those of `shared`, whose entries a site may share."""
    return [
        f"job {number} of {job.user} saw {entry}"
        for number, job in sorted(jobs.items())
        for entry in sorted(job.said.saw)
        if entry.split()[1] not in (job.user, shared)
    ]


def untrue(output: str, faults: set[str]) -> str:
    """Return the line of a job's output that names a cause which was not there, or speaks of code; "" if none does."""
    for line in output.splitlines():
        if INTERNAL.search(line):
            return line
        for pattern, causes in CAUSES.items():
            if "warmstart" in line and re.search(pattern, line) and not causes & faults:
                return line
    return ""
