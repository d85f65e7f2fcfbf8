"""A tool that leaves a fact out of its key, on real Slurm: endless turns, where they end, and how jobs may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.accounts import ALICE
from tests.cluster.processes import wait_until

if TYPE_CHECKING:
    from tests.cluster.cluster import JobResult
    from tests.cluster.site import Site

POLICY = """\
profiles:
  toy:
    variables: {TOY_CACHE: "{dir}"}
    entries: ["*"]
    relocation: relocatable
    wrong_hits: the name of its kernel leaves the mode out
rules:
  - {name: all, profiles: [toy]}
"""
OFF = "seed: {suspect: null}\n"
# The tool: one kernel for all modes. It dies of another mode's.
TOY = """
toy() {
  [ -e "$TOY_CACHE/kernel" ] || { echo "$1" >"$TOY_CACHE/kernel"; echo built; return; }
  [ "$(cat "$TOY_CACHE/kernel")" = "$1" ] || kill -SEGV $$
  echo hit
}
"""


class Tool:
    """The tool's user."""

    def __init__(self, site: Site, store: str, more: str = "") -> None:
        """Give the site an empty store, and more keys of the policy."""
        self.site = site
        site.write_policy(more + POLICY, store=str(site.new_store(site.cluster.base / f"store-{store}")))
        self.jobs: list[int] = []

    def submit(self, mode: str, *arguments: str, then: str = "") -> int:
        """Submit a job that starts the tool in a mode, and does more then."""
        self.jobs.append(self.site.cluster.submit(f"#!/bin/sh\n{TOY}toy {mode}\n{then}\n", ALICE, *arguments))
        return self.jobs[-1]

    def run(self, mode: str, *arguments: str) -> str:
        """Run such a job; return what it printed, or that it died."""
        return self.said(self.site.finish(self.submit(mode, *arguments)))

    def on_two_nodes(self, mode: str) -> str:
        """Run the tool once on each of two nodes, and wait for what they publish."""
        script = f"#!/bin/sh\nsrun --ntasks-per-node=1 sh -c '{TOY}toy {mode}'\n"
        self.jobs.append(self.site.cluster.submit(script, ALICE, "--nodes=2"))
        said = self.said(self.site.finish(self.jobs[-1]))
        wait_until("what the nodes have handed in", lambda: self.told("harvest.merged") != [], 60)
        return said

    @staticmethod
    def said(ended: JobResult) -> str:
        """Return what a job printed, or that it died."""
        return ended.output.strip() if ended.state == "COMPLETED" else "died"

    def told(self, event: str) -> list[dict[str, object]]:
        """Return the events of the last job of this name."""
        return self.site.events(self.jobs[-1], event)


def test_without_it_they_take_turns_for_ever(site: Site) -> None:
    """Each retry is seeded with the other mode's kernel; `fresh` turns it round."""
    tool = Tool(site, "turns", OFF)
    assert [tool.run(mode) for mode in "abbab"] == ["built", "died", "died", "hit", "died"]
    assert tool.run("b", "--comment=warmstart: fresh") == "built"
    assert [tool.run(mode) for mode in "aba"] == ["died", "hit", "died"]


def test_two_are_lost_and_then_nobody(site: Site) -> None:
    """The survivor's kernel is there for the next ones; then neither; all nodes of a job are cold. It is told."""
    tool = Tool(site, "ends")
    assert [tool.run(mode) for mode in "ab"] == ["built", "died"]
    assert [event["opened"] for event in tool.told("cache.suspected")] == [True]
    died = tool.jobs[-1]
    assert tool.on_two_nodes("b").split() == ["built", "built"]
    explained = site.command("explain", str(tool.jobs[-1])).stdout
    assert f"cold this time, because job {died} died " in explained
    assert " s after a warm start" in explained
    assert [event["settled"] for event in tool.told("bundle.published")] == ["replaced"]
    assert [tool.run(mode) for mode in "bab"] == ["hit", "died", "built"]
    assert [event["entries"] for event in tool.told("cache.set-aside")] == [1]
    assert [tool.run(mode) for mode in "abab"] == ["built"] * 4
    assert "two configurations replace each other's entries" in site.command("explain", str(tool.jobs[-5])).stdout
    report = site.command("report", "--since", "1h").stdout
    assert "EARLY DEATHS AFTER WARM STARTS" in report.upper()


def test_a_job_that_dies_cold_acquits_the_cache(site: Site) -> None:
    """It is a typing error then: the cache is warm again, and stays so."""
    tool = Tool(site, "typo")
    assert tool.run("a") == "built"
    for warm, event in ((True, "cache.suspected"), (False, "cache.acquitted"), (True, "")):
        ended = site.finish(tool.submit("a", then="exit 3"))
        assert (ended.state, ended.output.strip()) == ("FAILED", "hit" if warm else "built")
        assert [name for name in ("cache.suspected", "cache.acquitted") if tool.told(name)] == [
            event or "cache.suspected"
        ]
        if not event:
            assert [told["opened"] for told in tool.told("cache.suspected")] == [False]
    assert tool.run("a") == "hit"


def test_with_names_nobody_dies(site: Site) -> None:
    """Each mode has a cache of its own, and it is warm."""
    tool = Tool(site, "names")
    runs = [tool.run(mode, f"--comment=warmstart: cache=mode-{mode}") for mode in "abbaab"]
    assert runs == ["built", "built", "hit", "hit", "hit", "hit"]


@pytest.mark.sweep
def test_ends_that_say_nothing_of_a_cache(site: Site) -> None:
    """A time limit, a cancellation, a requeue, and what people do in an allocation; a failed step is a bad end."""
    tool, cluster = Tool(site, "codes"), site.cluster
    assert tool.run("a") == "built"
    home = cluster.account(ALICE).home
    late = tool.submit("a", "--time=1", then="exec sleep 600")
    for act, arguments in ((cluster.cancel, ()), (cluster.requeue, ("--requeue",))):
        (home / "ran").unlink(missing_ok=True)
        job = tool.submit("a", *arguments, then="touch ran; exec sleep 600")
        wait_until("the tool", (home / "ran").exists, 60)
        act(job)
        wait_until("its epilog", lambda: tool.told("cache.harvested") != [], 60)
    cluster.cancel(job)  # its second run would begin when its credential is forgotten, in two minutes
    for command in (["salloc", "-n1", "sh", "-c", "exit 5"], ["srun", "-n1", "sh", "-c", "exit 4"]):
        assert cluster.run(command, ALICE).returncode in (4, 5)
    assert cluster.wait(late, 120).state == "TIMEOUT"
    cluster.wait_idle()
    suspected = site.audit("--event", "cache.suspected", "--user", ALICE)
    assert [event for event in suspected if event["job_id"] >= tool.jobs[0]] == []
    failed = tool.submit("a", then="srun -n1 false; sleep 2; exit 0")
    assert site.finish(failed).state == "COMPLETED"
    assert [event["opened"] for event in tool.told("cache.suspected")] == [True]
