"""Write the matrix's results as a page: `python -m tests.matrix >docs/slurm-releases.md`."""

from __future__ import annotations

import json
import sys
import time

from tests.matrix.cases import CASES, RESULTS, SUITES

HEAD = """\
# Releases of Slurm

Made by `make test-all` on {date}: the same tests against each release, with the daemons, Python and tools of a
Debian suite (`tests/matrix`). What differs between the releases is in
[Slurm's settings](operations/slurm-settings.md), and for the constant path in
[inside-the-job.md](start/inside-the-job.md).

"""


def page() -> str:
    """Return the page. Suites that were not run are left out."""
    files = {suite: RESULTS / f"{suite}.json" for suite in SUITES}
    found = {suite: json.loads(path.read_text()) for suite, path in files.items() if path.exists()}
    rows = [
        ["", *(f"Slurm {each['versions']['Slurm']}" for each in found.values())],
        ["---", *("---" for _ in found)],
        ["Debian", *found],
        *([name, *(each["versions"][name] for each in found.values())] for name in ("Python", "squashfs-tools")),
        *([case, *(each["cases"].get(case, "not run") for each in found.values())] for case in CASES),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return HEAD.format(date=time.strftime("%Y-%m-%d")) + table


if __name__ == "__main__":
    if not RESULTS.is_dir():
        sys.exit("tests.matrix: no release was tried")
    sys.stdout.write(page())
