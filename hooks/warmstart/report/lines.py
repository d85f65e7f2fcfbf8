"""Last lines, read (docs/reference/audit.md): what one run of a program did for one job on one node.

A value that is missing, or of another type, is empty: logs outlive releases, and some are written by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from warmstart.audit import values
from warmstart.audit.line import HARVEST_FINISHED, HOOK_FINISHED, HOOK_STARTED, Line, timestamp

PROLOG = "prolog"
IMPORTED = "imported"
KILLED, UNFINISHED = "killed", "has not finished"  # outcomes of programs that wrote no last line
LONGEST_S = 600.0  # a hook that wrote no last line for so long was killed

Item = Mapping[str, object]  # an object in a line
_JobOfNode = tuple[str, str, int]  # cluster, node, job
_Run = tuple[str, str]  # hook, run id


class Hook(NamedTuple):
    """One run of a program, from its last line; from its first one, if it has written no last one."""

    line: Line  # for what only the story or the summary has: asked, rules, steps, remarks, …
    name: str
    node: str
    job: int  # 0: of no job
    user: str
    began: str  # `ts`
    seconds: float
    outcome: str
    head: bool  # whether a job began with it
    images: Sequence[Item]
    starts: list[tuple[str, Item]]  # how caches began, by profile
    harvests: list[tuple[str, Item]]  # what came of them
    failures: Sequence[Item]

    @property
    def done_by(self) -> str:
        """Who did this for another job, "" of a program that did it for its own."""
        doer = values.mapping(self.line, "done_by")
        job = values.count(doer, "job_id")
        return f"{values.text(doer, 'hook')} of job {job}" if job else values.text(doer, "hook")


class Hooks:
    """Pairs first and last lines of hooks, in the order of a log."""

    def __init__(self, begun: Iterable[Line] = ()) -> None:
        """Begin with first lines whose hooks had not finished when reading ended (`begun`)."""
        self._begun: dict[_JobOfNode, dict[_Run, Line]] = {}
        for line in begun:
            self._await(line)

    @property
    def begun(self) -> list[Line]:
        """First lines of hooks that have not finished."""
        return [line for runs in self._begun.values() for line in runs.values()]

    def add(self, line: Line) -> Iterator[Hook]:
        """Yield what is known to be over by this line."""
        event = line.get("event")
        if event == HOOK_STARTED and values.count(line, "job_id"):
            for other in [*self._begun.get(_job_of_node(line), {}).values()]:
                if other.get("hook") != line.get("hook"):  # a job's prolog and epilog do not run at once on a node
                    yield hook_of(self._over(other), KILLED)
            self._await(line)
        elif event == HOOK_FINISHED:
            yield hook_of(line, values.text(line, "outcome") or UNFINISHED, values.text(self._over(line), "ts"))
        elif event == HARVEST_FINISHED:
            yield hook_of(line, values.text(line, "outcome"))

    def killed(self, now: float) -> Iterator[Hook]:
        """Yield what has written no last line for `LONGEST_S`; it is not awaited any more."""
        before = timestamp(now - LONGEST_S)
        for line in self.begun:
            if values.text(line, "ts") < before:
                yield hook_of(self._over(line), KILLED)

    def _await(self, line: Line) -> None:
        self._begun.setdefault(_job_of_node(line), {})[_run_of(line)] = line

    def _over(self, line: Line) -> Line:
        """Await no last line of this run any more; return its first one, empty where that is not known."""
        runs = self._begun.get(job := _job_of_node(line), {})
        first = runs.pop(_run_of(line), {})
        if not runs:
            self._begun.pop(job, None)
        return first


def hooks(lines: Iterable[Line], now: float) -> list[Hook]:
    """Return all runs of programs that a log has, of which the last ones may go on at `now`, in epoch seconds."""
    pairs = Hooks()
    over = [hook for line in lines for hook in pairs.add(line)]
    return [*over, *pairs.killed(now), *(hook_of(line, UNFINISHED) for line in pairs.begun)]


def hook_of(line: Line, outcome: str, began: str = "") -> Hook:
    """Return a run of a program by its last line, or its first; `began` is the time of the first one."""
    caches = values.mapping(line, "caches")
    items = [(name.partition("@")[0], values.mapping(caches, name)) for name in caches]
    return Hook(
        line=line,
        name=values.text(line, "hook"),
        node=values.text(line, "node"),
        job=values.count(line, "job_id"),
        user=values.text(line, "user"),
        began=began or values.text(line, "ts"),
        seconds=values.seconds(line, "duration_ms"),
        outcome=outcome,
        head=line.get("head") is True and line.get("observed") is not True,
        images=values.mappings(line, "images"),
        starts=[(name, item) for name, item in items if "warm" in item],
        harvests=[(name, item) for name, item in items if "warm" not in item],
        failures=values.mappings(line, "failures"),
    )


def act_failure(line: Line) -> Item | None:
    """Return the failure of an act that has a line of its own, None of one that did not fail. Its step is the event."""
    event = values.text(line, "event")
    return {**values.mapping(line, "error"), "step": event} if event.endswith("failed") else None


def what_failed(failure: Item) -> str:
    """Return by what a failure is counted: what it cost, `refused` or `drained`, else its step."""
    return values.text(failure, "degree") or values.text(failure, "step")


def import_s(image: Item) -> float:
    """Return how long an import took, without waiting for others, by an item of `images` or an `image.imported`."""
    took = values.seconds(image, "ms") or values.seconds(image, "duration_ms")
    return max(took - values.seconds(image, "waited_ms"), 0.0)


def why_cold(start: Item) -> tuple[str, str]:
    """Return why a cache began cold, and the details; nothing of a warm one."""
    reason, _, details = (values.text(start, "cold") or "unknown").partition(": ")
    return ("", "") if start.get("warm") is True else (reason, details)


def _job_of_node(line: Line) -> _JobOfNode:
    return values.text(line, "cluster"), values.text(line, "node"), values.count(line, "job_id")


def _run_of(line: Line) -> _Run:
    return values.text(line, "hook"), values.text(line, "run_id")
