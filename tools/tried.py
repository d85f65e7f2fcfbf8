"""Write which profiles were run with which tools, from docs/results: `python -m tools.tried [--check]`.

Each file there is what one run left (`tests.lib.tried`), `gpu.json` what `make gpu` did. `make docs` and `make
lint` run this. A profile of which no file speaks is experimental, and says so itself (`Profile.experimental`): the
hooks' own documents are not installed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.lib.tried import Result, Run
from tests.tools.gpu.page import RESULTS as GPU
from tests.tools.gpu.suite import COLD, WARM
from warmstart.profiles import registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/reference/profiles.md"
RESULTS = "docs/results"
COLUMNS = ("profile", "run with", "cold, warm")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
_TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")
EXPERIMENTAL = "*experimental*: its entries were only made by hand"


class Tried(NamedTuple):
    """All that runs left: of the tests, and of `make gpu`, which keeps its own form."""

    runs: list[Result]
    gpu: Mapping[str, Any] | None

    @property
    def profiles(self) -> set[str]:
        """Return the profiles of which a job was warm."""
        tools = self.gpu["tools"] if self.gpu else []
        return {run.profile for run in self.runs} | {name for tool in tools for name in _warm(tool)}


def results(root: Path) -> Tried:
    """Return all results, by profile and file."""
    found, gpu = [], None
    for path in sorted((root / RESULTS).glob("*.json")):
        fields = json.loads(path.read_text())
        if path.name == GPU.name:
            gpu = fields
        else:
            found.append(Result(**{**fields, "cold": Run(**fields["cold"]), "warm": Run(**fields["warm"])}))
    return Tried(found, gpu)


def table(tried: Tried) -> str:
    """Return the table: a row for the newest result of each tool, and one for all profiles without any."""
    newest = {(run.profile, run.job, *run.tools): run for run in sorted(tried.runs, key=_age)}
    rows = [*_of_tests([*newest.values()]), *_of_gpu(tried.gpu)]
    without = ", ".join(f"`{name}`" for name in registry.names() if name not in tried.profiles)
    last = [(without, EXPERIMENTAL)] * bool(without)
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in [*sorted(rows), *last])


def _age(run: Result) -> tuple[list[int], str, str]:
    """Return what is larger for newer releases of a run's tools, then of Slurm."""
    return [int(number) for number in re.findall(r"\d+", " ".join(run.tools.values()))], run.through, run.date


def _of_tests(runs: list[Result]) -> Iterator[tuple[str, ...]]:
    for run in runs:
        argument = run.job.partition(" ")[2]
        yield (
            f"`{run.profile}`",
            " ".join(next(iter(run.tools.items()))) + (f" (`{argument}`)" if argument else "") + _on(run.hardware),
            _seconds(run.cold.seconds, run.warm.seconds),
        )


def _warm(tool: Mapping[str, Any]) -> list[str]:
    """Return the profiles of which `make gpu` has seen entries come back, with nothing wrong about the tool."""
    if tool["problems"] or WARM not in tool["jobs"]:
        return []
    return [name for name in tool["profiles"] if tool["jobs"][WARM]["seeded"].get(name)]


def _of_gpu(found: Mapping[str, Any] | None) -> Iterator[tuple[str, ...]]:
    """Yield a row for each profile of each tool that `make gpu` has seen warm; docs/gpu.md has more of them."""
    if found is None:
        return
    for tool in found["tools"]:
        for profile in _warm(tool):
            cold, warm = tool["jobs"][COLD], tool["jobs"][WARM]
            versions = ", ".join(f"{name} {version}" for name, version in sorted(cold["versions"].items()))
            yield (
                f"`{profile}`",
                f"{tool['tool']}{f': {versions}' if versions else ''} ([make gpu](../gpu.md)){_on(found)}",
                _seconds(cold["seconds"], warm["seconds"]),
            )


def _on(hardware: Mapping[str, Any]) -> str:
    """Return which GPU it was, if there was one."""
    return "" if hardware["gpu"] == "none" else f", {hardware['gpu']}, driver {hardware['driver']}"


def _seconds(cold: float, warm: float) -> str:
    return f"{cold:.2f} s, {warm:.2f} s"


def mislabelled(tried: Tried) -> list[str]:
    """Return the profiles whose own label says something else than the results."""
    return [name for name in registry.names() if registry.get(name).experimental == (name in tried.profiles)]


def page(text: str, tried: Tried) -> str:
    """Return the page with the table in the place of the one that it has."""
    assert _TABLE.search(text), f"{PAGE} has no such table"
    return _TABLE.sub(lambda _: table(tried), text)


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
