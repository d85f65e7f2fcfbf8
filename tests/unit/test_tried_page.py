"""The table of what was tried, made from the results alone, and the labels that have to agree with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tried import Result, Run
from tools import tried
from warmstart.profiles import registry

RUN = Result(
    "warp",
    "warp",
    {"warp-lang": "1.19.0"},
    {"cpu": "EPYC", "gpu": "none"},
    "Slurm 22.05.8",
    "2026-01-31",
    Run(0, 3, 9.5),
    Run(3, 0, 0.25),
    2,
    0,
    2,
    200,
    180,
)
ONE, NONE = tried.Tried([RUN], None), tried.Tried([], None)


def test_the_page_and_the_labels_are_those_of_the_results() -> None:
    """`python -m tools.tried` writes the page; a label is a profile's own word, and a run's file its proof."""
    runs = tried.results(tried.ROOT)
    page = (tried.ROOT / tried.PAGE).read_text()
    assert tried.page(page, runs) == page
    assert tried.mislabelled(runs) == []


def test_a_row_says_what_ran_where_and_what_came_of_it() -> None:
    """A profile without a run is experimental."""
    row, others = tried.table(ONE).splitlines()[2:]
    assert row == "| `warp` | warp-lang 1.19.0 | 9.50 s, 0.25 s |"
    without = ", ".join(f"`{name}`" for name in registry.names() if name != "warp")
    assert others == f"| {without} | {tried.EXPERIMENTAL} |"


def test_a_tool_has_one_row_of_its_newest_run() -> None:
    """By its release, then by Slurm's."""
    older = RUN._replace(tools={"warp-lang": "1.9.2"}, cold=RUN.cold._replace(seconds=8.0))
    newer = RUN._replace(through="Slurm 24.11.5", cold=RUN.cold._replace(seconds=7.0))
    rows = [
        row for row in tried.table(tried.Tried([newer, RUN, older], None)).splitlines() if row.startswith("| `warp`")
    ]
    assert rows == ["| `warp` | warp-lang 1.19.0 | 7.00 s, 0.25 s |"]


def test_a_gpu_is_named_with_its_driver() -> None:
    """What a run on a machine with a GPU leaves."""
    hardware = {"cpu": "EPYC", "gpu": "NVIDIA-H100", "driver": "570.1"}
    assert "| warp-lang 1.19.0, NVIDIA-H100, driver 570.1 |" in tried.table(
        tried.Tried([RUN._replace(hardware=hardware)], None)
    )


def test_a_label_that_no_run_speaks_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either way: a profile that claims too much, and one that was run and does not know."""
    profile = registry.get("warp")
    monkeypatch.setattr(registry, "names", lambda: ["warp"])
    assert (tried.mislabelled(ONE), tried.mislabelled(NONE)) == ([], ["warp"])
    monkeypatch.setattr(registry, "get", lambda _: profile._replace(experimental=True))
    assert (tried.mislabelled(ONE), tried.mislabelled(NONE)) == (["warp"], [])


def test_what_make_gpu_saw_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of profiles whose entries came back in a job that was right; a cold job alone shows nothing."""
    job = {"versions": {"torch": "2.15"}, "hits": None, "misses": None, "seconds": 3.0}
    cold = {**job, "harvested": {"deepgemm": 2, "triton": 1}, "rejected": {"incomplete": 1}}
    jobs = {"cold": cold, "warm": {**job, "seeded": {"deepgemm": 2}, "rejected": {}, "hits": 2, "misses": 0}}
    tools = [
        {"tool": "X", "date": "2026-01-31", "profiles": ["deepgemm", "triton"], "jobs": jobs, "problems": []},
        {"tool": "Y", "profiles": ["vllm"], "jobs": {"cold": cold}, "problems": []},
        {"tool": "Z", "profiles": ["deepgemm"], "jobs": jobs, "problems": ["the warm job missed 2"]},
    ]
    seen = tried.Tried([], {"gpu": "H100", "driver": "570.1", "date": "2026-02-01", "tools": tools})
    assert seen.profiles == {"deepgemm"}
    (row,) = (line for line in tried.table(seen).splitlines() if line.startswith("| `deepgemm`"))
    assert row == ("| `deepgemm` | X: torch 2.15 ([make gpu](../gpu.md)), H100, driver 570.1 | 3.00 s, 3.00 s |")
    monkeypatch.setattr(registry, "names", lambda: ["vllm"])
    assert tried.mislabelled(seen) == []


def test_each_result_is_a_file_of_its_profile() -> None:
    """Of a profile that there is, with its name first."""
    for path in sorted(Path(tried.ROOT / tried.RESULTS).glob("*-*.json")):
        assert any(path.name.startswith(f"{name}-") for name in registry.names()), path
