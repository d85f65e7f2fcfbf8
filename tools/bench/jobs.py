"""A job's own clock on a real cluster: from its allocation to the first line of its script.

The allocation is what slurmctld's log says, to the millisecond; the first line is bash's clock. With warmstart the job
has an image and two seeded caches; without hooks it has nothing. Slurm itself takes most of this time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from tests.lib.accounts import ALICE
from tests.lib.cluster import Cluster
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site
from tools.bench.figures import Figure, Series

AT_ONCE = 16
SCRIPT = "#!/bin/bash\necho $EPOCHREALTIME\n"
ALLOCATED = re.compile(
    r"^\[(\S+)\] .*(?:Allocate JobId=|Started JobId=)(\d+)\b", re.MULTILINE
)  # by the main scheduler, and by backfill
RULES = """\
rules:
  - {{name: everyone, images: ["docker://{image}"], profiles: [numba, inductor], scope: user}}
"""


def measured(alone: int, batches: int) -> Iterator[Figure]:
    """Start so many jobs one after the other, and so many batches of 16 at once on one node, with hooks and without."""
    with Cluster(cpus=AT_ONCE) as cluster, Registry(cluster.base) as registry:
        site = Site(cluster, registry.url)
        layout = build_image(cluster.base / "image", {"/etc/motd": "bench\n"})
        registry.push(layout, "latest", "bench/app:1")
        shutil.rmtree(layout.parent)
        site.write_policy(RULES.format(image=f"{registry.url}/bench/app:1"))
        first = site.finish(site.compile_job("numba", ALICE, "n1"))  # imports the image, leaves a cache
        if first.state != "COMPLETED":
            raise RuntimeError(f"the first job is {first.state}: {first.output}")
        found: dict[str, dict[str, list[float]]] = {}
        for hooks in ("warmstart", "no hooks", "warmstart", "no hooks"):
            with _hooks(cluster, wanted=hooks == "warmstart"):
                _started(cluster, 1)  # with all in memory
                for case, jobs, rounds in (("alone", 1, alone // 2), ("at once", AT_ONCE, -(-batches // 2))):
                    for _ in range(rounds):
                        found.setdefault(case, {}).setdefault(hooks, []).extend(_started(cluster, jobs))
        for case, what in (("alone", "one job on an idle node"), ("at once", f"{AT_ONCE} jobs at once on a node")):
            peer = Series("no hooks", found[case]["no hooks"])
            yield Figure("jobs", what, Series("warmstart", found[case]["warmstart"]), (peer,))


def _started(cluster: Cluster, count: int) -> list[float]:
    """Start jobs at once on one node; return each one's milliseconds from its allocation to its first line."""
    held = [cluster.submit(SCRIPT, ALICE, "--nodelist=n1", "--hold") for _ in range(count)]
    cluster.admin("scontrol", "release", ",".join(map(str, held)))
    ended = [cluster.wait(job, 300) for job in held]
    cluster.wait_idle()
    log = (cluster.base / "log" / "slurmctld.log").read_text()
    allocated = {int(job): datetime.fromisoformat(at).timestamp() for at, job in ALLOCATED.findall(log)}
    if any(job.state != "COMPLETED" for job in ended):
        raise RuntimeError(f"a job failed: {ended}")
    return [(float(job.output.splitlines()[-1]) - allocated[job.job_id]) * 1000 for job in ended]


@contextmanager
def _hooks(cluster: Cluster, *, wanted: bool) -> Iterator[None]:
    """Run the cluster without hooks, and without what slurm.conf has for them, during a `with` block."""
    conf = cluster.base / "etc" / "warmstart.conf"
    text = conf.read_text()
    if not wanted:
        conf.write_text("")
        cluster.reread()
    try:
        yield
    finally:
        if not wanted:
            conf.write_text(text)
            cluster.reread()
