"""A server that compiles and does not end, on real Slurm: its replica on another node is warm meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from tests.lib.requirements import need_module
from tests.lib.site import Site, result

FIRST_S = 5  # an entry has settled after a tenth of it
LIVE = f"""\
harvest: {{while_running: {FIRST_S}s}}
rules:
  - name: everyone
    profiles: [numba]
    scope: user
"""


@pytest.fixture
def live(installed: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Give a site with an empty store that harvests jobs while they run."""
    store = installed.new_store(installed.cluster.base / f"store-{abs(hash(request.node.name))}")
    installed.write_policy(LIVE, store=str(store))
    yield installed
    installed.cluster.admin("scancel", "--partition=main")  # what a test that failed has left would serve on
    installed.cluster.wait_idle()
    installed.write_policy()


class Server:
    """A job that compiles in waves, and then serves until somebody ends it."""

    def __init__(self, site: Site, *waves: str, node: str = "n1", options: tuple[str, ...] = ()) -> None:
        """Each wave is a TOOL of tests/tools/jobs, with its argument; each but the first waits for `go`."""
        self.site, self.node = site, node
        self._go = site.cluster.base / f"go-{time.time_ns()}"
        script = "#!/bin/sh\n"
        for number, wave in enumerate(waves):
            tool, _, argument = wave.partition(" ")
            script += f"while [ ! -e {self._go}-{number} ]; do sleep 0.1; done\n" if number else ""
            script += f"{site.cluster.python} {site.jobs}/{tool}_job.py {argument}\necho wave {number} is done\n"
        script += "echo serves\nsleep 900\n"
        self.id = site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=2", *options)

    def said(self, text: str) -> None:
        """Wait until the job has said something."""
        wait_until(text, lambda: text in self.site.cluster.job(self.id).output, 240)

    def go(self, wave: int) -> None:
        """Let the job go on to a wave."""
        Path(f"{self._go}-{wave}").touch()

    def hasten(self) -> None:
        """Have the run's next harvest begin at the next look."""
        directory = self.site.runtime(self.node) / "queue" / "live"
        (name,) = [name for name in os.listdir(directory) if f",{self.id}." in name]
        owner, _, rest = name.partition(",")
        os.rename(directory / name, directory / f"{owner},1,{rest.partition(',')[2]}")

    def harvested(self) -> dict[str, int]:
        """Return the entries that were published while the job ran, by profile."""
        found: dict[str, int] = {}
        for event in self.site.harvested(self.id):
            if event.get("running"):
                found[event["profile"]] = found.get(event["profile"], 0) + event["entries"]
        return found


def look(site: Site, *nodes: str) -> None:
    """Do what the timer does, on all nodes or some, once everything has settled."""
    time.sleep(FIRST_S / 10 + 0.5)
    site.background("live", *nodes)


@contextmanager
def stopped_at_its_stage(site: Site, server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """Harvest a server, and stop the attempt in the middle of it; yield the program that has begun it."""
    time.sleep(FIRST_S / 10 + 0.5)
    program = site.cluster.prefix / "libexec/warmstart/background"
    with subprocess.Popen([*site.cluster.enter(server.node), program, "live", server.node]) as process:
        stage = site.var / server.node / "stage"
        try:
            while not list(stage.glob(f"{server.id}.*.numba")):
                assert process.poll() is None
                time.sleep(0.001)
            (attempt,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(attempt), signal.SIGSTOP)
            yield process
        finally:
            process.terminate()


def warm(site: Site, tool: str, node: str) -> tuple[int, int]:
    """Run a replica on another node to its end; return its own counters of hits and misses."""
    ended = site.cluster.wait(site.compile_job(tool, ALICE, node), 300)
    assert ended.state == "COMPLETED", ended
    report = result(ended.output)
    return report["cache_hits"], report["cache_misses"]


@pytest.mark.real_time
def test_a_replica_is_warm_while_the_first_one_serves(live: Site) -> None:
    """After each wave; and its end takes the place of that."""
    need_module("numba")
    server = Server(live, "numba", "numba array")
    server.said("wave 0 is done")
    server.hasten()
    look(live)
    assert server.harvested() == {"numba": 2}
    assert warm(live, "numba", "n2") == (2, 0)
    server.go(1)
    server.said("serves")
    server.hasten()
    look(live)
    assert server.harvested() == {"numba": 4}
    assert warm(live, "numba array", "n3") == (2, 0)
    assert "while the job ran" in live.command("explain", str(server.id)).stdout
    live.cluster.cancel(server.id)
    live.finish(server.id)
    (ended,) = [
        event for event in live.harvested(server.id) if not event.get("running") and event["profile"] == "numba"
    ]
    assert (ended["entries"], ended["use"]) == (4, "built")
    assert live.leftovers() == []
    assert os.listdir(live.runtime("n1") / "queue/live") == []


@pytest.mark.parametrize("how", ["cancel", "requeue"])
@pytest.mark.real_time
def test_a_job_that_ends_while_it_is_harvested(live: Site, how: str) -> None:
    """Its epilog ends the harvest, and brings all."""
    need_module("numba")
    site = live
    server = Server(site, "numba", options=("--requeue",))
    server.said("wave 0 is done")
    server.hasten()
    with stopped_at_its_stage(site, server) as stopped:
        ends: dict[str, Callable[[int], None]] = {"cancel": site.cluster.cancel, "requeue": site.cluster.requeue}
        ends[how](server.id)
        wait_until("the end of its run", lambda: bool(site.events(server.id, "hook.finished")[1:]), 60)
        assert stopped.wait(20) == 0
    ended = [e for e in site.harvested(server.id) if e["profile"] == "numba"]
    assert [(e["entries"], e.get("running")) for e in ended][:1] == [(2, None)]
    if how == "requeue":
        site.cluster.cancel(server.id)
    site.finish(server.id)
    assert os.listdir(site.runtime("n1") / "queue/live") == []
    assert [name for name in os.listdir(site.var / "n1/stage") if name.startswith(f"{server.id}.")] == []
    assert warm(site, "numba", "n2") == (2, 0)
