"""docs/gpu.md, from the results of a run of the suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.tools.gpu.place import Seen
from tests.tools.gpu.suite import COLD, STAGES, Tried

DOCS = Path(__file__).resolve().parents[3] / "docs"
RESULTS, PAGE = DOCS / "results" / "gpu.json", DOCS / "gpu.md"
LOG = DOCS.parent / "build" / "gpu.log"
JSON = Mapping[str, Any]
HEAD = """\
# On a GPU

`make gpu` writes this page: each tool's job cold, warm under another node's name, and warm at another path where its
profile claims that ([how to run it](../tests/tools/gpu/README.md)). Seconds are of compiling and running once, in the
job; hits and misses are the tool's own counts, where it has them. Every warm job's result equals the cold one's, bit
for bit, unless the last column says otherwise.

"""
NOBODY = "Nobody has run it yet: what is said of GPU tools here was read in sources or tried without a GPU.\n"
COLUMNS = (
    "tool", "versions", "cold", "warm", "moved", "hits/misses: cold, warm, moved",
    "entries made, then seeded", "way", "rejected", "wrong",
)  # fmt: skip


class Files(NamedTuple):
    """Where a run leaves what it saw."""

    results: Path = RESULTS
    page: Path = PAGE
    log: Path = LOG

    @classmethod
    def below(cls, directory: Path) -> Files:
        """Return files of these names in a directory."""
        return cls(directory / RESULTS.name, directory / PAGE.name, directory / LOG.name)

    def write(self, found: JSON) -> None:
        """Keep the results and write the page."""
        for path, text in ((self.results, json.dumps(found, indent=1) + "\n"), (self.page, render(found))):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def results(machine: JSON, done: Sequence[Tried], missing: Mapping[str, str], before: JSON | None = None) -> JSON:
    """Return a run as it is kept: the machine, the tools, and those that were `missing` with what they lack.

    Of the run `before`, on a machine with the same GPU and driver, the tools stay that were not tried now.
    """
    tools = [
        {
            "tool": one.tool.title,
            "date": machine["date"],
            "profiles": list(one.tool.profiles),
            "jobs": {stage: _kept(seen) for stage, seen in one.jobs.items()},
            "problems": one.problems,
        }
        for one in done
    ]
    if before is not None and all(before[name] == machine[name] for name in ("gpu", "driver")):
        tried_now = {tool["tool"] for tool in tools}
        tools = [*(tool for tool in before["tools"] if tool["tool"] not in tried_now), *tools]
    known = {tool["tool"] for tool in tools}
    return {**machine, "tools": tools, "missing": {name: what for name, what in missing.items() if name not in known}}


def read(path: Path = RESULTS) -> JSON | None:
    """Return the results that are kept; None if nobody has run the suite."""
    return json.loads(path.read_text()) if path.exists() else None


def render(found: JSON | None) -> str:
    """Return the page."""
    if found is None:
        return HEAD + NOBODY
    ran = (
        f"{found['gpu']}, driver {found['driver']}, Linux {found['kernel']}, Python {found['python']}, {found['date']}."
    )
    rows = "".join(map(_row, found["tools"]))
    text = f"{HEAD}{ran}\n\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n{rows}"
    if found["missing"]:
        text += (
            "\nNot installed there: " + "; ".join(f"{tool} ({what})" for tool, what in found["missing"].items()) + ".\n"
        )
    return text


def _kept(seen: Seen) -> JSON:
    kept: JSON = {**seen._asdict(), **seen.report}
    return {name: value for name, value in kept.items() if name != "report"}


def _row(tool: JSON) -> str:
    jobs: Mapping[str, JSON] = tool["jobs"]
    versions = {f"{name} {version}" for job in jobs.values() for name, version in job["versions"].items()}
    rejected = {f"{reason}: {count}" for job in jobs.values() for reason, count in job["rejected"].items()}
    cells = (
        tool["tool"],
        ", ".join(sorted(versions)),
        *(f"{jobs[stage]['seconds']:.2f} s" if stage in jobs else "" for stage in STAGES),
        ", ".join("-" if job["hits"] is None else f"{job['hits']}/{job['misses']}" for job in jobs.values()),
        ", ".join(str(sum(job["harvested" if stage == COLD else "seeded"].values())) for stage, job in jobs.items()),
        ", ".join(sorted({way for job in jobs.values() for way in job["ways"]})),
        ", ".join(sorted(rejected)),
        "; ".join(tool["problems"]),
    )
    return f"| {' | '.join(cells)} |\n"
