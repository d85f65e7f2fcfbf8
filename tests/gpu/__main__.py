"""Run the suite: `make gpu`, as root. On a machine without an NVIDIA GPU it says so and ends with 0."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys

from tests.gpu import page
from tests.gpu.place import a_place, can_show
from tests.gpu.suite import Tried, tried
from tests.gpu.tools import TOOLS
from warmstart.profiles import facts

NO_GPU = "warmstart: this machine has no NVIDIA GPU, so nothing was tried"


def main() -> int:
    """Return 0 if all that is installed here works, or there is no GPU."""
    gpu = facts.gpu()
    if gpu == facts.NONE:
        print(NO_GPU)  # noqa: T201 - for people
        return 0
    if os.geteuid() != 0:
        sys.exit("warmstart: the GPU suite runs hooks, so it needs root")
    missing = {tool.name: what for tool in TOOLS if (what := tool.missing())}
    shown = can_show()
    done: list[Tried] = []
    with a_place() as place:
        for tool in TOOLS:
            if tool.name in missing:
                continue
            if not (shown or tool.moves):
                missing[tool.name] = "mount namespaces, for the constant path"
                continue
            done.append(tried(place, tool, shown=shown))
            print(f"{tool.name}: {'; '.join(done[-1].problems) or 'ok'}", flush=True)  # noqa: T201 - for people
    machine = {
        "date": dt.date.today().isoformat(),  # noqa: DTZ011 - the day there
        "gpu": gpu,
        "driver": facts.driver(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    page.write(page.results(machine, done, missing))
    print(f"wrote {page.PAGE.relative_to(page.DOCS.parent)}")  # noqa: T201 - for people
    return int(any(one.problems for one in done))


if __name__ == "__main__":
    sys.exit(main())
