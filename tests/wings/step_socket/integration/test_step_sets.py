"""Caches of an image that only a step names: cold once, then warm on all nodes, as if the prolog had known the image.

Steps call pyxis's importer and enroot's hook as pyxis and enroot call them; with the real ones `tools/real` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests import spank
from tests.cluster.accounts import ALICE
from tests.cluster.cluster import Cluster, JobResult
from tests.cluster.config import Namespace
from tests.cluster.registry import Registry
from tests.cluster.site import Site
from tests.support.numba_entries import numba_entries
from tests.wings.step_socket.steps import importer, served

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


@pytest.fixture
def asked(site: Site) -> Iterator[Site]:
    """Return the site with the socket."""
    with served(site):
        yield site


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
    """Return what each step found."""
    return [line for line in ended.output.splitlines() if line in {"cold", "warm", "none"}]


def test_a_steps_image_is_cold_once(asked: Site, fresh_image: Callable[[], str]) -> None:
    """On whichever node; a second step in it finds what the first has compiled. Nothing is left of a run."""
    image, container = fresh_image(), Container(asked, 751)
    assert found(container.job(image, image)) == ["cold", "warm"]
    assert found(container.job(image, node="n2")) == ["warm"]
    third = container.job(image, image, node="n3")
    assert found(third) == ["warm", "warm"]
    (seeded,) = asked.events(third.job_id, "cache.seeded")
    assert (seeded["hook"], seeded["way"], seeded["entries"]) == ("step-images", "overlay", 1)
    ended = [event for event in asked.events(third.job_id, "cache.harvested") if event["profile"] == "numba"]
    (harvested,) = [event for event in ended if event.get("set")]
    assert (harvested["set"], harvested["seeded"], harvested["entries"]) == (seeded["set"], 1, 0)


def test_an_image_has_one_namespace_however_it_was_named(asked: Site, fresh_image: Callable[[], str]) -> None:
    """In a comment, or on a step: what is compiled in one is found in the other."""
    container = Container(asked, 752)
    for first, second in ((True, False), (False, True)):
        image = fresh_image()
        comment = f"--comment=warmstart: image={image}"
        results = [found(container.job(image, options=(comment,) if named else ())) for named in (first, second)]
        assert results == [["cold"], ["warm"]]


def test_each_image_of_a_job_has_its_own(asked: Site, fresh_image: Callable[[], str]) -> None:
    """Two that steps name, beside the one that the job named."""
    images, container = [fresh_image() for _ in range(3)], Container(asked, 753)
    named = (f"--comment=warmstart: image={images[0]}",)
    assert found(container.job(*images, options=named)) == ["cold"] * 3
    assert found(container.job(*images, *images, node="n4", options=named)) == ["warm"] * 6


@pytest.fixture(scope="module")
def contained(capable_host: None, install: Callable[[Path], None], registry: Registry) -> Iterator[Site]:
    """Yield a site whose jobs each have a mount namespace that sees no later mount of the node."""
    with Cluster(namespace=Namespace()) as cluster:
        site = Site(cluster, registry.url, install=install)
        with served(site):
            yield site


@pytest.mark.parametrize("plugin", [False, True])
def test_a_namespace_of_slurms_shows_them_too(contained: Site, fresh_image: Callable[[], str], plugin: bool) -> None:
    """By overlays, which are attached there, for the step that asks and for later ones. Nothing of it is left."""
    if plugin:
        spank.need()
    image, container = fresh_image(), Container(contained, 755 + plugin)
    with spank.loaded(contained) if plugin else nullcontext():
        assert found(container.job(image)) == ["cold"]
        second = container.job(image, image, node="n2")
    assert found(second) == ["warm", "warm"]
    (seeded,) = contained.events(second.job_id, "cache.seeded")
    assert (seeded["way"], seeded["entries"]) == ("overlay", 1)
    assert contained.leftovers() == []


def test_without_the_socket_a_step_has_no_caches(site: Site, fresh_image: Callable[[], str]) -> None:
    """It runs as it would without warmstart."""
    assert found(Container(site, 754).job(fresh_image())) == ["none"]
