"""What a seeded job computes is right: stale entries, entries of a wrong key, killed jobs, and ranks at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from tests.lib.requirements import need_module
from tests.lib.site import Site, result

JOBS = Path(__file__).resolve().parents[1] / "tools" / "jobs"


class Project:
    """A user's source directory on the shared file system, and the jobs that run it."""

    def __init__(self, site: Site, tool: str) -> None:
        self.site = site
        self.path = site.cluster.base / f"project-{tool}"
        self.path.mkdir()
        self._jobs = 0
        store = site.new_store(site.cluster.base / f"store-stale-{tool}")
        rules = f"rules:\n  - {{name: all, profiles: [{tool}]}}\n"
        site.write_policy(rules, constant="spank", store=str(store))

    def add(self, name: str) -> Path:
        """Copy a sample job's file."""
        return Path(shutil.copy(JOBS / name, self.path / name))

    def run(self, command: str, *arguments: str) -> dict[str, Any]:
        """Run a shell command as a job, on the two nodes in turn; return the line that it printed, if any."""
        node = f"n{self._jobs % 2 + 1}"
        self._jobs += 1
        script = f"#!/bin/sh\ncd {self.path}\n{command}\n"
        job_id = self.site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=2", *arguments)
        ended = self.site.finish(job_id)
        assert ended.state == "COMPLETED", ended
        return result(ended.output) if ended.output.strip() else {}


def test_after_an_edit_of_a_helper_one_clean_run_is_enough(plugged: Site) -> None:
    """Numba does not see the edit. The job clears its cache and builds, or starts fresh, once; later jobs are right."""
    need_module("numba")
    project = Project(plugged, "numba")
    helper = project.path / "stale_helper.py"
    job = f"{plugged.cluster.python} {project.add('stale_job.py')}"

    def edit(factor: int) -> None:
        helper.write_text(f"import numba\n\n\n@numba.njit\ndef factor():\n    return {factor}\n")

    edit(2)
    assert project.run(job) == {"value": 200, "hits": 0, "misses": 1}
    edit(6)
    assert project.run(job) == {"value": 200, "hits": 1, "misses": 0}  # wrong, and as wrong as without warmstart
    assert project.run(f'rm -rf "$NUMBA_CACHE_DIR"/*; {job}') == {"value": 600, "hits": 0, "misses": 1}
    assert project.run(job) == {"value": 600, "hits": 1, "misses": 0}
    edit(7)
    assert project.run(job, "--warm-fresh") == {"value": 700, "hits": 0, "misses": 1}
    assert project.run(job) == {"value": 700, "hits": 1, "misses": 0}


@pytest.mark.sweep
def test_an_edited_extension_is_built_once(plugged: Site) -> None:
    """Ninja sees the edit. The job that builds the new version publishes it; the next one builds nothing."""
    need_module("torch")
    project = Project(plugged, "torch-extensions")
    project.add("report.py")
    job = f"{plugged.cluster.python} {project.add('extension_job.py')}"
    source = project.add("extension_job.cpp")
    built = []
    for edited in (False, True, False):  # the last one is on the node that has the first one's bundle
        if edited:
            source.write_text(source.read_text() + "\n// edited\n")
        built.append(project.run(job)["cache_misses"])
    assert built == [1, 1, 0]


TOY_POLICY = """\
profiles:
  toy:
    variables: {TOY_CACHE: "{dir}"}
    entries: {"*": []}
    relocation: relocatable
rules:
  - {name: all, profiles: [toy]}
"""
# A tool that leaves a fact out of its key: one kernel for all modes. It dies of another mode's.
TOY = """
toy() {
  [ -e "$TOY_CACHE/kernel" ] || { echo "$1" >"$TOY_CACHE/kernel"; echo built; return; }
  [ "$(cat "$TOY_CACHE/kernel")" = "$1" ] || kill -SEGV $$
  echo hit
}
"""


class Toy:
    """The tool's user."""

    def __init__(self, site: Site, store: str) -> None:
        self.site = site
        site.write_policy(TOY_POLICY, store=str(site.new_store(site.cluster.base / f"store-{store}")))
        self.job = 0

    def submit(self, mode: str, *arguments: str, then: str = "") -> int:
        """Submit a job that starts the tool in a mode, and does more then."""
        self.job = self.site.cluster.submit(f"#!/bin/sh\n{TOY}toy {mode}\n{then}\n", ALICE, *arguments)
        return self.job

    def run(self, mode: str, *arguments: str) -> str:
        """Run such a job; return what it printed, or that it died."""
        ended = self.site.finish(self.submit(mode, *arguments))
        return ended.output.strip() if ended.state == "COMPLETED" else "died"

    def is_advised(self) -> bool:
        """Return whether the user is told of the last job that it died early after a warm start."""
        return "the job began warm and died after " in self.site.command("explain", str(self.job)).stdout


def test_modes_take_turns_and_are_told_what_ends_that(site: Site) -> None:
    """Each retry is seeded with the other mode's kernel; `fresh` turns it round; with names nobody dies."""
    toy = Toy(site, "turns")
    assert [(toy.run(mode), toy.is_advised()) for mode in "aba"] == [("built", False), ("died", True), ("hit", False)]
    assert toy.run("b", "--comment=warmstart: fresh") == "built"
    assert [toy.run(mode) for mode in "ab"] == ["died", "hit"]
    named = [toy.run(mode, f"--comment=warmstart: cache=mode-{mode}") for mode in "abab"]
    assert named == ["built", "built", "hit", "hit"]


@pytest.mark.sweep
def test_ends_that_say_nothing_of_a_cache(site: Site) -> None:
    """A time limit, a cancellation, a requeue, and what people do in an allocation; a failed step is a bad end."""
    toy, cluster = Toy(site, "ends"), site.cluster
    assert toy.run("a") == "built"
    home = cluster.account(ALICE).home
    late = toy.submit("a", "--time=1", then="exec sleep 600")
    for act, arguments in ((cluster.cancel, ()), (cluster.requeue, ("--requeue",))):
        (home / "ran").unlink(missing_ok=True)
        job = toy.submit("a", *arguments, then="touch ran; exec sleep 600")
        wait_until("the tool", (home / "ran").exists, 60)
        act(job)
        wait_until("its epilog", lambda of=job: site.harvested(of) != [], 60)  # type: ignore[misc]
    cluster.cancel(job)  # its second run would begin when its credential is forgotten, in two minutes
    for command in (["salloc", "-n1", "sh", "-c", "exit 5"], ["srun", "-n1", "sh", "-c", "exit 4"]):
        assert cluster.run(command, ALICE).returncode in (4, 5)
    assert cluster.wait(late, 120).state == "TIMEOUT"
    cluster.wait_idle()
    assert [line for line in site.results() if line.get("job_id", 0) >= late and "died_ms" in line] == []
    assert site.finish(toy.submit("a", then="srun -n1 false; sleep 2; exit 0")).state == "COMPLETED"
    assert toy.is_advised()


@pytest.fixture
def fresh(site: Site, request: pytest.FixtureRequest) -> Site:
    """Give the site with an empty store."""
    site.write_policy(store=str(site.new_store(site.cluster.base / f"store-{request.node.name}")))
    return site


def of_numba(caches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of Numba."""
    return [cache for cache in caches if cache["profile"] == "numba"]


def test_ranks_that_compile_in_caches_of_their_own(fresh: Site) -> None:
    """Each of a step's two tasks finds on another node what its namesake compiled."""
    need_module("numba")
    site = fresh
    own = "NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:+$NUMBA_CACHE_DIR/rank_$SLURM_LOCALID}"
    rank = f"{own} exec {site.cluster.python} {site.jobs}/numba_job.py"
    script = f"#!/bin/sh\nsrun --quiet --ntasks=2 --overcommit sh -c '{rank}'\n"
    seen = {}
    for node in ("n1", "n2"):
        ended = site.finish(job_id := site.cluster.submit(script, ALICE, f"--nodelist={node}"), 300)
        assert ended.state == "COMPLETED", ended
        lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
        harvested = sum(event["entries"] for event in of_numba(site.harvested(job_id)))
        seen[node] = [(line["cache_hits"], line["cache_misses"]) for line in lines], harvested
    assert seen == {"n1": ([(0, 2)] * 2, 4), "n2": ([(2, 0)] * 2, 0)}


KINDS = "kernel_and_wrapper two_types größe"
KERNEL = 2  # the number of the file that makes a kernel whole; its wrapper is the next two


def kinds_job(site: Site, node: str, before: str = "", **variables: str) -> int:
    """Submit a job from a directory that a person named; returns its id."""
    settings = "".join(f"export {name}={value}\n" for name, value in variables.items())
    script = (
        f"#!/bin/sh\nset -e\nexport PYTHONUTF8=1\n{settings}mkdir -p 'my project [Ünï]'; cd 'my project [Ünï]'\n"
        f"cp {site.jobs}/numba_kinds_job.py größen.py\n{before}exec {site.cluster.python} größen.py {KINDS}\n"
    )
    return site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=1")


@pytest.mark.sweep
def test_jobs_that_each_brought_a_part(fresh: Site) -> None:
    """One is killed between kernel and wrapper, another compiled all meanwhile; the next two, one after compaction."""
    need_module("numba")
    site = fresh
    go = site.cluster.base / "go-kinds"
    whole = kinds_job(site, "n2", f"echo waiting\nwhile [ ! -e {go} ]; do sleep 0.1; done\n", WARMSTART_SHIFT="3")
    wait_until("the job", lambda: "waiting" in site.cluster.job(whole).output, 60)
    killed = kinds_job(site, "n1", WARMSTART_KILL=str(KERNEL))
    assert site.cluster.wait(killed, 240).state == "FAILED"
    wait_until("its harvest", lambda: bool(of_numba(site.harvested(killed))), 60)
    assert [event["entries"] for event in of_numba(site.harvested(killed))] == [1]
    go.touch()
    ended = site.finish(whole, 300)
    assert ended.state == "COMPLETED", ended
    (brought,) = of_numba(site.harvested(whole))
    assert (brought["entries"], brought["ignored"]) == (2, {})
    expected = result(ended.output.partition("waiting\n")[2])["results"]
    for node, compact in (("n1", False), ("n3", True)):
        if compact:
            assert site.command("cache", "compact").returncode == 0
        ended = site.finish(job_id := kinds_job(site, node))
        assert ended.state == "COMPLETED", ended
        report = result(ended.output)
        assert (report["results"], report["cache_misses"]) == (expected, 0)
        assert [event["entries"] for event in of_numba(site.seeded(job_id))] == [3]
