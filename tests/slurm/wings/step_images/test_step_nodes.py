"""Steps on several nodes: all show the same, whatever order their steps come in and whoever is lost; and of one image.

Steps call pyxis's importer and enroot's hook as pyxis and enroot call them; with the real ones `tools/real` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.several_nodes import RULES, agreed, left
from tests.lib.site import Site
from tests.lib.tags import is_older, moved
from tests.lib.wings.step_images.steps import importer, served

# In a container of the image: prints the step's name, the node, the image's number, and what the cache shows. Makes an
# entry where it is told to.
SHOW = """\
#!/bin/sh
set -e
path=$({importer} get docker://$1)
here=$(mktemp -d "$TMPDIR/step.XXXXXX") && cd "$here"
: >MOUNTS && : >ENVIRON
ENROOT_MOUNTS=$here/MOUNTS ENROOT_ENVIRON=$here/ENVIRON ENROOT_ROOTFS=/r/pyxis_$SLURM_JOB_ID.$SLURM_STEP_ID sh {hook}
constant=$(sed -n 's/^WARMSTART_CACHE=//p' ENVIRON)
source=$(awk -v at="$constant" '$2 == at {{ print $1 }}' MOUNTS)
echo "step $2 $SLURMD_NODENAME $(unsquashfs -cat "$path" etc/number): $(cd "${{source:-/none}}/alpha" && echo *)"
[ -z "${{3-}}" ] || head -c 9000 /dev/urandom >"$source/alpha/$3.bin"
"""
COLD = "*"  # of an empty directory


@pytest.fixture
def warm(site: Site) -> Iterator[Site]:
    """Return the site with the socket, and a profile of which all nodes have to show the same."""
    site.write_policy(RULES)
    with served(site):
        yield site


def make(site: Site, *images: str) -> None:
    """Have a job on a fourth node publish an entry for each image."""
    run(site, "".join(f"step -n1 $show {image} make first\n" for image in images), "--nodelist=n4")


def submit(site: Site, steps: str, *options: str) -> int:
    """Submit a job of lines `step OPTIONS $show IMAGE NAME`."""
    program = site.cluster.base / "show"
    hook = site.cluster.prefix / "share/warmstart/enroot/40-warmstart.sh"
    program.write_text(SHOW.format(importer=importer(site), hook=hook))
    os.chmod(program, 0o755)
    script = f'#!/bin/sh\nstep() {{ srun --overlap --ntasks-per-node=1 "$@"; }}\nshow={program}\n{steps}'
    return site.cluster.submit(script, ALICE, "--overcommit", *options)


def ended(site: Site, job_id: int) -> dict[str, dict[str, str]]:
    """Wait for such a job; return what each step's nodes showed."""
    job = site.finish(job_id)
    assert job.state == "COMPLETED", job.output
    shown: dict[str, dict[str, str]] = {}
    for line in job.output.splitlines():
        if line.startswith("step "):
            head, _, names = line.partition(":")
            _, name, node, number = head.split()
            shown.setdefault(name, {})[node] = f"{number}: {names.strip()}"
    return shown


def run(site: Site, steps: str, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Run such a job; return its id, and what each step's nodes showed."""
    job = submit(site, steps, *options)
    return job, ended(site, job)


def entries(shown: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {step: {node: text.partition(": ")[2] for node, text in of.items()} for step, of in shown.items()}


def test_a_step_on_two_nodes_beside_one_on_all_three(warm: Site, fresh_image: Callable[[], str]) -> None:
    """Each shows the same on all its nodes. The one on three serves later steps on fewer."""
    image = fresh_image()
    make(warm, image)
    steps = f"step -N3 $show {image} all &\nstep -N2 --nodelist=n2,n3 $show {image} two &\nwait\n"
    after = f"step -N2 --nodelist=n1,n2 $show {image} later\nstep -N1 -n1 --nodelist=n3 $show {image} one\n"
    job, shown = run(warm, steps + after, "--nodelist=n[1-3]")
    first = "first.bin"
    assert entries(shown) == {
        "all": dict.fromkeys(("n1", "n2", "n3"), first),
        "two": dict.fromkeys(("n2", "n3"), first),
        "later": dict.fromkeys(("n1", "n2"), first),
        "one": {"n3": first},
    }
    assert left(warm, job) == []


def test_a_node_that_cannot_be_warm_makes_the_step_cold(warm: Site, fresh_image: Callable[[], str]) -> None:
    """Its disk is full. So is a later step without it, which the same caches serve."""
    image = fresh_image()
    make(warm, image)
    with warm.full_node_cache("n2"):
        steps = f"step -N3 $show {image} all\nstep -N2 --nodelist=n1,n3 $show {image} two\n"
        job, shown = run(warm, steps, "--nodelist=n[1-3]")
    assert entries(shown) == {
        "all": dict.fromkeys(("n1", "n2", "n3"), COLD),
        "two": dict.fromkeys(("n1", "n3"), COLD),  # the caches of all three serve it
    }
    assert {node: cold["alpha"]["nodes"] for node, cold in agreed(warm, job).items()} == {
        node: ["n2"] for node in ("n1", "n2", "n3")
    }


def test_a_tag_that_moves_between_two_steps_means_one_image(
    warm: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    image, go = fresh_image(), warm.cluster.base / "moved"
    number = image.rpartition("number")[2].partition(":")[0]
    first = f"step -N1 -n1 --nodelist=n1 $show {image} first\nwhile [ ! -e {go} ]; do sleep 0.1; done\n"
    later = f"step -N1 -n1 --nodelist=n2 $show {image} second\nstep -N2 $show {image} third\n"
    job = submit(warm, first + later, "--nodelist=n1,n2")
    wait_until("the first step", lambda: any("of" in line for line in warm.results(job, "step-images")), 60)
    moved(warm, registry, image, 9201)
    is_older(warm, image, 86400)
    go.touch()
    shown = ended(warm, job)
    assert {name.partition(":")[0] for nodes in shown.values() for name in nodes.values()} == {number}
    assert [sorted(nodes) for nodes in shown.values()] == [["n1"], ["n2"], ["n1", "n2"]]
    (other,) = run(warm, f"step -n1 $show {image} other\n", "--nodelist=n3")[1]["other"].values()
    assert other.startswith("9201:")
