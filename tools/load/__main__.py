"""Run the load: `python -m tools.load --jobs 2000 --seed 1`. Exits 0 if nothing was found.

Ctrl-C ends it after the wave of jobs that runs.

The figures go to build/reliability/load.md.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys

from tools.load.run import Load, fragment, prepared, record


def main() -> int:
    """Run and write the figures."""
    parser = argparse.ArgumentParser(prog="tools.load")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    with prepared() as (site, registry, front):
        load = Load(site, registry, front, wanted.jobs, wanted.seed)
        signal.signal(signal.SIGINT, lambda *_: load.end_early())
        outcome = load.run(lambda line: print(line, flush=True))  # noqa: T201 - progress
        if outcome.findings:
            shutil.copytree(site.cluster.base / "audit", site.cluster.base / "log" / "audit")
            site.cluster.keep_logs()
    record(outcome)
    print(fragment(outcome))  # noqa: T201 - the result
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
