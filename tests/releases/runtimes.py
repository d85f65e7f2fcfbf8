"""Container runtimes at work on a real cluster, as their guides say. Run by `test_runtimes`, in a root that has them.

The tool in the image is one whose entries are of use at one path only: it writes the path of its entry into it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import processes
from tests.lib.accounts import ALICE, BOB
from tests.lib.cluster import Cluster
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "no-enroot.md"
(SUITE,) = re.findall(r"^VERSION_CODENAME=(.+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
CACHE = "/var/cache/warmstart"
RULES = """\
profiles:
  pathtool:
    variables: {PATHTOOL_CACHE: "{dir}"}
    entries: {"*.kernel": []}
    formats: {"*.kernel": text}
rules:
  - name: everyone
    profiles: [pathtool]
    env: {SITE_SAYS: two words}
"""
TOOL = """\
kernel=$PATHTOOL_CACHE/one.kernel
case $(busybox cat "$kernel" 2>/dev/null) in
"$kernel") echo "> tool warm" ;;
*) echo "$kernel" >"$kernel"; echo "> tool cold" ;;
esac
echo "> cache $WARMSTART_CACHE"
echo "> site $SITE_SAYS"
echo "> user $USER_SAYS"
echo "> image $IMAGE_SAYS"
echo written >"${TMPDIR:-/tmp}/$SLURM_JOB_ID"
exit 7
"""
IMAGE_SAYS = """it's a "word" $HOME"""
# In the container: the tool, when the batch script lets it.
HELD = (
    'busybox touch "$WARMSTART_CACHE/in"; until [ -e "$WARMSTART_CACHE/go" ]; do busybox usleep 50000; done; sh /tool'
)
HOLD = """\
({command}) &
while [ ! -e "$WARMSTART_CACHE/in" ] && kill -0 $!; do sleep 0.1; done
touch {meeting}/$SLURM_JOB_ID
until [ "$(ls {meeting} | wc -l)" -ge {jobs} ]; do sleep 0.1; done
touch "$WARMSTART_CACHE/go"
wait $!
status=$?
"""
PLAIN = """\
({command})
status=$?
"""
AFTER = """\
[ -s "$TMPDIR/$SLURM_JOB_ID" ] && echo "> tmpdir the job's"
exit $status
"""


class Runtime(NamedTuple):
    """A runtime, and its section of the guide."""

    program: str
    section: str

    def guide(self) -> str:
        return GUIDE.read_text().partition(f"\n## {self.section.capitalize()}\n")[2].partition("\n## ")[0]

    def command(self, inside: str) -> str:
        """Return the command of the guide, with another one to run in the container."""
        page = self.guide()
        (command,) = re.findall(r"^```bash\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
        assert command.count("COMMAND") == 1
        if (self.program, SUITE) == ("podman", "bookworm"):
            (first,) = re.findall(r"There begin with `(.*?)`", page)
            command = first + command[command.index("\n") :]
        return str(command).replace("COMMAND", inside)


KNOWN = (Runtime("apptainer", "apptainer"), Runtime("ch-run", "charliecloud"), Runtime("podman", "podman"))
RUNTIMES = [runtime for runtime in KNOWN if shutil.which(runtime.program)]  # of this root file system


@pytest.fixture(scope="module", params=RUNTIMES, ids=[runtime.program for runtime in RUNTIMES])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    runtime: Runtime = request.param
    return runtime


@pytest.fixture(scope="session")
def cluster(capable_host: None) -> Iterator[Cluster]:
    """Return a running cluster that knows a job's daemons by its cgroup, as sites have it: runtimes have helpers."""
    with Cluster(proctrack="cgroup") as running:
        yield running
    for path in Path("/sys/fs/cgroup").glob("*/slurm_n?"):
        with suppress(OSError):  # a slurmd of a few moments ago
            path.rmdir()


@pytest.fixture(scope="module", autouse=True)
def homes(cluster: Cluster) -> None:
    """Let the users have homes and subordinate ids: what the runtimes look up is what the system knows."""
    for name in (ALICE, BOB):
        subprocess.run(["usermod", "--home", str(cluster.account(name).home), name], check=True)
    lines = "".join(f"{name}:{500000 + number * 65536}:65536\n" for number, name in enumerate((ALICE, BOB)))
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        path.write_text(lines)  # of a root file system for tests


@pytest.fixture(scope="module")
def image(cluster: Cluster, registry: Registry) -> str:
    """Push an image with the tool, and an ENV; return its name."""
    directories = ("tmp", "var/tmp", "root", "home", "dev", "proc", "sys", "usr/bin", "etc")
    files = {f"/{directory}/.keep": "" for directory in directories}
    accounts = {"/etc/passwd": "root:x:0:0::/root:/bin/sh\n", "/etc/group": "root:x:0:\n", "/etc/hosts": ""}
    layout = build_image(cluster.base / "image", {**files, **accounts, "/tool": TOOL})
    says = [f"--config.env=IMAGE_SAYS={IMAGE_SAYS}", "--config.env=PATH=/bin:/usr/bin", "--config.workingdir=/root",
            "--config.entrypoint=sh", "--config.cmd=/tool"]  # fmt: skip
    subprocess.run(["umoci", "config", "--image", f"{layout}:latest", *says], check=True, capture_output=True)
    registry.push(layout, "latest", "test/tool:1")
    return f"{registry.url}/test/tool:1"


Submit = Callable[..., int]


@pytest.fixture
def submit(site: Site, image: str, runtime: Runtime) -> Submit:
    """Return a function that submits a job with the guide's command, under a policy whose store is this test's own."""
    store = site.new_store(site.cluster.base / f"store.{runtime.program}")
    site.write_policy(RULES, constant="containers", cache=CACHE, store=str(store))

    def submit(
        user: str = ALICE, node: str = "n1", template: str = PLAIN, inside: str = "sh /tool", **words: object
    ) -> int:
        command = template.format(command=runtime.command(inside), **words)
        script = f"#!/bin/bash\nexport USER_SAYS='own words'\n{command}{AFTER}"
        return site.cluster.submit(script, user, f"--nodelist={node}", f"--comment=warmstart: image={image}")

    return submit


def said(output: str) -> dict[str, str]:
    return dict(line.removeprefix("> ").split(" ", 1) for line in output.splitlines() if line.startswith("> "))


def fuse_mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "squashfuse" in line]


def running(site: Site) -> list[list[bytes]]:
    """Return the processes of this cluster's jobs; the users may have others, of other clusters."""
    users = {pid for name in (ALICE, BOB) for pid in processes.of_uid(site.cluster.account(name).uid)}
    return [processes.arguments(pid) for pid in users & processes.members(site.cluster.base)]


def test_cold_then_warm(site: Site, submit: Submit, runtime: Runtime) -> None:
    """What a job wrote at the constant path is there for the next one, on another node; its exit code is the job's.

    The second one runs the image's own program.
    """
    jobs = []
    for node, program in (("n1", "sh /tool"), ("n2", "sh /etc/rc")):
        ended = site.finish(submit(node=node, inside=program))
        assert ended.exit_code == 7, ended.output
        jobs.append(said(ended.output))
    always = {"cache": CACHE, "site": "two words", "user": "own words", "image": IMAGE_SAYS, "tmpdir": "the job's"}
    assert jobs == [{"tool": "cold", **always}, {"tool": "warm", **always}], ended.output


def test_two_jobs_at_once(site: Site, submit: Submit, runtime: Runtime) -> None:
    for users in ((ALICE, BOB), (ALICE, ALICE)):
        meeting = site.cluster.base / f"meeting.{'.'.join(users)}"
        shutil.rmtree(meeting, ignore_errors=True)
        meeting.mkdir()
        meeting.chmod(0o777)
        hold = {"template": HOLD, "inside": f"sh -c '{HELD}'", "meeting": meeting, "jobs": 2}
        jobs = [submit(user, **hold) for user in users]
        ended = [site.finish(job) for job in jobs]
        assert [job.exit_code for job in ended] == [7, 7], [job.output for job in ended]
        assert [said(job.output)["cache"] for job in ended] == [CACHE] * 2


def test_a_killed_job_leaves_nothing(site: Site, submit: Submit, runtime: Runtime) -> None:
    marker = site.cluster.base / "marker"
    marker.mkdir(exist_ok=True)
    marker.chmod(0o777)
    job = submit(template=HOLD, inside=f"sh -c '{HELD}'", meeting=marker, jobs=9)
    wait_until("the container", (marker / str(job)).exists, 60)
    assert running(site) != []
    site.cluster.cancel(job)
    site.finish(job)
    assert [*running(site), *site.mounted(), *fuse_mounts(), *site.leftovers()] == []
    shutil.rmtree(marker)
