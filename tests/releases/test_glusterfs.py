"""The main paths on a real network file system: GlusterFS, whose servers, disks and clients also fail.

Each node's slurmd has a FUSE client of its own in its own mount namespace. Root is squashed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import gluster, processes
from tests.lib.accounts import ALICE, STORE
from tests.lib.cluster import JobResult
from tests.lib.gluster import BRICKS, Client, Gluster
from tests.lib.registry import Registry, build_image, layers
from tests.lib.requirements import unavailable
from tests.lib.site import Site, result

pytestmark = pytest.mark.sweep

OUTDATED_S = 20.0  # for so long the client of n4 shows what it has seen
BIG = 48 << 20  # bytes of random content: copied through three bricks for long enough to kill one meanwhile


class Volume(NamedTuple):
    """The volume, and each node's client."""

    servers: Gluster
    clients: dict[str, Client]
    path: Path  # where nodes, and this process, have it


@pytest.fixture(scope="module")
def volume(installed: Site) -> Iterator[Volume]:
    """Move all nodes into mount namespaces with the volume; afterwards back."""
    if missing := [package for program, package in gluster.PROGRAMS.items() if not Path(program).exists()]:
        unavailable(f"these Debian packages are missing: {' '.join(missing)}")
    cluster = installed.cluster
    path = cluster.base / "shared"
    path.mkdir()
    with Gluster(cluster.base, cluster.account(STORE)) as servers:
        servers.client("host", path, alone=False)
        clients = {
            node: servers.client(node, path, cached_s=OUTDATED_S if node == "n4" else None, enter=cluster.enter(node))
            for node in cluster.nodes
        }
        cluster.wait_idle()
        for node, client in clients.items():
            cluster.move_node(node, client.enter)
        try:
            yield Volume(servers, clients, path)
        finally:
            cluster.wait_idle()
            for node in cluster.nodes:
                cluster.move_node(node)


@pytest.fixture
def store(volume: Volume, site: Site, request: pytest.FixtureRequest) -> Path:
    """Put an empty store on the volume into force."""
    path = volume.path / str(request.node.name)
    as_owner(site, f"mkdir {path}")
    site.write_policy(store=str(path))
    return path


def as_owner(site: Site, script: str) -> str:
    """Run a script as the store's owner, through this process's client."""
    done = processes.run_as(site.cluster.account(STORE), ["/bin/sh", "-euc", script])
    assert done.returncode == 0, done.stderr
    return done.stdout


def owners_processes(site: Site, client: Client) -> set[int]:
    """Return the processes of the store's owner that use the volume through a client: others are of other runs."""
    _, mount, _ = client.enter
    namespace = os.readlink(mount.removeprefix("--mount="))
    found = set()
    for pid in processes.of_uid(site.cluster.account(STORE).uid):
        with suppress(FileNotFoundError):  # it has ended
            if os.readlink(f"/proc/{pid}/ns/mnt") == namespace:
                found.add(pid)
    return found


def submit(site: Site, script: str, node: str, comment: str, user: str = ALICE) -> int:
    """Submit a job with a request in its comment."""
    return site.cluster.submit(f"#!/bin/sh\n{script}\n", user, f"--comment=warmstart: {comment}", f"--nodelist={node}")


def maintain(site: Site, node: str = "n1", *options: str) -> None:
    done = site.command("maintain", "--node", node, *options, node=node)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_long(site: Site) -> None:
    """Let jobs wait longer for an image: a machine that serves all nodes, clients and bricks may be slow."""
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("wait: 60s", "wait: 180s"))


def outcome(site: Site, job: JobResult) -> dict[str, object]:
    """Return the result of a Numba job, which has to be there whatever the store did."""
    assert (job.state, site.cluster.drained()) == ("COMPLETED", []), job
    return result(job.output)


# --- without faults


def test_a_cache_made_on_one_node_is_warm_on_another(site: Site, store: Path) -> None:
    """Numba compiles on n1 and loads on n2, whose client sees what the other one published."""
    cold = site.finish(site.compile_job("numba", ALICE, "n1"))
    warm = site.finish(site.compile_job("numba", ALICE, "n2"))
    assert outcome(site, cold)["cache_hits"] == 0
    assert outcome(site, warm)["cache_misses"] == 0
    (event,) = site.published(cold.job_id)
    found = as_owner(site, f"find {store}/caches -name '*.sqsh' -printf '%f %m %u\\n'")
    assert found == f"{event['bundle']}.sqsh 444 {STORE}\n"


@pytest.mark.usefixtures("store")
def test_eight_prologs_on_two_clients_import_once(
    site: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """Locks hold between the clients: the registry is asked once for each blob, and no job waits in vain."""
    wait_long(site)
    image = fresh_image()
    jobs = [submit(site, 'wc -c <"$WARMSTART_IMAGE"', f"n{1 + number % 2}", f"image={image}") for number in range(8)]
    ended = [site.finish(job) for job in jobs]
    assert [job.state for job in ended] == ["COMPLETED"] * 8, ended
    assert len({job.output for job in ended}) == 1
    assert sum(len(site.events(job, "image.imported")) for job in jobs) == 1
    assert {registry.requests("GET", f"/blobs/{digest}") for digest in layers(image)} == {1}


# --- faults


@pytest.fixture
def whole(volume: Volume) -> Iterator[Gluster]:
    """Return the servers; afterwards all bricks are up and healed."""
    yield volume.servers
    volume.servers.start_bricks()


def wait_for_part(servers: Gluster, store: Path, pattern: str) -> None:
    """Wait until a file of this pattern in the store has some bytes on a brick."""
    top = servers.brick(1) / store.name

    def is_there() -> bool:
        return any(path.stat().st_size > 1 << 20 for path in top.glob(pattern))

    processes.wait_until(f"{pattern} in {top}", is_there, 60)


@pytest.fixture
def big_image(site: Site, registry: Registry, base: Path) -> str:
    """Push an image that takes a while to copy; return its name."""
    layout = build_image(base / "big", {"/noise": os.urandom(BIG // 2).hex()})
    registry.push(layout, "latest", "test/big:1")
    return f"{site.registry}/test/big:1"


def test_a_brick_is_killed_while_an_image_is_published(site: Site, store: Path, whole: Gluster, big_image: str) -> None:
    """Two of three are a quorum: the import goes on, and what is published is whole on every node, also healed."""
    first = submit(site, 'sha256sum <"$WARMSTART_IMAGE"', "n1", f"image={big_image}")
    wait_for_part(whole, store, "images/.tmp-*")
    whole.kill_brick(1)
    assert list((whole.brick(1) / store.name / "images").glob("*.sqsh")) == []  # it died before that
    sums = {site.finish(first).output}
    sums.add(site.finish(submit(site, 'sha256sum <"$WARMSTART_IMAGE"', "n2", f"image={big_image}")).output)
    whole.start_bricks()
    files = [path for n in BRICKS for path in (whole.brick(n) / store.name / "images").glob("*.sqsh")]
    sums |= {f"{hashlib.sha256(path.read_bytes()).hexdigest()}  -\n" for path in files}
    assert (len(files), len(sums)) == (3, 1)
    assert (site.cluster.drained(), as_owner(site, f"find {store} -name '.tmp-*'")) == ([], "")


@pytest.mark.usefixtures("store")
def test_the_quorum_is_lost_and_comes_back(site: Site, whole: Gluster) -> None:
    """Without it jobs run cold and their runs wait on the node; with it maintenance harvests them."""
    for brick in (1, 2):
        whole.kill_brick(brick)
    cold = site.finish(site.compile_job("numba", ALICE, "n1"))
    assert outcome(site, cold)["cache_hits"] == 0
    assert any("it is harvested in the background" in remark for remark in site.remarks(cold.job_id))
    wanted = site.finish(submit(site, "echo started", "n3", f"image={site.registry}/test/none:1"))
    assert (wanted.state, "started" in wanted.output) == ("FAILED", False)
    whole.start_bricks()
    maintain(site)
    warm = site.finish(site.compile_job("numba", ALICE, "n2"))
    assert outcome(site, warm)["cache_misses"] == 0


@pytest.mark.usefixtures("store")
def test_a_client_that_sees_outdated_attributes(site: Site, fresh_image: Callable[[], str]) -> None:
    """What n4 does not see yet is compiled again there; what both publish is whole; an image comes later."""
    wait_long(site)
    assert site.finish(submit(site, "true", "n4", "files=before")).state == "COMPLETED"  # looks at what is not there
    cold = site.finish(site.compile_job("numba", ALICE, "n1"))
    late = site.finish(site.compile_job("numba", ALICE, "n4"))
    assert outcome(site, cold)["cache_hits"] == 0
    outcome(site, late)
    image = fresh_image()
    jobs = [submit(site, 'wc -c <"$WARMSTART_IMAGE"', node, f"image={image}") for node in ("n4", "n1")]
    ended = [site.finish(job) for job in jobs]
    assert [job.state for job in ended] == ["COMPLETED"] * 2, ended
    assert sum(len(site.events(job, "image.imported")) for job in jobs) >= 1  # n4 may import what it does not see
    warm = site.finish(site.compile_job("numba", ALICE, "n4"))
    assert outcome(site, warm)["cache_misses"] == 0


@pytest.mark.usefixtures("store")
def test_a_client_that_is_stopped(site: Site, volume: Volume) -> None:
    """Only children wait for it: the hooks of its node end at their deadlines, and the job runs cold."""
    outcome(site, site.finish(site.compile_job("numba", ALICE, "n1")))
    with volume.clients["n2"].stopped():
        cold = site.finish(site.compile_job("numba", ALICE, "n2"))
        assert outcome(site, cold)["cache_hits"] == 0
    warm = site.finish(site.compile_job("numba", ALICE, "n2"))
    assert outcome(site, warm)["cache_misses"] == 0
    children = partial(owners_processes, site, volume.clients["n2"])
    processes.wait_until("the end of the children", lambda: children() == set(), 60)
    maintain(site, "n2")  # what the epilog had no time for
