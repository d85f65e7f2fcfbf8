"""Run the suite: `make gpu`, as root. On a machine without an NVIDIA GPU it says so and ends with 0."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.tools.gpu.place import a_place, can_show, lacking
from tests.tools.gpu.suite import tried
from tests.tools.gpu.tools import TOOLS, Tool
from warmstart.profiles import facts

NO_GPU = "warmstart: this machine has no NVIDIA GPU, so nothing was tried"
DEVICE = "/dev/nvidia0"
UNLISTED = "an NVIDIA GPU that /proc/driver/nvidia does not list"
BUILD = Path(__file__).resolve().parents[3] / "build"


def main(words: Sequence[str] | None = None) -> int:
    """Return 0 if all that is installed here works, or there is no GPU."""
    names = [tool.name for tool in TOOLS]
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--results", type=Path, default=BUILD, help="a directory for gpu.jsonl and gpu.log")
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"only these, of {', '.join(names)}")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.tools) - {*names}:
        parser.error(f"no such tool: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if facts.driver() == facts.NONE and not os.path.exists(DEVICE):
        _say(NO_GPU)
        return 0
    if os.geteuid() != 0:
        sys.exit("warmstart: the GPU suite runs hooks, so it needs root")
    if absent := lacking():
        sys.exit(f"warmstart: the GPU suite needs {', '.join(absent)} (docs/gpu.md)")
    return run([tool for tool in TOOLS if tool.name in (arguments.tools or names)], arguments.results)


def run(chosen: Sequence[Tool], results: Path) -> int:
    """Try the tools one by one. What was seen is kept after each: a run that is cut off leaves what it had."""
    missing = {tool.name: what for tool in chosen if (what := tool.missing())}
    shown = can_show()
    if not shown:
        missing |= {tool.name: "mount namespaces, for the constant path" for tool in chosen if not tool.moves}
    here = [tool for tool in chosen if tool.name not in missing]
    _say(f"warmstart: {len(here)} tools, about {-(-sum(tool.seconds for tool in here) // 60)} minutes, in this order:")
    for tool in here:
        _say(f"  {tool.name}: about {tool.seconds} s; a job that takes {tool.limit_s} s is ended")
    for name, what in missing.items():
        _say(f"  {name}: not installed ({what})")
    results.mkdir(parents=True, exist_ok=True)
    log, kept = results / "gpu.log", results / "gpu.jsonl"
    log.write_text("")
    problems: list[str] = []
    try:
        with a_place(log) as place:
            for tool in here:
                found = tried(place, tool, shown=shown)
                _say(f"{tool.name}: {'; '.join(found.problems) or 'ok'}")
                with kept.open("a") as file:
                    file.write(json.dumps({**_machine(), **found.kept()}) + "\n")
                problems += found.problems
    except RuntimeError as error:
        sys.exit(f"warmstart: it cannot be installed here (docs/gpu.md): {error}")
    _say(f"wrote {kept} and {log}")
    return int(bool(problems))


def _machine() -> dict[str, Any]:
    gpu = facts.gpu()
    return {
        "date": dt.date.today().isoformat(),  # noqa: DTZ011 - the day there
        "gpu": UNLISTED if gpu == facts.NONE else gpu,
        "driver": facts.driver(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for people


if __name__ == "__main__":
    sys.exit(main())
