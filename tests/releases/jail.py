"""Nodes whose jobs have another root than slurmd, as soperator's have. `test_pods` runs it, as it does `pods.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lib.pods import JAIL, PodCluster
from tests.lib.site import Site
from tests.releases.pods import MAKE, SHOW, found, installed, profile, run

__all__ = ["installed", "profile"]

SEEN = f'{SHOW}cat /etc/motd\nls -d {JAIL}/etc "$TMPDIR" 2>&1\ncd /\nsrun sh -c "cd $WARMSTART_CACHE/pod* && ls"\n'


@pytest.fixture(scope="session")
def cluster(capable_host: None) -> Iterator[PodCluster]:
    running = PodCluster(jail=True)
    with running:
        yield running


def test_a_job_and_its_steps_have_the_cache_in_the_jail(site: Site, cluster: PodCluster, profile: str) -> None:
    """At the paths that the node has for it. When the job is over nothing of it is mounted in the pod.

    doctor tells of a directory that is not in the jail: jobs are cold then.
    """
    run(site, MAKE, "n1")
    _, output = run(site, SEEN, "n3")
    first, *seen, motd, hidden, tmp, step = output.splitlines()
    assert (first, motd, step) == ("made.bin", "jail", "made.bin")
    assert "No such file" in hidden
    assert tmp.startswith(str(site.workspace))
    assert all(f" {site.constant}" in line for line in seen)
    mounts = cluster.in_pod("n3", "cat", "/proc/self/mountinfo").stdout.splitlines()
    assert not [line for line in mounts if f" {site.workspace}/" in line]
    assert "slurm.spank" not in found(cluster, "n3")
    cluster.in_pod("n4", "umount", f"{JAIL}{site.workspace}")
    assert str(site.workspace) in found(cluster, "n4")["slurm.spank"]["found"]
