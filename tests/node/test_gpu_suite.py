"""The suite of `make gpu`, tried with a tool that needs no GPU: the hooks and what it makes of them are the same."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib import accounts
from tests.tools.gpu import __main__ as command
from tests.tools.gpu import suite
from tests.tools.gpu.place import UID, Place, can_show
from tests.tools.gpu.tools import Tool
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.remove import remove_tree

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
NUMBA = Tool("numba", ("numba",), ("numba_job.py",), 20, ("numba",))


@pytest.fixture(scope="module")
def place(install: Callable[[Path], None], capable_host: None) -> Iterator[Place]:
    """Return a place with the job of this test. All processes of its uid are killed after each job."""
    assert UID not in accounts.UIDS.values()
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
    assert [seen.seeded for seen in found.jobs.values()] == [{}, {"numba": 1}, {"numba": 1}]
    assert not [name for name in os.listdir(place.base / "workspace") if os.listdir(place.base / "workspace" / name)]


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (NUMBA._replace(program=(*NUMBA.program, "odd")), ["the warm job computed something else than the cold one"]),
        (NUMBA._replace(program=(*NUMBA.program, "broken")), ["the cold job: status 1: no such device"]),
        # With the profile of another tool nothing of it is harvested or seeded.
        (
            NUMBA._replace(profiles=("jax",)),
            ["nothing was harvested", "the warm job was not seeded", "the warm job missed 1"],
        ),
    ],
    ids=["another result", "a job that fails", "never warm"],
)
def test_what_is_wrong_is_told(place: Place, tool: Tool, expected: list[str]) -> None:
    assert suite.tried(place, tool, shown=False).problems == expected


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
    hanging = NUMBA._replace(name="hanging", program=(*NUMBA.program, "hanging"))
    absent = NUMBA._replace(name="absent", modules=("no_such_module",))
    assert command.run([hanging, absent, NUMBA], tmp_path) == 1
    assert "  absent: not installed (no_such_module)" in capsys.readouterr().out.splitlines()
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [(line["tool"], line["problems"]) for line in lines] == [
        ("hanging", ["the cold job: hanging: it was ended after 5 s"]),
        ("numba", []),
    ]
    assert not [name for name in filter(str.isdigit, os.listdir("/proc")) if os.stat(f"/proc/{name}").st_uid == UID]
