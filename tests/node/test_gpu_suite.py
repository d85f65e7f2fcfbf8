"""The suite of `make gpu`, tried with a tool that needs no GPU: the hooks and what it makes of them are the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib import accounts
from tests.tools.gpu import __main__ as command
from tests.tools.gpu import page, suite
from tests.tools.gpu import place as placing
from tests.tools.gpu.place import UID, Place, can_show
from tests.tools.gpu.tools import TOOLS, Tool
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree
from warmstart.profiles import facts

JOB = """\
import os, subprocess, sys, time
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
elif sys.argv[1:] == ["hanging"]:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(600)
else:
    result = str(halve(3.0)).encode()
hits, misses = (sum(found.values()) for found in (halve.stats.cache_hits, halve.stats.cache_misses))
report(0.5, result, packages=("numba",), hits=hits, misses=misses)
"""
NUMBA = Tool("numba", "Numba", ("numba",), ("numba_job.py",), 20, ("numba",))
MACHINE = {"date": "2026-01-31", "gpu": "none", "driver": "none", "kernel": "6", "python": "3"}


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


def test_its_uid_is_nobody_elses() -> None:
    """All processes of that uid are killed after each job: those of another cluster's jobs must not be among them."""
    assert UID not in accounts.UIDS.values()


def test_cold_warm_and_moved(place: Place) -> None:
    """Hits at the constant path on another node, and at another path."""
    assert can_show()
    found = suite.tried(place, NUMBA, shown=True)
    assert found.problems == []
    counts = {stage: (seen.report["hits"], seen.report["misses"]) for stage, seen in found.jobs.items()}
    assert counts == {"cold": (0, 1), "warm": (1, 0), "moved": (1, 0)}
    assert [seen.seeded for seen in found.jobs.values()] == [{}, {"numba": 1}, {"numba": 1}]
    assert {seen.ways for seen in found.jobs.values()} <= {(), ("overlay",), ("extraction",)}
    assert not [name for name in os.listdir(place.base / "workspace") if os.listdir(place.base / "workspace" / name)]
    shown = page.render(page.results(MACHINE, [found], {"JAX": "jax"}))
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


def test_a_job_that_hangs_is_ended_and_the_next_tool_is_tried(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that it started stays, and what was seen is kept after each tool."""

    @contextmanager
    def at_place(log: Path) -> Iterator[Place]:
        place.log = log
        yield place

    monkeypatch.setattr(Tool, "limit_s", property(lambda tool: 5 if tool.name == "hanging" else 300))
    monkeypatch.setattr(command, "a_place", at_place)
    hanging = NUMBA._replace(name="hanging", title="Hanging", program=(*NUMBA.program, "hanging"))
    absent = NUMBA._replace(name="absent", title="Absent", modules=("no_such_module",))
    files = page.Files.below(tmp_path / "out")
    assert command._run([hanging, absent, NUMBA], files) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "warmstart: 2 tools, about 1 minutes, in this order:"
    assert "  absent: not installed (no_such_module)" in printed
    kept = page.read(files.results)
    assert kept is not None
    assert [(tool["tool"], tool["problems"]) for tool in kept["tools"]] == [
        ("Hanging", ["the cold job: hanging: it was ended after 5 s"]),
        ("Numba", []),
    ]
    assert files.page.read_text() == page.render(kept)
    assert "# ended after 5" in files.log.read_text()
    assert not [name for name in filter(str.isdigit, os.listdir("/proc")) if os.stat(f"/proc/{name}").st_uid == UID]


def test_what_an_earlier_run_saw_stays() -> None:
    """Of tools that were not tried again, on the same GPU with the same driver."""
    triton, jax = (suite.Tried(NUMBA._replace(title=title), {}, ["it failed"]) for title in ("Triton", "JAX"))
    first = page.results(MACHINE, [triton, jax], {})
    second = page.results({**MACHINE, "date": "2026-02-01"}, [jax], {"Triton": "triton"}, first)
    assert [(tool["tool"], tool["date"]) for tool in second["tools"]] == [
        ("Triton", "2026-01-31"),
        ("JAX", "2026-02-01"),
    ]
    assert second["missing"] == {}
    assert len(page.results({**MACHINE, "driver": "1"}, [jax], {}, first)["tools"]) == 1


@pytest.mark.parametrize("gpu", [facts.NONE, "gfx942"])
def test_without_an_nvidia_gpu_it_says_so(
    gpu: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and no failure; AMD's are none."""
    monkeypatch.setattr(facts, "gpu", lambda: gpu)
    assert command.main([]) == 0
    assert capsys.readouterr().out == f"{command.NO_GPU}\n"


def test_what_the_machine_lacks_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is installed."""
    monkeypatch.setattr(facts, "driver", lambda: "570.1")
    monkeypatch.setattr(placing, "PROGRAMS", ("make", "no-such-program"))
    with pytest.raises(SystemExit, match=r"the GPU suite needs no-such-program \("):
        command.main([])


def test_an_unknown_tool_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With those that there are."""
    with pytest.raises(SystemExit):
        command.main(["tritton"])
    assert "no such tool: tritton; there are triton, inductor, " in capsys.readouterr().err


def test_the_tools_are_known() -> None:
    """Each has a program of its own, and profiles that exist."""
    for tool in TOOLS:
        assert (Path(page.__file__).with_name("jobs") / tool.program[0]).is_file()
        assert isinstance(tool.moves, bool)
    for field in ("name", "title", "program"):
        assert len({getattr(tool, field) for tool in TOOLS}) == len(TOOLS)


def test_the_page_is_of_the_results() -> None:
    """It is written with them."""
    assert page.PAGE.read_text() == page.render(page.read())
