"""What pyxis does in a task of a job that waited, or was refused: it asks for the image before the verdict is read.

A program in TaskProlog's place calls the importer, as pyxis does, and then TaskProlog.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, layers
from tests.lib.site import RULES, Site
from tests.lib.slow_relay import slowed

WAIT_S = 5
RATE = 60_000  # bytes a second: the import takes far longer than anybody waits
NEVER = "#!/bin/sh\necho ran\n"
AS_PYXIS = """\
#!/bin/sh
if [ -n "$WANTED" ]; then
    said="$HOME/said.$SLURM_JOB_ID"
    PATH=/usr/bin:/bin PYXIS_VERSION=0.24.0 {importer} get "docker://$WANTED" >/dev/null 2>"$said" || {{
        mv "$said" "$HOME/read.$SLURM_JOB_ID"
        exit 1
    }}
fi
exec {task_prolog}
"""


@pytest.fixture
def containers(site: Site) -> Iterator[Callable[[int, str], str]]:
    """Let the tasks of jobs with WANTED get that image first; return a function that waits for what a job is told."""
    conf, program = site.cluster.base / "etc" / "warmstart.conf", site.cluster.base / "as-pyxis"
    libexec, text = site.cluster.prefix / "libexec" / "warmstart", conf.read_text()
    program.write_text(AS_PYXIS.format(importer=libexec / "pyxis-importer", task_prolog=libexec / "task-prolog"))
    program.chmod(0o755)
    conf.write_text(text.replace(f"TaskProlog={libexec}/task-prolog", f"TaskProlog={program}"))
    site.cluster.reread()

    def read(job: int, user: str) -> str:
        path = site.cluster.account(user).home / f"read.{job}"
        wait_until(f"what the importer says to job {job}", path.exists, 60)
        return path.read_text()

    yield read
    conf.write_text(text)
    site.cluster.reread()
    site.write_policy(RULES)


def of_blobs(registry: Registry, repository: str) -> Counter[str]:
    """Return how often each blob of a repository was asked for."""
    lines = (registry._base / "log" / "registry.out").read_text().splitlines()
    paths = (line.split('"')[1].split()[1] for line in lines if '"GET ' in line)
    return Counter(path.rpartition("/")[2] for path in paths if f"/{repository}/blobs/" in path)


@pytest.mark.threat(38)
def test_waiting_jobs_of_three_users_end_and_import_nothing(
    site: Site, registry: Registry, fresh_image: Callable[[], str], containers: Callable[[int, str], str]
) -> None:
    """Six jobs whose `images.wait` ends: each layer is fetched once, and each user reads at once how far that is."""
    name = fresh_image().partition("/")[2]
    with slowed(registry.url, RATE) as slow:
        site.write_policy(registry=slow)
        policy = site.etc / "policy.yaml"
        policy.write_text(policy.read_text().replace("wait: 60s", f"wait: {WAIT_S}s"))
        image = f"{slow}/{name}"
        jobs = [
            (site.cluster.submit(NEVER, user, f"--comment=warmstart: image={image}", f"--nodelist={node}",
                                 env={"WANTED": image}), user)
            for node, user in zip(("n1", "n2", "n3") * 2, (ALICE, BOB, CAROL, BOB, CAROL, ALICE), strict=True)
        ]  # fmt: skip
        told = [containers(job, user) for job, user in jobs]
        for job, _ in jobs:
            assert "ran" not in site.cluster.wait(job).output
        assert len(site.imports()) == 1
        site.wait_imports(120)
        later = site.finish(site.cluster.submit('#!/bin/sh\n[ "$WARMSTART_IMAGE" ] && echo found\n', BOB,
                                                f"--comment=warmstart: image={image}"))  # fmt: skip
    assert later.output == "found\n"
    counts = of_blobs(registry, name.partition(":")[0])
    assert set(layers(f"{registry.url}/{name}")) < set(counts)
    assert set(counts.values()) == {1}
    for read in told:
        assert f"image {image} is still missing after" in read
        assert "imported by pid" in read


@pytest.mark.threat(38)
def test_a_refused_job_with_a_cold_image_imports_nothing(
    site: Site, registry: Registry, fresh_image: Callable[[], str], containers: Callable[[int, str], str]
) -> None:
    """As `srun --comment="warmstart: bogus" --container-image=COLD true`: its user reads the verdict."""
    image = fresh_image()
    name = image.partition("/")[2].partition(":")[0]
    asked = registry.requests("GET", name)
    began = time.time()
    account = site.cluster.account(ALICE)
    done = site.cluster.run(["srun", "--comment=warmstart: bogus", "true"], ALICE, env={"WANTED": image})
    assert done.returncode != 0
    (path,) = [path for path in account.home.glob("read.*") if path.stat().st_mtime >= began]
    assert "the job's comment has 'bogus', which is not a valid request" in path.read_text()
    assert registry.requests("GET", name) == asked
    assert site.imports() == []
