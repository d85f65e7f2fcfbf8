"""A tool that leaves a fact out of its key, on real Slurm: endless turns, what ends them, and how jobs may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until

if TYPE_CHECKING:
    from tests.lib.site import Site

POLICY = """\
profiles:
  toy:
    variables: {TOY_CACHE: "{dir}"}
    entries: ["*"]
    relocation: relocatable
rules:
  - {name: all, profiles: [toy]}
"""
# The tool: one kernel for all modes. It dies of another mode's.
TOY = """
toy() {
  [ -e "$TOY_CACHE/kernel" ] || { echo "$1" >"$TOY_CACHE/kernel"; echo built; return; }
  [ "$(cat "$TOY_CACHE/kernel")" = "$1" ] || kill -SEGV $$
  echo hit
}
"""


ADVICE = "the job began warm and died after "


class Tool:
    """The tool's user."""

    def __init__(self, site: Site, store: str) -> None:
        """Give the site an empty store."""
        self.site = site
        site.write_policy(POLICY, store=str(site.new_store(site.cluster.base / f"store-{store}")))
        self.job = 0

    def submit(self, mode: str, *arguments: str, then: str = "") -> int:
        """Submit a job that starts the tool in a mode, and does more then."""
        self.job = self.site.cluster.submit(f"#!/bin/sh\n{TOY}toy {mode}\n{then}\n", ALICE, *arguments)
        return self.job

    def run(self, mode: str, *arguments: str) -> str:
        """Run such a job; return what it printed, or that it died."""
        ended = self.site.finish(self.submit(mode, *arguments))
        return ended.output.strip() if ended.state == "COMPLETED" else "died"

    def is_advised(self, job: int) -> bool:
        """Return whether the user is told of a job that it died early after a warm start."""
        return ADVICE in self.site.command("explain", str(job)).stdout


def test_they_take_turns_and_are_told_what_ends_that(site: Site) -> None:
    """Each retry is seeded with the other mode's kernel; `fresh` turns it round."""
    tool = Tool(site, "turns")
    seen = [(tool.run(mode), tool.is_advised(tool.job)) for mode in "abbab"]
    died = ("died", True)
    assert seen == [("built", False), died, died, ("hit", False), died]
    assert tool.run("b", "--comment=warmstart: fresh") == "built"
    assert [tool.run(mode) for mode in "aba"] == ["died", "hit", "died"]


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
        wait_until("its epilog", lambda of=job: site.events(of, "cache.harvested") != [], 60)  # type: ignore[misc]
    cluster.cancel(job)  # its second run would begin when its credential is forgotten, in two minutes
    for command in (["salloc", "-n1", "sh", "-c", "exit 5"], ["srun", "-n1", "sh", "-c", "exit 4"]):
        assert cluster.run(command, ALICE).returncode in (4, 5)
    assert cluster.wait(late, 120).state == "TIMEOUT"
    cluster.wait_idle()
    finished = site.audit("--event", "step.finished", "--user", ALICE)
    assert [event for event in finished if event["job_id"] >= late and "died_ms" in event] == []
    failed = tool.submit("a", then="srun -n1 false; sleep 2; exit 0")
    assert site.finish(failed).state == "COMPLETED"
    assert tool.is_advised(failed)
