"""The units of the socket at which steps ask for images, under a systemd of its own that runs Slurm, too.

Run by `test_deb` in a root file system of `tests/releases/packages/fresh`, where the package is installed.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.processes import wait_until
from tests.lib.registry import Registry, build_image
from tests.releases.packages.systemd import Systemd, started
from tests.releases.packages.trial import SLURM
from warmstart.paths import Installation
from warmstart.wings.step_images.place import program_of

USR = Installation("/usr")
STORE = Path("/srv/warmstart")
UNIT = "warmstart-step-images"
SECONDS = 120
POLICY = """\
version: 1
paths: {{store: {store}}}
images: {{registries: ["http://{registry}"]}}
rules: [{{name: all}}]
"""
JOB = """\
#!/bin/sh
srun sh -c 'path=$({importer} get docker://{image}) && echo $path'
"""


class Node:
    """A node that runs Slurm and the package under systemd."""

    def __init__(self, systemd: Systemd, registry: Registry, base: Path) -> None:
        self.systemd = systemd
        self.registry = registry
        self._base = base
        self._images = 0

    def image(self) -> str:
        """Push a new image; return its name."""
        self._images += 1
        name = f"test/image{self._images}:1"
        layout = build_image(self._base / str(self._images), {"/etc/number": f"{self._images}\n"})
        self.registry.push(layout, "latest", name)
        return f"{self.registry.url}/{name}"

    def submit(self, image: str) -> int:
        """Submit a job of alice's with a step that names an image; return its id."""
        script = JOB.format(importer="/usr/libexec/warmstart/pyxis-importer", image=image)
        argv = ["runuser", "-u", "alice", "--", "sbatch", "--parsable", "--output=/home/alice/%j", f"--wrap={script}"]
        return int(self.systemd.run(*argv))

    def said(self, job: int) -> str:
        """Wait for a job's end; return what it printed."""
        wait_until("the end of the job", lambda: self.systemd.run("squeue", "--noheader") == "", SECONDS)
        return Path(f"/home/alice/{job}").read_text().strip()

    def hooks(self, job: int) -> set[str]:
        events = map(json.loads, self.systemd.run("warmstart", "audit", "--json", "--job", str(job)).splitlines())
        return {event["hook"] for event in events if event.get("images")}

    def state(self, kind: str) -> str:
        """Return how it is with the service or socket."""
        return self.systemd.shows(f"{UNIT}.{kind}", "ActiveState")

    def programs(self) -> set[str]:
        """Return what runs of the program: the server, "", and " answer"."""
        running = self.systemd.run("ps", "-eo", "args")
        return set(re.findall(r"libexec/warmstart/step-images(.*)$", running, re.MULTILINE))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Yield a node that runs Slurm with warmstart's hooks, and whose socket is enabled."""
    base = Path(tempfile.mkdtemp(dir="/var/tmp"))
    base.chmod(0o755)
    (base / "log").mkdir()
    with started() as systemd, Registry(base) as registry:
        systemd.run("useradd", "--create-home", "alice")
        systemd.run("install", "-d", "-o", "slurm", "/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd")
        systemd.run("install", "-d", "-o", "warmstart", str(STORE))
        Path(USR.policy).write_text(POLICY.format(store=STORE, registry=registry.url))
        Path("/etc/slurm/slurm.conf").write_text(f"{SLURM}include warmstart.conf\n")
        shutil.copy("/usr/share/warmstart/slurm.conf", "/etc/slurm/warmstart.conf")
        # The machine below may have both kinds; neither is needed.
        Path("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        Path("/etc/default/slurmd").write_text('SLURMD_OPTIONS="-N localhost"\n')
        systemd.ctl("start", "munge", "slurmctld", "slurmd")
        wait_until("the node", lambda: "idle" in systemd.run("sinfo", "--noheader"), 30)
        systemd.ctl("enable", "--now", f"{UNIT}.socket")
        yield Node(systemd, registry, base)
    shutil.rmtree(base)


def is_served(said: str) -> bool:
    return Path(said).parent == STORE / "images"


def test_a_step_starts_the_service(node: Node) -> None:
    """Root imports the image in a unit of its own. A stop of the service ends no answer that is under way."""
    assert (node.state("socket"), node.state("service"), node.programs()) == ("active", "inactive", set())
    image = node.image()
    with node.registry.silent():
        job = node.submit(image)
        wait_until("the import", lambda: "running" in node.systemd.ctl("list-units", "warmstart-import@*"), SECONDS)
        assert (node.state("service"), node.programs()) == ("active", {"", " answer"})
        node.systemd.ctl("stop", f"{UNIT}.service")
        assert node.programs() == {" answer"}
    assert (is_served(node.said(job)), node.hooks(job)) == (True, {"step-images"})


def test_removing_the_package_ends_it(node: Node) -> None:
    node.said(node.submit(node.image()))
    assert node.state("service") == "active"
    node.systemd.run("dpkg", "--remove", "warmstart")
    assert (node.state("socket"), node.state("service"), node.programs()) == ("inactive", "inactive", set())
    node.systemd.run("test", "!", "-e", program_of(USR))
    node.said(node.submit(node.image()))
    assert "drain" not in node.systemd.run("sinfo", "--noheader")
