"""Run the suite: `make gpu`, as root. On a machine without an NVIDIA GPU it says so and ends with 0."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.tools.gpu import page
from tests.tools.gpu.place import Place, a_place, can_show, lacking
from tests.tools.gpu.suite import Tried, tried
from tests.tools.gpu.tools import TOOLS, Tool
from warmstart.profiles import facts

NO_GPU = "warmstart: this machine has no NVIDIA GPU, so nothing was tried"
DEVICE = "/dev/nvidia0"
UNLISTED = "an NVIDIA GPU that /proc/driver/nvidia does not list"


def main(words: Sequence[str] | None = None) -> int:
    """Return 0 if all that is installed here works, or there is no GPU."""
    names = [tool.name for tool in TOOLS]
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--results", type=Path, help="a directory for gpu.json, gpu.md and gpu.log")
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
        sys.exit(f"warmstart: the GPU suite needs {', '.join(absent)} (tests/tools/gpu/README.md)")
    files = page.Files.below(arguments.results) if arguments.results else page.Files()
    return _run([tool for tool in TOOLS if tool.name in (arguments.tools or names)], files)


def _run(chosen: Sequence[Tool], files: page.Files) -> int:
    """Try the tools one by one, and keep what was seen after each: a run that is cut off leaves what it had."""
    missing = {tool.title: what for tool in chosen if (what := tool.missing())}
    shown = can_show()
    if not shown:
        missing |= {tool.title: "mount namespaces, for the constant path" for tool in chosen if not tool.moves}
    here = [tool for tool in chosen if tool.title not in missing]
    _say(f"warmstart: {len(here)} tools, about {-(-sum(tool.seconds for tool in here) // 60)} minutes, in this order:")
    for tool in here:
        _say(f"  {tool.name}: about {tool.seconds} s; a job that takes {tool.limit_s} s is ended")
    for tool in chosen:
        if tool.title in missing:
            _say(f"  {tool.name}: not installed ({missing[tool.title]})")
    files.log.parent.mkdir(parents=True, exist_ok=True)
    files.log.write_text("")
    before = page.read(files.results) or page.read()
    done: list[Tried] = []
    try:
        with a_place(files.log) as place:
            for tool in here:
                done.append(_one(place, tool, shown=shown))
                files.write(page.results(_machine(), done, missing, before))
    except RuntimeError as error:
        sys.exit(f"warmstart: it cannot be installed here (tests/tools/gpu/README.md): {error}")
    _say(f"wrote {files.results}, {files.page} and {files.log}")
    return int(any(one.problems for one in done))


def _one(place: Place, tool: Tool, *, shown: bool) -> Tried:
    began = dt.datetime.now(dt.timezone.utc)
    found = tried(place, tool, shown=shown)
    took = (dt.datetime.now(dt.timezone.utc) - began).total_seconds()
    _say(f"{tool.name}: {'; '.join(found.problems) or 'ok'} ({took:.0f} s)")
    return found


def _machine() -> page.JSON:
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
