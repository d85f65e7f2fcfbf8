"""Write which profiles were run with which tools, from docs/results: `python -m tools.tried [--check]`.

Each file there is what one run left (`tests.support.tried`). `make docs` and `make lint` run this. A profile of which
no file speaks is experimental, and says so itself (`Profile.experimental`): the hooks' own documents are not installed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.tried import Result, Run
from warmstart.profiles import registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/reference/profiles.md"
RESULTS = "docs/results"
COLUMNS = ("profile", "run with", "on", "through", "date", "cold", "warm", "entries", "damaged, refused")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
_TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")
EXPERIMENTAL = "*experimental*: never run with its tool; its entries were only made by hand"


def results(root: Path) -> list[Result]:
    """Return all results, by profile and file."""
    found = []
    for path in sorted((root / RESULTS).glob("*.json")):
        fields = json.loads(path.read_text())
        found.append(Result(**{**fields, "cold": Run(**fields["cold"]), "warm": Run(**fields["warm"])}))
    return found


def table(runs: list[Result]) -> str:
    """Return the table: a row for each result, and one for each profile without any."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in sorted(_rows(runs)))


def _rows(runs: list[Result]) -> Iterator[tuple[str, ...]]:
    for run in runs:
        job, _, argument = run.job.partition(" ")
        yield (
            f"`{run.profile}`",
            ", ".join(f"{name} {version}" for name, version in run.tools.items())
            + f" (`{job}_job.py{f' {argument}' if argument else ''}`)",
            _hardware(run.hardware),
            run.through,
            run.date,
            _counters(run.cold),
            _counters(run.warm),
            f"{run.harvested} published, {run.rejected} refused, {run.seeded} seeded",
            f"{run.damaged}, {run.refused}",
        )
    for name in sorted({*registry.names()} - {run.profile for run in runs}):
        yield (f"`{name}`", EXPERIMENTAL, *[""] * (len(COLUMNS) - 2))


def _hardware(hardware: dict[str, str]) -> str:
    if hardware["gpu"] == "none":
        return f"{hardware['cpu']}, no GPU"
    return f"{hardware['gpu']}, driver {hardware['driver']}"


def _counters(run: Run) -> str:
    return f"{run.hits} hits, {run.misses} misses, {run.seconds:.2f} s"


def mislabelled(runs: list[Result]) -> list[str]:
    """Return the profiles whose own label says something else than the results."""
    tried = {run.profile for run in runs}
    return [name for name in registry.names() if registry.get(name).experimental == (name in tried)]


def page(text: str, runs: list[Result]) -> str:
    """Return the page with the table in the place of the one that it has."""
    assert _TABLE.search(text), f"{PAGE} has no such table"
    return _TABLE.sub(lambda _: table(runs), text)


def main() -> int:
    """Write the page, or tell whether it is stale; labels that the results contradict are an error either way."""
    runs = results(ROOT)
    path = ROOT / PAGE
    text = path.read_text()
    for name in mislabelled(runs):
        print(f"{name}: `experimental` in its profile is not what docs/results says", file=sys.stderr)  # noqa: T201
    if "--check" not in sys.argv[1:]:
        path.write_text(page(text, runs))
    elif page(text, runs) != text:
        print(f"{PAGE} is stale: run `python -m tools.tried`", file=sys.stderr)  # noqa: T201
        return 1
    return int(bool(mislabelled(runs)))


if __name__ == "__main__":
    sys.exit(main())
