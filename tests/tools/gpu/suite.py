"""One tool's three jobs, and what is wrong with what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.tools.gpu.place import JobFailed, Place, Seen
from tests.tools.gpu.tools import Tool

COLD, WARM, MOVED = STAGES = ("cold", "warm", "moved")


class Tried(NamedTuple):
    """What was seen of a tool."""

    tool: Tool
    jobs: Mapping[str, Seen]  # by stage, without those that failed or were not run
    problems: list[str]

    def kept(self) -> dict[str, Any]:
        """Return it as a line of results has it."""
        jobs = {stage: seen._asdict() for stage, seen in self.jobs.items()}
        return {"tool": self.tool.name, "profiles": self.tool.profiles, "jobs": jobs, "problems": self.problems}


def tried(place: Place, tool: Tool, *, shown: bool) -> Tried:
    """Run a tool's job cold, warm on another node, and warm at another path where its profiles claim that.

    `shown` is whether this machine can show the cache at the constant path. All nodes are this machine.
    """
    place.give(tool.profiles)
    jobs: dict[str, Seen] = {}
    stages = STAGES if tool.moves and shown else (COLD, WARM)
    for node, stage in enumerate(stages, 1):
        try:
            jobs[stage] = place.job(
                tool.program, f"n{node}", shown=shown and stage != MOVED, limit_s=float(tool.limit_s)
            )
        except JobFailed as error:
            return Tried(tool, jobs, [f"the {stage} job: {error}"])
        except Exception as error:  # noqa: BLE001 - the other tools are tried all the same
            return Tried(tool, jobs, [f"the suite, with the {stage} job: {error!r}"])
    return Tried(tool, jobs, problems(jobs))


def problems(jobs: Mapping[str, Seen]) -> list[str]:
    """Return what is wrong with the jobs of a tool, the cold one among them."""
    cold = jobs[COLD]
    found = [] if cold.harvested else ["nothing was harvested"]
    if cold.report["misses"] == 0:
        found.append("the cold job missed nothing, so it shows nothing")
    for stage in (WARM, MOVED):
        if (seen := jobs.get(stage)) is None:
            continue
        if not seen.seeded:
            found.append(f"the {stage} job was not seeded")
        if seen.report["misses"]:
            found.append(f"the {stage} job missed {seen.report['misses']}")
        if seen.report["misses"] is None and seen.harvested:
            found.append(f"the {stage} job made new entries: {sum(seen.harvested.values())}")
        if seen.report["result"] != cold.report["result"]:
            found.append(f"the {stage} job computed something else than the cold one")
    return found
