"""Caches of an image that only a step names: cold once, then warm on all nodes, as if the prolog had known the image.

Steps call pyxis's importer and enroot's hook as pyxis and enroot call them; with the real ones `tools/real` does.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from tests.lib import config, spank
from tests.lib.accounts import ALICE
from tests.lib.cluster import JobResult
from tests.lib.config import Namespace
from tests.lib.numba_entries import numba_entries
from tests.lib.processes import wait_until
from tests.lib.site import RULES, Site
from tests.lib.wings.step_images.steps import answering, importer, served

# In a container of the image: prints whether its numba's cache has an entry, and compiles it if not.
STEP = """\
#!/bin/sh
set -e
{importer} get docker://$1 >/dev/null
here=$(mktemp -d "$TMPDIR/step.XXXXXX") && cd "$here"
: >MOUNTS && : >ENVIRON
ENROOT_MOUNTS=$here/MOUNTS ENROOT_ENVIRON=$here/ENVIRON ENROOT_ROOTFS=/r/pyxis_$SLURM_JOB_ID.$SLURM_STEP_ID sh {hook}
constant=$(sed -n 's/^WARMSTART_CACHE=//p' ENVIRON)
source=$(awk -v at="$constant" '$2 == at {{ print $1 }}' MOUNTS)
[ "$source" ] || {{ echo none; exit; }}
cd "$source/numba"
if [ -e {entry} ]; then echo warm; else cp -r {compiled}/. . && echo cold; fi
"""


class Container:
    """A program that steps run as in a container."""

    def __init__(self, site: Site, number: int) -> None:
        entries = next(iter(numba_entries(number).values()))
        compiled = site.cluster.base / f"compiled-{number}"
        for name, content in entries.items():
            (compiled / name).parent.mkdir(parents=True, exist_ok=True)
            (compiled / name).write_bytes(content)
        self.site = site
        self.program = site.cluster.base / f"container-{number}"
        hook = site.cluster.prefix / "share/warmstart/enroot/40-warmstart.sh"
        entry = min(entries)
        self.program.write_text(STEP.format(importer=importer(site), hook=hook, entry=entry, compiled=compiled))
        for path in (self.program, compiled, *compiled.rglob("*")):
            os.chmod(path, 0o755)

    def job(self, *images: str, node: str = "n1", options: tuple[str, ...] = ()) -> JobResult:
        """Run a job with a step in each of these images, one after the other."""
        steps = "".join(f"srun {self.program} {image}\n" for image in images)
        ended = self.site.finish(self.site.cluster.submit(f"#!/bin/sh\n{steps}", ALICE, f"--nodelist={node}", *options))
        assert ended.state == "COMPLETED", ended.output
        return ended


def found(ended: JobResult) -> list[str]:
    return [line for line in ended.output.splitlines() if line in {"cold", "warm", "none"}]


def crashed(site: Site) -> list[dict[str, Any]]:
    """Return the last lines that tell of a bug."""
    return [line for line in site.results() if "traceback" in line]


def test_a_steps_image_is_cold_once(asked: Site, fresh_image: Callable[[], str]) -> None:
    """On whichever node; a second step in it finds what the first has compiled. Nothing is left of a run."""
    image, container = fresh_image(), Container(asked, 751)
    assert found(container.job(image, image)) == ["cold", "warm"]
    assert found(container.job(image, node="n2")) == ["warm"]
    third = container.job(image, image, node="n3")
    assert found(third) == ["warm", "warm"]
    (seeded,) = [cache for cache in asked.seeded(third.job_id) if cache["hook"] == "step-images"]
    assert (seeded["hook"], seeded["way"], seeded["entries"]) == ("step-images", "overlay", 1)
    (harvested,) = [cache for cache in asked.harvested(third.job_id) if cache["profile"].startswith("numba@")]
    assert (harvested["use"], harvested["entries"]) == ("untouched", 0)  # it only looks whether the entry is there


def test_an_image_has_one_namespace_however_it_was_named(asked: Site, fresh_image: Callable[[], str]) -> None:
    """In a comment, or on a step: what is compiled in one is found in the other."""
    container = Container(asked, 752)
    for first, second in ((True, False), (False, True)):
        image = fresh_image()
        comment = f"--comment=warmstart: image={image}"
        results = [found(container.job(image, options=(comment,) if named else ())) for named in (first, second)]
        assert results == [["cold"], ["warm"]]


def test_each_image_of_a_job_has_its_own(asked: Site, fresh_image: Callable[[], str]) -> None:
    images, container = [fresh_image() for _ in range(3)], Container(asked, 753)
    named = (f"--comment=warmstart: image={images[0]}",)
    assert found(container.job(*images, options=named)) == ["cold"] * 3
    assert found(container.job(*images, *images, node="n4", options=named)) == ["warm"] * 6


def test_a_step_on_two_nodes_has_caches_on_each(asked: Site, fresh_image: Callable[[], str]) -> None:
    """What each node has compiled is published as a whole, and warm on both of the next job."""
    image, container = fresh_image(), Container(asked, 758)
    assert found(container.job(image, node="n1,n2", options=("--nodes=2",))) == ["cold", "cold"]
    asked.cluster.wait_idle()
    assert found(container.job(image, node="n3,n4", options=("--nodes=2",))) == ["warm", "warm"]


@pytest.mark.real_time
def test_what_a_container_compiled_is_warm_while_its_job_goes_on(asked: Site, fresh_image: Callable[[], str]) -> None:
    image, container = fresh_image(), Container(asked, 764)
    step = f"#!/bin/sh\nsrun {container.program} {image}\n"
    asked.write_policy(f"harvest: {{while_running: 2s}}\n{RULES}")
    job = asked.cluster.submit(f"{step}sleep 600\n", ALICE, "--nodelist=n1")
    try:
        wait_until("the step", lambda: "cold" in asked.cluster.job(job).output, 60)
        time.sleep(2.5)  # it is due, and what was written has settled
        asked.background("live")
        second = asked.cluster.submit(step, ALICE, "--nodelist=n2")
        assert found(asked.cluster.wait(second, 60)) == ["warm"]
    finally:
        asked.cluster.cancel(job)
        asked.finish(job)
        asked.write_policy()


@pytest.mark.parametrize("how", ["cancelled", pytest.param("requeued", marks=pytest.mark.real_time)])
def test_a_job_that_ends_while_a_set_is_made_leaves_nothing(
    asked: Site, fresh_image: Callable[[], str], how: str
) -> None:
    """Its maker ends with the step that asks, and the node takes the next job; a second run has its own caches."""
    image, container = fresh_image(), Container(asked, 759)
    crashes = crashed(asked)
    assert found(container.job(image)) == ["cold"]
    with slow_store(asked):
        job = asked.cluster.submit(
            f"#!/bin/sh\nsrun {container.program} {image}\n", ALICE, "--nodelist=n2", "--requeue"
        )
        wait_until("the caches", lambda: list(asked.workspace.glob(f"n2/{job}.*/caches/*")) != [], 60)
        if how == "cancelled":
            asked.cluster.admin("scancel", str(job))
            assert asked.cluster.wait(job).state == "CANCELLED"
            asked.cluster.wait_idle()
            wait_until("the end of the maker", lambda: answering(asked) == [], 10)
        else:
            asked.cluster.requeue(job)
            asked.cluster.wait_for(job, {"PENDING"})
            time.sleep(2.5)  # slurmd tells the new credential from the revoked one by the second
    if how == "requeued":
        asked.cluster.admin("scontrol", "update", f"jobid={job}", "starttime=now")
        assert "warm" in asked.finish(job).output
    assert asked.leftovers() == []
    assert asked.cluster.drained() == []
    assert crashed(asked) == crashes


@contextmanager
def slow_store(site: Site) -> Iterator[None]:
    """Let whoever fetches a bundle wait: an earlier fetch of it holds its file."""
    directory = site.var / "n2" / "bundles"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = []
    try:
        # Two namespaces may have the same bundle.
        for sha256 in {bundle.stem for bundle in (site.store / "caches").rglob("*.sqsh")}:
            held.append(os.open(directory / f"{sha256}.fetching", os.O_RDWR | os.O_CREAT, 0o600))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        yield
    finally:
        for fd in held:
            os.close(fd)


# Whether job_container/tmpfs lets a job see later mounts of the node (job_container.conf(5), Shared; not in 22.05).
SHARING = [""] if config.release() < "24.11" else ["", "Shared=true"]


@pytest.fixture(scope="module", params=SHARING)
def apart(request: pytest.FixtureRequest, contained: Callable[[Namespace], Site]) -> Iterator[Site]:
    """Yield a site whose jobs each have a mount namespace."""
    site = contained(Namespace(further=request.param))
    site.write_policy()
    with served(site):
        yield site


@pytest.mark.parametrize("plugin", [False, True])
def test_a_namespace_of_slurms_shows_them_too(apart: Site, fresh_image: Callable[[], str], plugin: bool) -> None:
    """By overlays, which are attached there if they do not come by themselves, for the asking step and for later ones.

    Nothing of it is left.
    """
    if plugin:
        spank.need()
    image, container = fresh_image(), Container(apart, 755 + plugin)
    with spank.loaded(apart) if plugin else nullcontext():
        assert found(container.job(image)) == ["cold"]
        second = container.job(image, image, node="n2")
    assert found(second) == ["warm", "warm"]
    (seeded,) = [cache for cache in apart.seeded(second.job_id) if cache["hook"] == "step-images"]
    assert (seeded["way"], seeded["entries"]) == ("overlay", 1)
    assert apart.leftovers() == []
