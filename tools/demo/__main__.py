"""Run the demo: the same jobs without warmstart and with it. Exits 0 when everything that it claims was seen to happen.

`--keep` leaves the cluster up until Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.lib import host
from tests.lib.accounts import ALICE, BOB
from tests.lib.cluster import Cluster, JobResult
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site, result

SECONDS = 240
WIDTH = 80
USERS = (ALICE, BOB, ALICE, BOB)
FILES, FILE_BYTES = 200, 100_000  # of the image, besides a shell
MOTD = "hello from the image"
JOBS = {"numba": "numba array", "inductor": "inductor"}  # as Site.compile_job takes it

CAPTION = """\
Seconds of an image job: from its submission to the first word from inside the
image; of the others: compiling. Without: each job fetches and packs the image
for itself, and each compiler begins with an empty cache.
"""

# What a job does that brings its own image, and what every container job does: start something in the image.
FETCH = """\
TMPDIR=$(mktemp -d) && trap 'rm -rf "$TMPDIR"' EXIT && cd "$TMPDIR" &&
skopeo copy --quiet --src-tls-verify=false "docker://$1" oci:layout:it >&2 &&
umoci raw unpack --rootless --image layout:it bundle >&2 &&
mksquashfs bundle image.sqsh -all-root -no-progress -quiet >&2 || exit 1
WARMSTART_IMAGE=$TMPDIR/image.sqsh
"""
RUN = """\
unsquashfs -quiet -no-progress -d "$TMPDIR/root" "$WARMSTART_IMAGE" >&2 || exit 1
said=$(unshare --user --map-root-user --root="$TMPDIR/root" /bin/sh -c 'read -r line </etc/motd; echo "$line"')
echo "$(date +%s.%N) $said"
"""


class JobFailed(Exception):
    """A job of the demo did not do what it had to; the text says which, and what it printed."""


class Row(NamedTuple):
    """One job of the table. Times in seconds: of an image job from its submission to its first word, else compiling."""

    job: str
    user: str
    node: str
    without: float
    warm: float
    did: str  # by warmstart


def main(arguments: list[str]) -> int:
    """Run all of it on a fresh cluster."""
    console = Console(highlight=False)
    if wanting := host.missing():
        console.print(f"the demo starts a real cluster and needs: {', '.join(wanting)}")
        return 1
    started = float(os.environ.get("STARTED", time.time()))  # `make demo` begins with what has to be installed

    def say(what: str) -> None:
        console.print(f"[{time.time() - started:2.0f} s] {what}", markup=False, soft_wrap=True)

    try:
        # The image is made while the cluster starts: one core packs it, the other one waits for daemons.
        with tempfile.TemporaryDirectory(prefix="warmstart-demo-") as made, ThreadPoolExecutor(1) as beside:
            image = beside.submit(an_image, Path(made, "image"))
            say("making an image, and starting munge, slurmctld and four slurmds")
            with Cluster() as cluster:
                say("installing warmstart, starting a registry and pushing the image")
                with Registry(cluster.base) as registry:
                    claims = _tell(console, Demo(cluster, registry, image.result, say))
                    if "--keep" in arguments:
                        _keep(console, cluster)
    except (JobFailed, RuntimeError, subprocess.CalledProcessError) as failure:
        console.print(str(failure), markup=False, soft_wrap=True)
        console.print("The demo failed. The line above names the directory with its daemons' logs.")
        return 1
    say("nothing is left running; the Debian packages stay")
    return 0 if all(claims.values()) else 1


def an_image(directory: Path) -> Path:
    """Make the image that the jobs want; return its layout's path."""
    chance = random.Random(1)
    files = {f"/opt/app/{number}": chance.randbytes(FILE_BYTES).hex() for number in range(FILES)}
    return build_image(directory, {"/etc/motd": f"{MOTD}\n", **files})


def _tell(console: Console, demo: Demo) -> dict[str, bool]:
    """Run the demo and print it; return what it claims, and whether it was so."""
    rows = demo.run()
    claims = demo.claims(rows)
    show(console, rows, claims)
    last = rows[-1].job.partition(" ")[0]
    console.print(f"\n$ warmstart explain {last}")
    console.print(demo.site.command("explain", last).stdout, markup=False, soft_wrap=True)
    return claims


def show(console: Console, rows: list[Row], claims: dict[str, bool]) -> None:
    """Print the table of jobs, and what is claimed of it."""
    table = Table("job", "user", "node", "without", "with", "what warmstart did", box=None, pad_edge=False)
    for column in table.columns[3:5]:
        column.justify = "right"
    for row in rows:
        table.add_row(row.job, row.user, row.node, f"{row.without:.1f} s", f"{row.warm:.1f} s", row.did)
    console.print(table, width=WIDTH)
    console.print(CAPTION, width=WIDTH)
    for claim, seen in claims.items():
        console.print(f"[{'green' if seen else 'red'}]{'yes' if seen else 'NO '}[/] {claim}")


def _keep(console: Console, cluster: Cluster) -> None:
    """Leave the cluster up until Ctrl-C."""
    console.print("The cluster stays up until Ctrl-C. In another shell:")
    console.print(f"  export SLURM_CONF={cluster.environment['SLURM_CONF']}", soft_wrap=True)
    console.print(f"  sbatch --uid={ALICE} --chdir=/tmp --wrap 'env | grep WARMSTART'", soft_wrap=True)
    console.print(f"  {cluster.prefix}/bin/warmstart audit --follow", soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("ending the cluster")


class Demo:
    """The jobs of the demo on a running cluster."""

    def __init__(
        self, cluster: Cluster, registry: Registry, image: Callable[[], Path], say: Callable[[str], None]
    ) -> None:
        self.site = Site(cluster, registry.url)
        self._cluster = cluster
        self._say = say
        self._reference = f"{registry.url}/demo/app:1"
        registry.push(image(), "latest", "demo/app:1")

    def run(self) -> list[Row]:
        """Run the jobs without and with warmstart; return the table."""
        off = self.site.etc / "off"
        off.touch()
        self._say("without warmstart: four jobs of two users want the same image at once")
        alone = [seconds for _, seconds in self._image_jobs(f'set -- "{self._reference}"\n{FETCH}{RUN}')]
        compiled = {}
        for tool in tools():
            self._say(f"without warmstart: a job that compiles with {tool} on n1, and one on n2")
            cold = [self._submit(tool, node, self._own_cache(f"{tool}-{node}")) for node in ("n1", "n2")]
            compiled[tool] = [self._compiled(job_id)[1] for job_id in cold]
        off.unlink()
        self._say("with warmstart: four jobs of two users want the same image at once")
        comment = f"--comment=warmstart: image={self._reference}"
        rows = [
            self._row(job, "image", user, (before, seconds))
            for user, before, (job, seconds) in zip(USERS, alone, self._image_jobs(RUN, comment), strict=True)
        ]
        for tool, before_each in compiled.items():
            for node, before in zip(("n1", "n2"), before_each, strict=True):
                self._say(f"with warmstart: a job that compiles with {tool} on {node}")
                job, seconds, hits = self._compiled(self._submit(tool, node))
                rows.append(self._row(job, tool, ALICE, (before, seconds), hits))
        return rows

    def _image_jobs(self, script: str, *arguments: str) -> list[tuple[JobResult, float]]:
        """Submit a job on each node at once; return each with the seconds until it spoke from within the image."""
        submitted = time.time()
        jobs = [
            self._cluster.submit(f"#!/bin/sh\n{script}", user, *arguments, f"--nodelist={node}")
            for user, node in zip(USERS, self._cluster.nodes, strict=True)
        ]
        ended = [self._finished(job_id) for job_id in jobs]
        spoken = [job.output.splitlines()[-1].partition(" ") for job in ended]
        if any(words != MOTD for _, _, words in spoken):
            printed = "\n".join(job.output for job in ended)
            raise JobFailed(f"a job did not run in its image; the jobs printed:\n{printed}")
        return [(job, float(at) - submitted) for job, (at, _, _) in zip(ended, spoken, strict=True)]

    def _submit(self, tool: str, node: str, python: str = "") -> int:
        """Submit the tool's sample job."""
        return self.site.compile_job(JOBS[tool], ALICE, node, python=python)

    def _compiled(self, job_id: int) -> tuple[JobResult, float, int]:
        """Wait for a sample job; return it with the seconds that compiling took, and the tool's cache hits."""
        job = self._finished(job_id)
        printed = result(job.output)
        return job, float(printed["seconds"]), int(printed["cache_hits"])

    def _own_cache(self, name: str) -> str:
        """Return a command that runs Python: its compilers have an empty cache, as in a new container."""
        variables = ("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        directory = self._cluster.account(ALICE).home / f"cache-{name}"
        return shlex.join(["env", *(f"{variable}={directory}" for variable in variables), str(self._cluster.python)])

    def _finished(self, job_id: int) -> JobResult:
        """Wait for a job; a failed one ends the demo with its output."""
        ended = self.site.finish(job_id, SECONDS)
        if ended.state != "COMPLETED":
            raise JobFailed(f"job {job_id} is {ended.state}; it printed:\n{ended.output}")
        return ended

    def _row(self, job: JobResult, name: str, user: str, times: tuple[float, float], hits: int = 0) -> Row:
        """Read in the audit log what warmstart did for a job."""
        ways = {image["how"] for image in self.site.images(job.job_id)}
        did = []
        if self.site.events(job.job_id, "image.imported"):  # by the process that this job's hook started
            did.append("had the image imported")
        elif "waited" in ways:
            did.append("waited for the import")
        if "reused" in ways:
            did.append("found the image")
        did += [f"seeded {cache['entries']}, hits {hits}" for cache in self.site.seeded(job.job_id)]
        harvested = [cache["entries"] for cache in self.site.harvested(job.job_id) if cache["profile"] == name]
        did += [f"harvested {entries}" for entries in harvested if entries]
        return Row(f"{job.job_id} {name}", user, job.nodes[0], *times, ", ".join(did))

    def claims(self, rows: list[Row]) -> dict[str, bool]:
        """Return what the demo claims, and whether it was so."""
        claims = {"one import for four jobs": len(self.site.audit("--event", "image.imported")) == 1}
        for tool in tools():
            cold, warm = (row.did for row in rows if row.job.endswith(tool))
            claims[f"{tool}: the job on n2 loaded what the one on n1 had compiled"] = (
                "harvested" in cold and "seeded" in warm and "hits 0" not in warm
            )
        return {**claims, "no node drained": not self._cluster.drained()}


def tools() -> list[str]:
    """Return the compilers that are installed here."""
    return [tool for tool in JOBS if tool == "numba" or importlib.util.find_spec("torch")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
