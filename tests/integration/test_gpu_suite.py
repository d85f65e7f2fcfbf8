"""The suite of `make gpu`, tried with a tool that needs no GPU: the hooks and what it makes of them are the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu import __main__ as command
from tests.gpu import page, suite
from tests.gpu.place import Place, can_show
from tests.gpu.tools import TOOLS, Tool
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree
from warmstart.profiles import facts

JOB = """\
import os, sys, time
import numba
from report import report

@numba.njit(cache=True)
def halve(value):
    return value * 0.5

halve(1.0)
if sys.argv[1:] == ["odd"]:
    result = os.environ["SLURMD_NODENAME"].encode()
elif sys.argv[1:] == ["broken"]:
    sys.exit("no such device")
else:
    result = str(halve(3.0)).encode()
hits, misses = (sum(found.values()) for found in (halve.stats.cache_hits, halve.stats.cache_misses))
report(0.5, result, packages=("numba",), hits=hits, misses=misses)
"""
NUMBA = Tool("Numba", ("numba",), ("numba_job.py",), ("numba",))


@pytest.fixture(scope="module")
def place(install: Callable[[Path], None], capable_host: None) -> Iterator[Place]:
    """Return a place with the job of this test."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-gpu-", dir="/var/tmp"))
    base.chmod(0o755)
    install(base / "prefix")
    made = Place(base, base / "prefix")
    (base / "jobs" / NUMBA.program[0]).write_text(JOB)
    yield made
    with opened_dir(str(base.parent)) as parent:
        remove_tree(parent, base.name, after(60))


def test_cold_warm_and_moved(place: Place) -> None:
    """Hits at the constant path on another node, and at another path."""
    assert can_show()
    found = suite.tried(place, NUMBA, shown=True)
    assert found.problems == []
    counts = {stage: (seen.report["hits"], seen.report["misses"]) for stage, seen in found.jobs.items()}
    assert counts == {"cold": (0, 1), "warm": (1, 0), "moved": (1, 0)}
    assert [seen.seeded for seen in found.jobs.values()] == [0, 1, 1]
    assert {seen.ways for seen in found.jobs.values()} <= {(), ("overlay",), ("extraction",)}
    assert not [name for name in os.listdir(place.base / "workspace") if os.listdir(place.base / "workspace" / name)]
    machine = {"date": "2026-01-31", "gpu": "none", "driver": "none", "kernel": "6", "python": "3"}
    shown = page.render(page.results(machine, [found], {"JAX": "jax"}))
    assert "| Numba | numba " in shown
    assert "| 0.50 s | 0.50 s | 0.50 s | 0/1, 1/0, 1/0 | 1, 1, 1 | " in shown
    assert shown.endswith("\nNot installed there: JAX (jax).\n")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("odd", ["the warm job computed something else than the cold one"]),
        ("broken", ["the cold job: status 1: no such device"]),
    ],
)
def test_what_is_wrong_is_told(place: Place, argument: str, expected: list[str]) -> None:
    """A result that differs, and a job that fails."""
    tool = NUMBA._replace(program=(*NUMBA.program, argument))
    assert suite.tried(place, tool, shown=False).problems == expected


def test_a_tool_that_is_never_warm_is_told(place: Place) -> None:
    """It gets a profile of another tool, so nothing of it is harvested or seeded."""
    found = suite.tried(place, NUMBA._replace(profiles=("jax",)), shown=False).problems
    assert found == ["nothing was harvested", "the warm job was not seeded", "the warm job missed 1"]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and no failure."""
    monkeypatch.setattr(facts, "gpu", lambda: facts.NONE)
    assert command.main() == 0
    assert capsys.readouterr().out == f"{command.NO_GPU}\n"


def test_the_tools_are_known() -> None:
    """Each has a program, and profiles that exist."""
    for tool in TOOLS:
        assert (Path(page.__file__).with_name("jobs") / tool.program[0]).is_file()
        assert isinstance(tool.moves, bool)


def test_the_page_is_of_the_results() -> None:
    """It is written with them."""
    assert page.PAGE.read_text() == page.render(page.read())
