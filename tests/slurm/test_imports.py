"""One import for all jobs that want an image: it outlives whoever asked, and nothing waits for it but by choice.

`site` checks after each test that no node is drained and that no job has left anything.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib import config
from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.held_hooks import wrapped
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, layers
from tests.lib.site import Site
from tests.lib.slow_relay import slowed

SHOW = '#!/bin/sh\nunsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found\n'
WAIT_S = 3
RATE = 60_000  # bytes a second: the import takes far longer than anybody waits
# `RunInJob` came with 24.05.
FLAGS = ["Alloc,DeferBatch,Contain", *(["Alloc,DeferBatch,Contain,RunInJob"] if config.release() >= "24.05" else [])]
# What pyxis does in a task: it asks for the image before anybody has read the job's verdict.
AS_PYXIS = """\
if [ -n "$WANTED" ]; then
    said="$HOME/said.$SLURM_JOB_ID"
    PATH=/usr/bin:/bin PYXIS_VERSION=0.24.0 {importer} get "docker://$WANTED" >/dev/null 2>"$said" || {{
        mv "$said" "$HOME/read.$SLURM_JOB_ID"
        exit 1
    }}
fi"""


def wanting(image: str) -> str:
    """Return sbatch's option that requests an image."""
    return f"--comment=warmstart: image={image}"


def waits(site: Site, seconds: int, **policy: str) -> None:
    """Let jobs wait so long for an image."""
    site.write_policy(**policy)
    file = site.etc / "policy.yaml"
    file.write_text(file.read_text().replace("wait: 60s", f"wait: {seconds}s"))


def importing(site: Site, *nodes: str) -> bool:
    """Return whether there is the scratch directory of an import on a node."""
    return any(path for node in nodes for path in (site.workspace / node).glob("import.*"))


def outcomes(site: Site, image: str) -> list[str]:
    """Return the names of all events of the image's import."""
    names = ("image.import-failed", "image.imported")
    return [event["event"] for name in names for event in site.audit("--event", name) if event["image"] == image]


@pytest.mark.real_time
def test_an_import_outlives_jobs_and_slurmd(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """The first jobs fail with a true sentence, while one import goes on; the next job starts at once.

    That they end shows that nothing waits for a descriptor of the import: the registry answers only afterwards.
    """
    waits(site, WAIT_S)
    image = fresh_image()
    with registry.silent():
        jobs = [site.cluster.submit(SHOW, user, wanting(image), f"--nodelist={node}")
                for user, node in ((ALICE, "n1"), (BOB, "n2"))]  # fmt: skip
        ended = [site.cluster.wait(job) for job in jobs]
        site.cluster.wait_idle()
        assert [job.state for job in ended] == ["FAILED"] * 2
        wait_until("the end of the one that was not elected", lambda: len(site.imports()) == 1, 20)
        (pid,) = site.imports()
        for job in ended:
            assert f"image {image} is still missing after" in job.output
            assert f"imported by pid {pid} on n" in job.output
        for node in ("n1", "n2"):
            site.cluster.kill_slurmd(node)
            site.cluster.start_slurmd(node)
        assert site.imports() == [pid]
    site.wait_imports()
    assert outcomes(site, image) == ["image.imported"]
    later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n3"))
    assert later.output == "found\n"
    assert len(site.images(later.job_id, "reused")) == 1


@contextmanager
def prolog_flags(site: Site, flags: str) -> Iterator[None]:
    """Run the cluster with other PrologFlags."""
    conf = site.cluster.base / "etc" / "warmstart.conf"
    text = conf.read_text()
    for wanted in (re.sub(r"(?m)^PrologFlags=.*$", f"PrologFlags={flags}", text), text):
        conf.write_text(wanted)
        site.cluster.reread()
        if wanted != text:
            yield


@contextmanager
def counted_questions(site: Site) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the arguments of Slurm's commands that hooks have run."""
    policy, programs = site.etc / "policy.yaml", site.cluster.base / "counted"
    programs.mkdir(exist_ok=True)
    calls = programs / "calls"
    for name in ("scontrol", "squeue"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    calls.write_text("")
    policy.write_text(policy.read_text().replace("paths:\n", f"paths:\n  scontrol: {programs}/scontrol\n"))
    yield lambda: calls.read_text().splitlines()
    for mark in (site.store / "runs").glob("*/over.*.over"):  # maintenance would, a week later
        mark.unlink()


@pytest.mark.threat(44)
@pytest.mark.real_time
@pytest.mark.parametrize("flags", FLAGS)
def test_an_import_in_a_contained_job(
    site: Site, registry: Registry, fresh_image: Callable[[], str], flags: str
) -> None:
    """With an extern step, and with prologs that run in it: neither holds the import, nor does the import hold it.

    A job that is cancelled meanwhile frees its nodes: its head node asks slurmctld, and the other one hears of it
    through the store.
    """
    with prolog_flags(site, flags):
        waits(site, WAIT_S)
        image = fresh_image()
        with registry.silent():
            ended = site.cluster.wait(site.cluster.submit(SHOW, ALICE, wanting(image), "--nodelist=n1"))
            site.cluster.wait_idle()
            assert ended.state == "FAILED"
            (pid,) = site.imports()
            assert "slurm" not in Path(f"/proc/{pid}/cgroup").read_text()
            waits(site, 240)
            with counted_questions(site) as questions:
                job = site.cluster.submit(SHOW, ALICE, wanting(image), "--nodelist=n[1-2]", "--nodes=2")
                wait_until("both prologs", lambda: len(site.events(job, "hook.started")) == 2, 60)
                site.cluster.cancel(job)
                site.cluster.wait_idle(60)
                asked = questions()
        assert site.cluster.job(job).state == "CANCELLED"
        refused = site.failures(job, "refused")
        assert {event["node"]: event["code"] for event in refused} == dict.fromkeys(("n1", "n2"), "job-over")
        assert 0 < len(asked) <= 4
        assert all(f"--jobs={job}" in question for question in asked)
        site.wait_imports()
        assert outcomes(site, image) == ["image.imported"]
        later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n1"))
        assert later.output == "found\n"


@pytest.fixture
def pyxis(site: Site) -> Iterator[Callable[[int, str], str]]:
    """Let the tasks of jobs with WANTED get that image first; return a function that waits for what a job is told."""

    def read(job: int, user: str) -> str:
        path = site.cluster.account(user).home / f"read.{job}"
        wait_until(f"what the importer says to job {job}", path.exists, 60)
        return path.read_text()

    importer = site.cluster.prefix / "libexec/warmstart/pyxis-importer"
    with wrapped(site, "task-prolog", AS_PYXIS.format(importer=importer)):
        yield read


def of_blobs(registry: Registry, repository: str) -> Counter[str]:
    """Return how often each blob of a repository was asked for."""
    lines = (registry._base / "log" / "registry.out").read_text().splitlines()
    paths = (line.split('"')[1].split()[1] for line in lines if '"GET ' in line)
    return Counter(path.rpartition("/")[2] for path in paths if f"/{repository}/blobs/" in path)


@pytest.mark.threat(38)
def test_waiting_jobs_of_three_users_end_and_import_nothing(
    site: Site, registry: Registry, fresh_image: Callable[[], str], pyxis: Callable[[int, str], str]
) -> None:
    """Six jobs whose `images.wait` ends: each layer is fetched once, and each user reads at once how far that is."""
    name = fresh_image().partition("/")[2]
    with slowed(registry.url, RATE) as slow:
        waits(site, 5, registry=slow)
        image = f"{slow}/{name}"
        jobs = [
            (site.cluster.submit("#!/bin/sh\necho ran\n", user, wanting(image), f"--nodelist={node}",
                                 env={"WANTED": image}), user)
            for node, user in zip(("n1", "n2", "n3") * 2, (ALICE, BOB, CAROL, BOB, CAROL, ALICE), strict=True)
        ]  # fmt: skip
        told = [pyxis(job, user) for job, user in jobs]
        for job, _ in jobs:
            assert "ran" not in site.cluster.wait(job).output
        assert len(site.imports()) == 1
        site.wait_imports(120)
        later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image)))
    assert later.output == "found\n"
    counts = of_blobs(registry, name.partition(":")[0])
    assert set(layers(f"{registry.url}/{name}")) < set(counts)
    assert set(counts.values()) == {1}
    for read in told:
        assert f"image {image} is still missing after" in read
        assert re.search(r"; imported by pid \d+ on n\d for job \d+ since \S+, now fetching it", read), read


@pytest.mark.threat(38)
def test_a_refused_job_with_a_cold_image_imports_nothing(
    site: Site, registry: Registry, fresh_image: Callable[[], str], pyxis: Callable[[int, str], str]
) -> None:
    """As `srun --comment="warmstart: bogus" --container-image=COLD true`: its user reads the verdict."""
    image = fresh_image()
    name = image.partition("/")[2].partition(":")[0]
    asked = registry.requests("GET", name)
    began = time.time()
    done = site.cluster.run(["srun", "--comment=warmstart: bogus", "true"], ALICE, env={"WANTED": image})
    assert done.returncode != 0
    home = site.cluster.account(ALICE).home
    (path,) = [path for path in home.glob("read.*") if path.stat().st_mtime >= began]
    assert "the job's comment has 'bogus', which is not a valid request" in path.read_text()
    assert registry.requests("GET", name) == asked
    assert site.imports() == []


def test_an_image_in_a_step_of_a_job(site: Site, fresh_image: Callable[[], str]) -> None:
    """Pyxis's importer gives the image that the job named, and imports another one into the workspace for the job."""
    named, other = fresh_image(), fresh_image()
    importer = site.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"
    script = f"""#!/bin/sh
set -e
path=$({importer} get docker://{named})
[ "$path" = "$WARMSTART_IMAGE" ] && echo same
own=$({importer} get docker://{other} 2>/dev/null)
/usr/bin/unsquashfs -cat "$own" etc/number
{importer} release; {importer} release
case $own in "$TMPDIR"/*) echo in the workspace;; esac
"""
    ended = site.finish(site.cluster.submit(script, ALICE, wanting(named), "--nodelist=n1"))
    assert ended.state == "COMPLETED", ended
    same, number, where = ended.output.splitlines()
    assert (same, number.isdecimal(), where) == ("same", True, "in the workspace")
