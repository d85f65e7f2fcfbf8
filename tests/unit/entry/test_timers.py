"""`timers`: in a container without systemd, one process in the foreground starts what timers start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib.processes import wait_until
from warmstart import session
from warmstart.keeper import NodeOfAnotherPod, keep, require_keeper
from warmstart.paths import Installation

# Its pauses are short here; the last maintenance may take as long as it takes.
PROGRAM = """
import sys
from warmstart.entry import timers
timers.LOOK_S, timers.FIRST_S, timers.SPREAD_S, timers.ROUND_S = 0.05, 0.1, 0.0, 0.1
sys.exit(timers.main(sys.argv[1]))
"""
HOOKS = Path(session.__file__).parents[1]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a prefix whose programs write into `done` what they were started for."""
    words = {"bin/warmstart": "maintained", "libexec/warmstart/background": "$1"}
    for name, word in words.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {word} >>{tmp_path}/done\n")
        program.chmod(0o755)
    paths = Installation(str(tmp_path)).node("n1")
    Path(paths.state, "7").mkdir(parents=True)
    Path(paths.root).mkdir(parents=True)
    Path(paths.began).touch()
    return tmp_path


@contextmanager
def started(site: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program, and end it as a container's end does."""
    argv = [sys.executable, "-c", PROGRAM, str(site)]
    with subprocess.Popen(argv, env={"PYTHONPATH": str(HOOKS)}) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def done(site: Path) -> list[str]:
    return (site / "done").read_text().split() if (site / "done").exists() else []


def has(site: Path, *words: str) -> Callable[[], bool]:
    return lambda: {*words} <= {*done(site)}


def test_it_does_what_timers_do_and_hands_on_what_it_can(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """On SIGTERM it maintains once more, and counts what is left: on a pod's own disk that is lost."""
    with started(site) as process:
        wait_until("maintenance", has(site, "maintained"), 20)
    assert process.returncode == 0
    assert done(site)[-1] == "maintained"
    assert "node n1 leaves 1 runs without an epilog, and 0 items of its queue" in capfd.readouterr().err


def test_it_looks_after_jobs_that_run(site: Path) -> None:
    with started(site):
        wait_until("maintenance", has(site, "maintained"), 20)
        assert "live" not in done(site)
        live = Path(Installation(str(site)).node("n1").queue, "live")
        live.mkdir(parents=True)
        (live / "1,2,1,7.0a1b2c3d").touch()
        wait_until("a harvest", has(site, "live"), 20)


def test_of_two_pods_over_one_state_the_living_one_keeps_it(site: Path) -> None:
    paths = Installation(str(site)).node("n1")
    other = paths._replace(runtime=str(site / "other/run/warmstart/n1"))  # another pod's /run
    os.makedirs(other.runtime)
    require_keeper(paths, "n1")  # nobody keeps it: systemd's timers do not
    with started(site):
        wait_until("maintenance", has(site, "maintained"), 20)
        require_keeper(paths, "n1")  # its own pod does
        with pytest.raises(NodeOfAnotherPod, match="node n1"):
            require_keeper(other, "n1")
        assert keep(paths) is None
        assert keep(other) is None
    require_keeper(other, "n1")
    ours = keep(other)
    assert ours is not None
    with pytest.raises(NodeOfAnotherPod, match="node n1"):
        require_keeper(paths, "n1")
    for lock in ours:
        os.close(lock)
