"""Write the matrix's results as a page: `python -m tools.matrix >docs/slurm-releases.md`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import NamedTuple

from tests.lib.reports import made
from tests.releases.releases import RESULTS, SUITES

HEAD = """\
# Releases of Slurm

Made by `make test-all` on {made}.

Every test that talks to Slurm, on each release, with the daemons, Python and tools of a Debian suite
(`tests/releases`), and the files of which not every test was run and passed. Tests that compile with torch or JAX run
once, with the host's Slurm.

"""


class Release(NamedTuple):
    """What was seen on one release: the fields of `build/releases/SUITE.json`."""

    suite: str
    versions: dict[str, str]
    minutes: int
    outcomes: dict[str, str]
    exceptions: dict[str, str]

    def of(self, file: str) -> str:
        """Return a file's cell."""
        seen = Counter(outcome for test, outcome in self.outcomes.items() if test.partition("::")[0] == file)
        without = sum(test.partition("::")[0] == file for test in self.exceptions)
        bad = seen["failed"] + seen["skipped"]
        parts = [str(seen["passed"])] if seen["passed"] else []
        parts += [f"**{bad} not passed**"] if bad else []
        parts += [f"[{without} left out](#exceptions)"] if without else []
        return ", ".join(parts)


def page(releases: list[Release]) -> str:
    """Return the page. Suites that were not run are left out."""
    odd = [test for each in releases for test, outcome in each.outcomes.items() if outcome != "passed"]
    files = sorted(
        {test.partition("::")[0] for test in [*odd, *(test for each in releases for test in each.exceptions)]}
    )
    rows = [
        ["", *(f"Slurm {release.versions['Slurm']}" for release in releases)],
        ["---", *("---" for _ in releases)],
        ["Debian", *(release.suite for release in releases)],
        *([name, *(each.versions[name] for each in releases)] for name in ("Python", "squashfs-tools")),
        ["minutes", *(str(release.minutes) for release in releases)],
        ["tests", *(str(len(release.outcomes)) for release in releases)],
        ["passed", *(str(list(release.outcomes.values()).count("passed")) for release in releases)],
        *([f"`{file}`", *(release.of(file) for release in releases)] for file in files),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    exceptions = [
        f"| {release.versions['Slurm']} | `{test}` | {reason} |"
        for release in releases
        for test, reason in release.exceptions.items()
    ]
    lines += ["", "## Exceptions", "", "What a release cannot do. These tests were seen to fail there.", ""]
    lines += ["| Slurm | test | why |", "|---|---|---|", *exceptions] if exceptions else ["None."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page of the results that are there."""
    files = {suite: RESULTS / f"{suite}.json" for suite in SUITES}
    releases = [Release(suite, **json.loads(path.read_text())) for suite, path in files.items() if path.exists()]
    if not releases:
        sys.exit("tools.matrix: no release was tried")
    sys.stdout.write(HEAD.format(made=made()) + page(releases))


if __name__ == "__main__":
    main()
