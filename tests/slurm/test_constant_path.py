"""Each way to the constant path, with and without a mount namespace of Slurm's for each job.

Run with the Slurm that the host has; `tests/releases` runs it with newer ones, which have further ways.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.lib import config, spank
from tests.lib.accounts import ALICE, BOB
from tests.lib.config import Namespace
from tests.lib.namespaces import JOBS, a_namespace, as_alice, mounts, run_hook
from tests.lib.processes import wait_until
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TMP = "/tmp/.warmstart-cache"
PRIVATE = "{base}/private"  # what the namespace gives to each job besides /tmp, from 23.02 on
_TMPFS = f"Dirs=/tmp,/dev/shm,{PRIVATE} CloneNSScript={{prefix}}/libexec/warmstart/job-container"
_LINUX = f"dirs: /tmp,/dev/shm,{PRIVATE}\nclone_ns_script: {{prefix}}/libexec/warmstart/job-container\n"
JOB_CONTAINER = Namespace("job_container/tmpfs", _TMPFS)
LINUX = Namespace("namespace/linux", _LINUX)
NEW_PID = Namespace("namespace/linux", f"{_LINUX}clone_ns_flags: [CLONE_NEWNS, CLONE_NEWPID]\n")


class Setting(NamedTuple):
    """The way to the constant path, and the namespace of each job, if it has one."""

    way: str
    namespace: Namespace | None = None
    cache: str = "{base}/constant"


SETTINGS = {
    "22.05": {
        "plugin": Setting("spank"),
        "plugin, job_container": Setting("spank", Namespace()),
        "link, job_container": Setting("link", Namespace(), TMP),
    },
    "24.11": {
        "plugin, job_container": Setting("spank", JOB_CONTAINER),
        "job_container": Setting("namespace", JOB_CONTAINER),
        "link, job_container": Setting("link", JOB_CONTAINER, f"{PRIVATE}/job"),
    },
    "26.05": {
        "tmpfs": Setting("namespace", Namespace("namespace/tmpfs", _TMPFS)),
        "linux": Setting("namespace", LINUX),
        "linux, new pid": Setting("namespace", NEW_PID),
        "plugin, linux, new pid": Setting("spank", NEW_PID),
        "link, linux": Setting("link", LINUX, f"{PRIVATE}/job"),
    },
}
# The last one that is not newer than the installed Slurm.
RELEASE = max((release for release in SETTINGS if release <= config.release()), default="22.05")
# Each line: what a task sees, and whether that is the cache that its job's first step wrote into.
SHOW = 'echo "> $WARMSTART_CACHE $NUMBA_CACHE_DIR $TMPDIR $(cd $WARMSTART_CACHE && echo marker*)"'
MARK = 'touch "$WARMSTART_CACHE/marker"'
LINES = 22


@contextmanager
def set_up(site: Site, setting: Setting, store: Path) -> Iterator[None]:
    """Load the plugin, and set the policy accordingly. The plugin needs no task prolog. Undone afterwards."""
    program = site.cluster.prefix / "libexec" / "warmstart" / "task-prolog"
    with ExitStack() as stack:
        cache = setting.cache.format(base=site.cluster.base)
        site.write_policy(constant=setting.way, cache=cache, store=str(site.new_store(store)))
        stack.callback(site.write_policy)
        if setting.way == "spank":
            stack.enter_context(spank.loaded(site))
            text = program.read_text()
            program.write_text("#!/bin/sh\n")
            stack.callback(program.write_text, text)
        yield


@pytest.mark.parametrize("name", SETTINGS[RELEASE])
def test_all_tasks_see_their_cache_there_and_it_is_warm_elsewhere(
    site: Site, contained: Callable[[Namespace], Site], name: str
) -> None:
    """The batch script, steps of one and of many tasks, of an array, of a heterogeneous job, and of salloc."""
    spank.need()
    setting = SETTINGS[RELEASE][name]
    site = contained(setting.namespace) if setting.namespace else site
    copy, show = f"{site.cluster.python} {site.jobs}/copy_job.py", f"sh -c '{SHOW}'"
    batch = f"#!/bin/sh\n{MARK}\n{copy}\n{SHOW}\nsrun --ntasks=1 {show}\nsrun --ntasks=16 --overcommit {show}\n"
    array = f"#!/bin/sh\n{MARK}\n{SHOW}\n{copy}\n"
    parts = "".join(f"srun --het-group={n} sh -c '{MARK}; {SHOW}'\n" for n in (0, 1))
    with set_up(site, setting, site.cluster.base / re.sub(r"\W+", "-", f"store {name}")):
        first = site.finish(site.cluster.submit(batch, ALICE, "--nodelist=n1"))
        jobs = [
            site.cluster.submit(array, ALICE, "--array=3", "--nodelist=n2"),
            site.cluster.submit(f"#!/bin/sh\n{parts}", ALICE, "--nodelist=n3", ":", "--nodelist=n4"),
        ]
        salloc = site.cluster.run(["salloc", "--quiet", "sh", "-c", f"srun sh -c '{MARK}'; srun {show}"], ALICE)
        ended = [first, *(site.finish(job) for job in jobs)]
    assert [job.state for job in ended] == ["COMPLETED"] * 3, ended
    constant = setting.cache.format(base=site.cluster.base)
    text = "".join([*(job.output for job in ended), salloc.stdout])
    seen = [named(site, line) for line in text.splitlines() if line.startswith("> ")]
    assert ({*seen}, len(seen)) == ({f"> {constant} {constant}/numba RUN/tmp marker"}, LINES)
    assert [result(job.output)["cache_misses"] > 0 for job in ended[:2]] == [True, False]
    assert site.leftovers() == []
    assert not Path(TMP).is_symlink()


def named(site: Site, text: str) -> str:
    """Replace the paths of workspaces by a name."""
    return re.sub(rf"{re.escape(str(site.workspace))}/\d+\.[0-9a-f]{{8}}", "RUN", text)


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
        seen = named(site, site.cluster.wait(job_id).output)
        made = Path(TMP).is_symlink()
    finally:
        Path(TMP).unlink(missing_ok=True)
    content = [path.name for path in lure.iterdir()]
    shutil.rmtree(lure)
    assert seen == "RUN/cache RUN/cache/numba\n"
    assert (made, content) == (trap != "nothing", [])


def test_a_profile_that_needs_the_path_is_left_out_without_it(site: Site) -> None:
    """The audit reports it, and its variable is unset. With the plugin it is set."""
    spank.need()
    rules = "rules:\n  - name: everyone\n    profiles: [numba, torch-extensions]\n"
    script = '#!/bin/sh\necho "$NUMBA_CACHE_DIR $TORCH_EXTENSIONS_DIR"\n'
    site.write_policy(rules)
    job_id = site.cluster.submit(script, ALICE)
    assert named(site, site.cluster.wait(job_id).output) == "RUN/cache/numba \n"
    assert [remark.partition(":")[0] for remark in site.remarks(job_id)] == ["torch-extensions"]
    with spank.loaded(site):
        site.write_policy(rules, constant="spank")
        job_id = site.cluster.submit(script, ALICE)
        seen = site.cluster.wait(job_id).output
    assert [path.rpartition("/")[0] for path in seen.split()] == [str(site.constant)] * 2
    assert site.remarks(job_id) == []


@pytest.mark.threat(13)
def test_another_jobs_namespace_holds_no_mount_of_a_job_that_ended(contained: Callable[[Namespace], Site]) -> None:
    """Under job_container jobs start with copies of all mounts; an ended job's go there, too."""
    site = contained(Namespace())

    def started(user: str) -> tuple[int, Path, Path]:
        script = '#!/bin/sh\necho "at $NUMBA_CACHE_DIR $$"\nexec sleep 600\n'
        job_id = site.cluster.submit(script, user, "--nodelist=n1")
        wait_until("the job", lambda: "at /" in site.cluster.job(job_id).output, 60)
        _, cache, pid = site.cluster.job(job_id).output.split()
        return job_id, Path(cache), Path(f"/proc/{pid}/mountinfo")

    site.finish(site.compile_job("copy", ALICE, "n1"))
    first, cache, own = started(ALICE)
    assert f" {cache} " in own.read_text()
    second, _, others = started(BOB)
    assert f" {cache} " in others.read_text()
    site.cluster.cancel(first)
    wait_until("the epilog", lambda: not site.on_host("n1", cache.parents[1]).exists(), 60)
    assert str(cache.parents[1]) not in others.read_text()
    assert str(site.on_host("n1", cache.parents[1])) not in Path("/proc/self/mountinfo").read_text()
    site.cluster.cancel(second)
    site.finish(second)


@pytest.fixture
def job_id(site: Site) -> Iterator[int]:
    """Run the prolog of a job whose cache is shown in its namespace, and its epilog at the end."""
    job = next(JOBS)
    site.write_policy(constant="namespace")
    assert site.run_hook("prolog", site.variables(job)).returncode == 0
    yield job
    assert site.run_hook("epilog", site.variables(job)).returncode == 0
    site.constant.rmdir()


def test_the_job_alone_sees_its_cache_in_its_namespace(site: Site, job_id: int) -> None:
    """Nosuid and nodev. Files written there are in the job's workspace. A second run changes nothing."""
    with a_namespace(site) as namespace:
        assert [run_hook(site, job_id, namespace), run_hook(site, job_id, namespace)] == [[], []]
        (options,) = mounts(site, namespace)
        as_alice(site, namespace, "/usr/bin/touch", site.constant / "marker")
    assert {"rw", "nosuid", "nodev"} <= set(options.split(","))
    (name,) = site.runs()
    assert (site.workspace / "n1" / name / "cache" / "marker").exists()
    assert os.listdir(site.constant) == []


@pytest.mark.threat(4)
@pytest.mark.parametrize("case", ["others' parent", "a link", "another user's job"])
def test_what_only_root_can_change_or_nothing(site: Site, job_id: int, case: str) -> None:
    """Otherwise root would mount on a file of a job. The job starts all the same."""
    if case == "others' parent":
        site.cluster.base.chmod(0o777)
    elif case == "a link":
        site.constant.symlink_to("/usr")
    with a_namespace(site) as namespace:
        try:
            failed = run_hook(site, job_id, namespace, BOB if case == "another user's job" else ALICE)
        finally:
            site.cluster.base.chmod(0o755)
            if case == "a link":
                site.constant.unlink()
            site.constant.mkdir(exist_ok=True)
        assert len(failed) == (case != "another user's job"), failed
        assert mounts(site, namespace) == []
