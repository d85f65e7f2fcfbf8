"""Steps that ask at the socket, with the real pyxis and enroot (tools/real)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.cluster.accounts import ALICE, BOB, CAROL
from tests.cluster.cluster import JobResult
from tests.cluster.processes import wait_until
from tests.cluster.registry import Registry
from tests.cluster.site import Site
from tests.support.numba_entries import numba_entries
from tests.wings.step_images.steps import answering, served
from tools.real.claims import SHOW, check

IMAGES = ("alone", "step", "het", "late", "mine", "other")
# Prints whether numba's cache has an entry, and compiles it if not.
COMPILE = (
    "cd $NUMBA_CACHE_DIR && if ls */*.nbi >/dev/null 2>&1; then echo warm; else cp -r /compiled/. . && echo cold; fi"
)


def steps(site: Site, users: Sequence[str], image: str, script: str) -> list[JobResult]:
    """Run a batch job of each user at once, whose step names an image. Print and return what each reads."""
    step = f"srun --container-image={image} --no-container-mount-home sh -c '{script}'"
    sys.stdout.write(f'\n$ sbatch <<< "{step}"      # {", ".join(users)}\n')
    jobs = [
        site.cluster.submit(f"#!/bin/sh\n{step}\n", user, f"--nodelist=n{1 + number % 4}")
        for number, user in enumerate(users)
    ]
    ended = [site.finish(job) for job in jobs]
    for user, job in zip(users, ended, strict=True):
        sys.stdout.write("".join(f"    {user}: {line}\n" for line in job.output.splitlines()))
    return ended


def run(site: Site, registry: Registry) -> None:
    """Check an image that only a step within a batch job names."""
    users = (ALICE, BOB, CAROL) * 2
    alone = steps(site, users[:3], f"{registry.url}/team/alone:1", "cat /etc/motd")
    fetched = registry.requests("GET", "/team/alone/blobs/")
    check("without the socket each imports it", seen=all("alone" in job.output for job in alone))
    with served(site):
        ended = steps(site, users, f"{registry.url}/team/step:1", f"cat /etc/motd; {SHOW}")
        check("with it all six run", seen=all("step\n" in job.output for job in ended))
        once = registry.requests("GET", "/team/step/blobs/")
        check(f"by {once} requests for blobs, {fetched} without it", seen=once * 3 == fetched)
        imports = [event for event in site.audit("--event", "image.imported") if "/team/step:" in event["image"]]
        check("and one import", seen=len(imports) == 1)
        check("with caches", seen=all(f"cache={site.constant} numba={site.constant}/" in job.output for job in ended))
        check("and no step says so", seen=all("warmstart:" not in job.output for job in ended))
        check_sets(site, f"{registry.url}/team/mine:1", f"{registry.url}/team/other:1")
        check_heterogeneous(site, f"{registry.url}/team/het:1")
        with registry.silent():
            step = f"srun --container-image={registry.url}/team/late:1 true"
            job = site.cluster.submit(f"#!/bin/sh\n{step}\n", ALICE, "--nodelist=n1")
            wait_until("the wait", lambda: answering(site) != [], 60)
            began = time.monotonic()
            site.cluster.admin("scancel", str(job))
            site.cluster.wait_idle(120)
            seconds = time.monotonic() - began
            check(f"a job that is cancelled while its step waits leaves its node after {seconds:.0f} s", seen=True)
        site.wait_imports()


def check_sets(site: Site, mine: str, other: str) -> None:
    """Check what is warm of an image that a step names, on three nodes, and of a container that is used again."""
    compiled = site.cluster.base / "compiled"
    for name, content in next(iter(numba_entries(761).values())).items():
        (compiled / name).parent.mkdir(parents=True, exist_ok=True)
        (compiled / name).write_bytes(content)
    mounts = f"--no-container-mount-home --container-mounts={compiled}:/compiled"

    def job(node: str, *steps: str) -> list[str]:
        script = "".join(f"srun {mounts} {step} sh -c '{COMPILE}'\n" for step in steps)
        sys.stdout.write(f'\n$ sbatch --nodelist={node} <<< "{script}"')
        ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{script}", ALICE, f"--nodelist={node}"))
        sys.stdout.write("".join(f"    {line}\n" for line in ended.output.splitlines()))
        return [line for line in ended.output.splitlines() if line in {"cold", "warm"}]

    image = f"--container-image={mine}"
    check("cold once", seen=job("n1", image, image) == ["cold", "warm"])
    check("warm on another node", seen=job("n2", image) == ["warm"])
    named = [f"{image} --container-name=kept", "--container-name=kept", f"--container-image={other}", image]
    check("each image has its own, a container keeps its", seen=job("n3", *named) == ["warm", "warm", "cold", "warm"])
    check("no node is drained", seen=site.cluster.drained() == [])


def check_heterogeneous(site: Site, image: str) -> None:
    """Check a step of both components of a heterogeneous job."""
    step = f"srun --het-group=0,1 --container-image={image} --no-container-mount-home sh -c 'cat /etc/motd; {SHOW}'"
    sys.stdout.write(f'\n$ sbatch : <<< "{step}"      # {ALICE}\n')
    ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{step}\n", ALICE, "--nodelist=n1", ":", "--nodelist=n2"))
    sys.stdout.write("".join(f"    {line}\n" for line in ended.output.splitlines()))
    check("both components run, from the store's image", seen=ended.output.count("het\n") == 2)
    imports = [event for event in site.audit("--event", "image.imported") if event["image"] == image]
    check("after one import", seen=len(imports) == 1)
