"""What each kind of step sees of its cache, for each way to the constant path, with and without job_container/tmpfs.

Run with the Slurm that the host has; `tests/releases` runs it with newer ones, which has further ways.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.lib import spank
from tests.lib.accounts import ALICE, BOB
from tests.lib.cluster import Cluster
from tests.lib.config import Namespace
from tests.lib.processes import wait_until
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "inside-the-job.md"
TABLE = r"(?<=<!-- made by tests/slurm/test_constant_path.py, Slurm {version} -->\n)(\|.*\n)+"
# Each line: the kind of step, what it sees, and whether it is the cache that its job's first step wrote into.
CONTENT = '$(cd $WARMSTART_CACHE && echo marker* numba* | tr " " +)'
SHOW = f'echo "> {{kind}}: $WARMSTART_CACHE $NUMBA_CACHE_DIR $TMPDIR {CONTENT}"'
MARK = 'touch "$WARMSTART_CACHE/marker"'
TMP = "/tmp/.warmstart-cache"
PRIVATE = "{base}/private"  # what the namespace gives to each job besides /tmp, from 23.02 on
_TMPFS = f"Dirs=/tmp,/dev/shm,{PRIVATE} CloneNSScript={{prefix}}/libexec/warmstart/job-container"
_LINUX = f"dirs: /tmp,/dev/shm,{PRIVATE}\nclone_ns_script: {{prefix}}/libexec/warmstart/job-container\n"
NAMESPACES = {
    "job_container 22.05": Namespace(),
    "job_container": Namespace("job_container/tmpfs", _TMPFS),
    "tmpfs": Namespace("namespace/tmpfs", _TMPFS),
    "linux": Namespace("namespace/linux", _LINUX),
    "linux, CLONE_NEWPID": Namespace("namespace/linux", f"{_LINUX}clone_ns_flags: [CLONE_NEWNS, CLONE_NEWPID]\n"),
}


class Setting(NamedTuple):
    """The setup of a node, and its policy."""

    way: str = "none"
    namespace: str = ""  # one of NAMESPACES
    plugin: bool = False
    task_prolog: bool = True
    cache: str = "{base}/constant"


SETTINGS = {
    "22.05": {
        "plain": Setting(),
        "`job_container`": Setting(namespace="job_container 22.05"),
        "the plugin": Setting("spank", plugin=True),
        "the plugin, `job_container`": Setting("spank", namespace="job_container 22.05", plugin=True),
        "the plugin, no task prolog": Setting("spank", plugin=True, task_prolog=False),
        "`link`, a /tmp that all share": Setting("link", cache=TMP),
        "`link`, /tmp of `job_container`": Setting("link", namespace="job_container 22.05", cache=TMP),
    },
    "24.11": {
        "`job_container`": Setting(namespace="job_container"),
        "the plugin, `job_container`": Setting("spank", namespace="job_container", plugin=True),
        "CloneNSScript of `job_container`": Setting("namespace", namespace="job_container"),
        "`link`, in one of its `Dirs`": Setting("link", namespace="job_container", cache=f"{PRIVATE}/job"),
    },
    "26.05": {
        "CloneNSScript of `namespace/tmpfs`": Setting("namespace", namespace="tmpfs"),
        "`clone_ns_script` of `namespace/linux`": Setting("namespace", namespace="linux"),
        "the same, `CLONE_NEWPID`": Setting("namespace", namespace="linux, CLONE_NEWPID"),
        "the plugin, `CLONE_NEWPID`": Setting("spank", namespace="linux, CLONE_NEWPID", plugin=True),
        "`link`, in one of its `dirs`": Setting("link", namespace="linux", cache=f"{PRIVATE}/job"),
    },
}


def version() -> str:
    """Return the part of the table for the installed Slurm: the last one that is not newer (22.05.8: 22.05)."""
    text = subprocess.run(["/usr/sbin/slurmd", "-V"], check=True, capture_output=True, text=True).stdout
    installed = text.removeprefix("slurm").removeprefix("-wlm").strip()
    return max(release for release in SETTINGS if release <= installed)


@pytest.fixture(scope="module")
def contained(capable_host: None, install: Callable[[Path], None]) -> Iterator[Callable[[str], Site]]:
    """Yield a function that returns a site whose jobs each have a mount namespace, one of NAMESPACES."""
    sites: dict[str, Site] = {}
    with ExitStack() as stack:

        def started(namespace: str) -> Site:
            if namespace not in sites:
                cluster = Cluster(namespace=NAMESPACES[namespace])
                (cluster.base / "private").mkdir()
                sites[namespace] = Site(stack.enter_context(cluster), install=install)
            return sites[namespace]

        yield started


@contextmanager
def set_up(site: Site, setting: Setting) -> Iterator[None]:
    """Load the plugin, remove the task prolog, set the policy accordingly. Undone afterwards."""
    program = site.cluster.prefix / "libexec" / "warmstart" / "task-prolog"
    with ExitStack() as stack:
        site.write_policy(constant=setting.way, cache=setting.cache.format(base=site.cluster.base))
        stack.callback(site.write_policy)
        if setting.plugin:
            stack.enter_context(spank.loaded(site))
        if not setting.task_prolog:
            text = program.read_text()
            program.write_text("#!/bin/sh\n")
            stack.callback(program.write_text, text)
        yield


def step(kind: str, command: str = "") -> str:
    """Return a line of a job's script that shows what this kind of step sees."""
    show = SHOW.format(kind=kind)
    return f"{command} sh -c '{show}'" if command else show


def observed(site: Site) -> dict[str, set[str]]:
    """Run every kind of step. Return what its tasks saw, by kind, with job-specific paths replaced by names."""
    again = requeued_once(site)
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
        site.cluster.submit(array, ALICE, "--array=3", "--nodelist=n1"),
        site.cluster.submit(hetero, ALICE, "--nodelist=n3", ":", "--nodelist=n4"),
    ]
    inside = step("a step of salloc", "srun")
    salloc = site.cluster.run(["salloc", "--quiet", "sh", "-c", f"srun sh -c '{MARK}'; {inside}"], ALICE)
    site.cluster.admin("scontrol", "update", f"jobid={again}", "starttime=now")
    ended = [site.cluster.wait(job_id) for job_id in (*jobs, again)]
    assert [job for job in ended if job.state != "COMPLETED"] == []
    outputs = [*(job.output for job in ended), salloc.stdout]
    site.cluster.wait_idle()
    seen: dict[str, set[str]] = {}
    for line in "".join(outputs).splitlines():
        if line.startswith("> "):  # Slurm has its say there, too
            kind, _, text = line.removeprefix("> ").partition(": ")
            seen.setdefault(kind, set()).add(text)
    return seen


def requeued_once(site: Site) -> int:
    """Submit a job and requeue it in its first run; it shows what it sees in the second.

    Its node is its own: slurmd looks for credentials to forget at most every two seconds, and a job whose revoked one
    it still has runs without a prolog (`_clear_expired_job_states`; seen with 22.05).
    """
    started = site.cluster.account(ALICE).home / "started"
    first = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {MARK}; touch {started}; sleep 120; fi'
    script = "\n".join(["#!/bin/sh", first, MARK, step("a requeued job")])
    job_id = site.cluster.submit(script, ALICE, "--nodelist=n2", "--requeue", "--open-mode=append")
    wait_until("the first run", started.exists, 60)
    started.unlink()
    site.cluster.requeue(job_id)
    site.cluster.wait_for(job_id, {"PENDING"})
    requeued = time.time()  # slurmd tells the new credential from the revoked one by the second
    wait_until("another second", lambda: time.time() > requeued + 2, 10)
    return job_id


def named(site: Site, text: str, constant: Path | str) -> str:
    """Replace paths by names."""
    text = text.replace(str(constant), "/var/cache/warmstart")
    return re.sub(rf"{re.escape(str(site.workspace))}/\d+\.[0-9a-f]{{8}}", "RUN", text)


@pytest.mark.sweep
def test_the_table_of_the_docs(site: Site, contained: Callable[[str], Site]) -> None:
    """Every row of the tables in docs/start/inside-the-job.md holds for all tasks of all kinds of jobs and steps."""
    spank.need()
    settings, columns = SETTINGS[version()], []
    for setting in settings.values():
        where = contained(setting.namespace) if setting.namespace else site
        constant = setting.cache.format(base=where.cluster.base)
        with set_up(where, setting):
            column = observed(where)
        columns.append({kind: {named(where, text, constant) for text in seen} for kind, seen in column.items()})
        assert where.leftovers() == []
    assert not Path(TMP).is_symlink()
    table = f"| Slurm {version()} | `WARMSTART_CACHE` |\n| --- | --- |\n"
    for name, column in zip(settings, columns, strict=True):
        assert len(column) == 7, f"{name}: {[*column]}"  # the kinds that the page names
        (seen,) = set().union(*column.values())
        assert seen.count(" ") == 3, f"{name}: {seen}"  # without a prolog most of it is empty
        cache, numba, tmpdir, content = seen.split()
        assert (numba, tmpdir, content) == (f"{cache}/numba", "RUN/tmp", "marker+numba")
        table += f"| {name} | `{cache}` |\n"
    written = re.search(TABLE.format(version=re.escape(version())), PAGE.read_text())
    assert written is not None
    assert written[0] == table


@pytest.mark.threat(4)
@pytest.mark.parametrize("trap", ["nothing", "another user's link"])
def test_a_link_in_a_shared_tmp_is_never_made_nor_followed(site: Site, trap: str) -> None:
    """In everybody's /tmp the job has its own path, whether the name is free or taken.

    Seen before the proof was asked for: the second user's job wrote into the first one's cache.
    """
    lure = site.cluster.base / "lure"
    lure.mkdir()
    lure.chmod(0o777)
    if trap != "nothing":
        site.cluster.run(["/bin/ln", "-s", str(lure), TMP], BOB)
    site.write_policy(constant="link", cache=TMP)
    try:
        job_id = site.cluster.submit(f"#!/bin/sh\n{MARK}\necho $WARMSTART_CACHE $NUMBA_CACHE_DIR\n", ALICE)
        seen = named(site, site.cluster.wait(job_id).output, TMP)
        made = Path(TMP).is_symlink()
    finally:
        Path(TMP).unlink(missing_ok=True)
    content = [path.name for path in lure.iterdir()]
    shutil.rmtree(lure)
    assert seen == "RUN/cache RUN/cache/numba\n"
    assert (made, content) == (trap != "nothing", [])


def test_a_cache_made_at_the_constant_path_is_warm_elsewhere(site: Site) -> None:
    """Compiled below the constant path, harvested and seeded in the workspace, warm on the next node."""
    spank.need()
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
# A link is enough for torch: ninja's files name the path that the job was told, not where it leads.
WITHOUT_PLUGIN = {
    "22.05": ("extension", Setting("link", namespace="job_container 22.05", cache=TMP)),
    "24.11": ("numba", Setting("namespace", namespace="job_container")),
    "26.05": ("numba", Setting("namespace", namespace="linux, CLONE_NEWPID")),
}


def test_without_the_plugin_a_cache_is_warm_elsewhere(contained: Callable[[str], Site]) -> None:
    """With a job's mount namespace alone: built at the constant path on one node, warm on the next."""
    tool, setting = WITHOUT_PLUGIN[version()]
    site = contained(setting.namespace)
    base = site.cluster.base
    store = site.new_store(base / "store.contained")
    site.write_policy(TORCH, constant=setting.way, cache=setting.cache.format(base=base), store=str(store))
    try:
        ended = [site.finish(site.compile_job(tool, ALICE, node)) for node in ("n1", "n2")]
    finally:
        site.write_policy()
    cold, warm = (result(each.output) for each in ended)
    assert (cold["cache_hits"], cold["cache_misses"] > 0) == (0, True)
    assert (warm["cache_hits"] > 0, warm["cache_misses"]) == (True, 0)


def test_a_profile_that_needs_the_path_is_left_out_without_it(site: Site) -> None:
    """The audit reports it, and its variable is unset. With the plugin it is set."""
    spank.need()
    script = '#!/bin/sh\necho "$NUMBA_CACHE_DIR $TORCH_EXTENSIONS_DIR"\n'
    site.write_policy(TORCH)
    job_id = site.cluster.submit(script, ALICE)
    assert named(site, site.cluster.wait(job_id).output, site.constant) == "RUN/cache/numba \n"
    assert [event["profile"] for event in site.events(job_id, "profile.left-out")] == ["torch-extensions"]
    with spank.loaded(site):
        site.write_policy(TORCH, constant="spank")
        job_id = site.cluster.submit(script, ALICE)
        seen = named(site, site.cluster.wait(job_id).output, site.constant)
    assert [path.rpartition("/")[0] for path in seen.split()] == ["/var/cache/warmstart"] * 2
    assert site.events(job_id, "profile.left-out") == []
