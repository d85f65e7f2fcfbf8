"""docs/gpu.md, from the results of a run of the suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.place import Seen
from tests.gpu.suite import COLD, STAGES, Tried

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS, PAGE = DOCS / "results" / "gpu.json", DOCS / "gpu.md"
JSON = Mapping[str, Any]
HEAD = """\
# On a GPU

`make gpu` writes this page: each tool's job cold, warm under another node's name, and warm at another path where its
profile claims that ([how to run it](../tests/gpu/README.md)). Seconds are of compiling and running once, in the job;
hits and misses are the tool's own counts, where it has them. Every warm job's result equals the cold one's, bit for
bit, unless the last column says otherwise.

"""
NOBODY = "Nobody has run it yet: what is said of GPU tools here was read in sources or tried without a GPU.\n"
COLUMNS = (
    *("tool", "versions", "cold", "warm", "moved", "hits/misses: cold, warm, moved"),
    *("entries made, then seeded", "way", "rejected", "wrong"),
)


def results(machine: JSON, done: Sequence[Tried], missing: Mapping[str, str]) -> JSON:
    """Return a run as it is kept: the machine, the tools, and those that were `missing` with what they lack."""
    tools = [
        {
            "tool": one.tool.name,
            "profiles": list(one.tool.profiles),
            "jobs": {stage: _kept(seen) for stage, seen in one.jobs.items()},
            "problems": one.problems,
        }
        for one in done
    ]
    return {**machine, "tools": tools, "missing": dict(missing)}


def write(found: JSON) -> None:
    """Keep the results and write the page."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(render(found))


def read() -> JSON | None:
    """Return the results that are kept; None if nobody has run the suite."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None


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
        ", ".join(str(job["harvested" if stage == COLD else "seeded"]) for stage, job in jobs.items()),
        ", ".join(sorted({way for job in jobs.values() for way in job["ways"]})),
        ", ".join(sorted(rejected)),
        "; ".join(tool["problems"]),
    )
    return f"| {' | '.join(cells)} |\n"
