"""What each kind of step sees of its cache, with and without the SPANK plugin and job_container/tmpfs."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import spank
from tests.cluster.accounts import ALICE
from tests.cluster.cluster import Cluster
from tests.cluster.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "inside-the-job.md"
TABLE = re.compile(r"(?<=<!-- made by tests/integration/test_constant_path.py -->\n)(\|.*\n)+")
# Each line: the kind of step, what it sees, and whether it is the cache that its job's first step wrote into.
SHOW = (
    'echo "{kind}: $WARMSTART_CACHE $NUMBA_CACHE_DIR $TMPDIR $(cd $WARMSTART_CACHE && echo marker* numba* | tr " " +)"'
)
MARK = 'touch "$WARMSTART_CACHE/marker"'
SETTINGS = {
    "plain": (),
    "`job_container/tmpfs`": ("contained",),
    "the plugin": ("plugin",),
    "the plugin, `job_container/tmpfs`": ("plugin", "contained"),
    "the plugin, no task prolog": ("plugin", "no task prolog"),
}


@pytest.fixture(scope="module")
def contained(capable_host: None) -> Iterator[Site]:
    """Give a site whose jobs each have a /tmp of their own."""
    with Cluster(job_container=True) as cluster:
        yield Site(cluster)


@contextmanager
def set_up(site: Site, setting: tuple[str, ...]) -> Iterator[None]:
    """Load the plugin, take the task prolog away, say so in the policy; undone afterwards."""
    program = site.cluster.prefix / "libexec" / "warmstart" / "task-prolog"
    with ExitStack() as stack:
        if "plugin" in setting:
            stack.enter_context(spank.loaded(site))
            site.write_policy(constant="spank")
            stack.callback(site.write_policy)
        if "no task prolog" in setting:
            text = program.read_text()
            program.write_text("#!/bin/sh\n")
            stack.callback(program.write_text, text)
        yield


def step(kind: str, command: str = "") -> str:
    """Return a line of a job's script that shows what this kind of step sees."""
    show = SHOW.format(kind=kind)
    return f"{command} sh -c '{show}'" if command else show


def observed(site: Site) -> dict[str, set[str]]:
    """Run every kind of step; return by kind what its tasks saw, with the paths that differ from job to job named."""
    steps = [
        step("a step of one task", "srun --ntasks=1"),
        step("a step of 16 tasks on the node", "srun --ntasks=16 --overcommit"),
    ]
    batch = "\n".join(["#!/bin/sh", MARK, step("the batch script"), *steps])
    array = "\n".join(["#!/bin/sh", MARK, step("a task of an array")])
    parts = (step("a component of a heterogeneous job", f"srun --het-group={n}") for n in (0, 1))
    marks = (f"srun --het-group={n} sh -c '{MARK}'" for n in (0, 1))
    hetero = "\n".join(["#!/bin/sh", *marks, *parts])
    jobs = [
        site.cluster.submit(batch, ALICE, "--nodelist=n1"),
        site.cluster.submit(array, ALICE, "--array=3", "--nodelist=n2"),
        site.cluster.submit(hetero, ALICE, "--nodelist=n3", ":", "--nodelist=n4"),
    ]
    inside = step("a step of salloc", "srun")
    salloc = site.cluster.run(["salloc", "--quiet", "sh", "-c", f"srun sh -c '{MARK}'; {inside}"], ALICE)
    outputs = [site.cluster.wait(job_id).output for job_id in jobs] + [salloc.stdout]
    site.cluster.wait_idle()
    seen: dict[str, set[str]] = {}
    for line in "".join(outputs).splitlines():
        kind, found, text = line.partition(": ")
        if found and "tasks" not in text:
            seen.setdefault(kind, set()).add(named(site, text))
    return seen


def named(site: Site, text: str) -> str:
    """Put names in the place of paths."""
    text = text.replace(str(site.constant), "/var/cache/warmstart")
    return re.sub(rf"{re.escape(str(site.workspace))}/n\d/\d+\.[0-9a-f]{{8}}", "RUN", text)


def test_the_table_of_the_docs(site: Site, contained: Site) -> None:
    """docs/inside-the-job.md says what is seen here: every cell is that of all tasks of all jobs of its kind."""
    if spank.missing():
        if os.environ.get("CI") == "true":
            pytest.fail(spank.missing())
        pytest.skip(spank.missing())
    columns = []
    for setting in SETTINGS.values():
        where = contained if "contained" in setting else site
        with set_up(where, setting):
            columns.append(observed(where))
        assert where.leftovers() == []
    rows = []
    for kind in columns[0]:
        cells = []
        for column in columns:
            (seen,) = column[kind]
            cache, numba, tmpdir, content = seen.split()
            assert (numba, tmpdir, content) == (f"{cache}/numba", "RUN/tmp", "marker+numba")
            cells.append(f"`{cache}`")
        rows.append((kind, *cells))
    lines = [("`WARMSTART_CACHE` as seen by", *SETTINGS), ("---",) * (1 + len(SETTINGS)), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    written = TABLE.search(PAGE.read_text())
    assert written is not None
    assert written[0] == table


def test_a_cache_made_at_the_constant_path_is_warm_elsewhere(site: Site) -> None:
    """The job compiles below the constant path; harvest and seed work on the workspace, and the next node is warm."""
    if spank.missing():
        pytest.skip(spank.missing())
    with spank.loaded(site):
        site.write_policy(constant="spank", store=str(site.new_store(site.cluster.base / "store.constant")))
        counters = []
        for node in ("n1", "n2"):
            ended = site.cluster.wait(site.compile_job("numba", ALICE, node), 240)
            site.cluster.wait_idle()
            counters.append(result(ended.output))
    assert (counters[0]["cache_hits"], counters[0]["cache_misses"] > 0) == (0, True)
    assert (counters[1]["cache_hits"] > 0, counters[1]["cache_misses"]) == (True, 0)


TORCH = "rules:\n  - name: everyone\n    profiles: [numba, torch-extensions]\n"


def test_a_profile_that_needs_the_path_is_left_out_without_it(site: Site) -> None:
    """The audit says so, its variable is not set; with the plugin it is, below the constant path."""
    if spank.missing():
        pytest.skip(spank.missing())
    script = '#!/bin/sh\necho "$NUMBA_CACHE_DIR $TORCH_EXTENSIONS_DIR"\n'
    site.write_policy(TORCH)
    job_id = site.cluster.submit(script, ALICE)
    assert named(site, site.cluster.wait(job_id).output) == "RUN/cache/numba \n"
    assert [event["profile"] for event in site.events(job_id, "profile.left-out")] == ["torch-extensions"]
    with spank.loaded(site):
        site.write_policy(TORCH, constant="spank")
        job_id = site.cluster.submit(script, ALICE)
        seen = named(site, site.cluster.wait(job_id).output)
    assert [path.rpartition("/")[0] for path in seen.split()] == ["/var/cache/warmstart"] * 2
    assert site.events(job_id, "profile.left-out") == []
