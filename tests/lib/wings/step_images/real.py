"""Steps that ask at the socket, with the real pyxis and enroot (tools/real)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.cluster import JobResult
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.shell_profiles import profiles
from tests.lib.site import Site
from tests.lib.wings.step_images.steps import answering, served
from tools.real.claims import SHOW, check

CONF = Path("/etc/enroot/enroot.conf.d/tests.conf")
IMAGES = ("alone", "step", "het", "late", "numba", "numba2", "inductor", "inductor2", "nodes")
# Shows what the cache has of a profile of which a step's nodes show the same, and adds to it.
RULE = "rules: [{name: all, profiles: [alpha]}]\n"
TOGETHER = f"{profiles(alpha='*.bin')}    in_step: true\n{RULE}"
LIVE = f"harvest: {{while_running: 10s}}\n{profiles(alpha='*.bin')}{RULE}"
ADD = 'echo "$SLURMD_NODENAME: $(cd $ALPHA_CACHE && echo *)" && cp /etc/motd $ALPHA_CACHE/a.bin'
# The interpreter that has torch, as for tests/slurm/test_real_tools.py.
TOOLS_PYTHON = os.environ.get("WARMSTART_TOOLS_PYTHON", "")


def fill(root: Path) -> None:
    """Have programs of the host's /usr find their libraries, where that is mounted."""
    (root / "usr").mkdir()
    for name in ("lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")


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
        for tool, python in (("numba", site.cluster.python), ("inductor", Path(TOOLS_PYTHON))):
            if python.is_absolute():
                check_sets(site, tool, python, *(f"{registry.url}/team/{name}:1" for name in (tool, f"{tool}2")))
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
        check_nodes(site, f"{registry.url}/team/nodes:1")


def check_sets(site: Site, tool: str, python: Path, mine: str, other: str) -> None:
    """Check what is warm of images that steps name, by a tool's own counters, on four nodes; and what the report says.

    The tool is mounted into the containers: it stays what it is, and an image of a gigabyte takes minutes.
    """
    places = ("/usr", str(python.parents[1]), str(site.jobs))
    mounts = f"--no-container-mount-home --container-mounts={','.join(f'{place}:{place}:ro' for place in places)}"

    def job(node: str, *steps: str, comment: str = "") -> list[str]:
        script = "".join(f"srun {mounts} {step} {python} {site.jobs}/{tool}_job.py\n" for step in steps)
        sys.stdout.write(f'\n$ sbatch --nodelist={node} {comment} <<< "{script}"')
        options = [f"--nodelist={node}", *([f"--comment=warmstart: {comment}"] if comment else [])]
        ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{script}", ALICE, *options), deadline_s=300)
        sys.stdout.write("".join(f"    {line}\n" for line in ended.output.splitlines()))
        found = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
        return [_state(one["cache_hits"], one["cache_misses"]) for one in found]

    image, second = f"--container-image={mine}", f"--container-image={other}"
    check(f"{tool} is cold once", seen=job("n1", image, image) == ["cold", "warm"])
    check("warm on a second node", seen=job("n2", image) == ["warm"])
    check("and on a third", seen=job("n3", image) == ["warm"])
    check("and in a job that names the image at submission", seen=job("n4", image, comment=f"image={mine}") == ["warm"])
    check("such a job is cold once", seen=job("n1", second, comment=f"image={other}") == ["cold"])
    check("then a step in its image is warm", seen=job("n2", second) == ["warm"])
    named = [f"{image} --container-name=kept-{tool}", f"--container-name=kept-{tool}", second, image]
    check("each image of a job is warm, a container keeps its cache", seen=job("n3", *named) == ["warm"] * 4)
    use = next(one for one in json.loads(site.command("report", "--json").stdout)["profiles"] if one["name"] == tool)
    check(f"the report says so: {use}", seen=use["hit"] > use["built"] > 0)
    check("no node is drained", seen=site.cluster.drained() == [])


def _state(hits: int, misses: int) -> str:
    """Return what a tool's counters say of its cache."""
    return "cold" if misses and not hits else "warm" if hits and not misses else "neither"


def check_nodes(site: Site, image: str) -> None:
    """Check that all nodes of a step show the same: pyxis's importer says which nodes these are."""
    site.write_policy(TOGETHER, constant="enroot")
    # The nodes of one host have containers of their own: a step's has the same name on all of its nodes. What pyxis
    # runs after the tasks has the batch host's name for its node: on others it finds none to remove, and says so.
    CONF.write_text(re.sub("(?m)/(data|runtime)$", r"/\1/${SLURMD_NODENAME-}", CONF.read_text()))
    step = f"--container-image={image} --no-container-mount-home sh -c '{ADD}'\n"

    def job(*options: str) -> tuple[int, list[str]]:
        script = "".join(f"srun --ntasks-per-node=1 {option} {step}" for option in options)
        sys.stdout.write(f'\n$ sbatch --nodelist=n[1-3] <<< "{script}"')
        ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{script}", ALICE, "--nodelist=n[1-3]"))
        sys.stdout.write("".join(f"    {line}\n" for line in ended.output.splitlines()))
        return ended.job_id, sorted(line for line in ended.output.splitlines() if line.startswith("n"))

    first, shown = job("-N3")
    check("cold on all nodes", seen=shown == [f"n{number}: *" for number in (1, 2, 3)])
    wait_until("the union", lambda: bool(site.events(first, "harvest.merged")), 60)
    second, shown = job("-N3", "-N2 --nodelist=n2,n3")
    check("then warm on all", seen=shown == [f"n{number}: a.bin" for number in (1, 2, 2, 3, 3)])
    agreed = [line for line in site.results(second, "step-images") if "agreed_ms" in line]
    check("as they agreed", seen=sorted(event["node"] for event in agreed) == ["n1", "n2", "n3"])


def check_heterogeneous(site: Site, image: str) -> None:
    """Check a step of both components of a heterogeneous job."""
    step = f"srun --het-group=0,1 --container-image={image} --no-container-mount-home sh -c 'cat /etc/motd; {SHOW}'"
    sys.stdout.write(f'\n$ sbatch : <<< "{step}"      # {ALICE}\n')
    ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{step}\n", ALICE, "--nodelist=n1", ":", "--nodelist=n2"))
    sys.stdout.write("".join(f"    {line}\n" for line in ended.output.splitlines()))
    check("both components run, from the store's image", seen=ended.output.count("het\n") == 2)
    imports = [event for event in site.audit("--event", "image.imported") if event["image"] == image]
    check("after one import", seen=len(imports) == 1)
