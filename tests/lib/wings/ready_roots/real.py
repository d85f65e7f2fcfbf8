"""Containers that start from their node's tree, with the real pyxis and enroot (tools/real)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.lib import processes
from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.site import Site
from tools.real.claims import check
from warmstart.wings.ready_roots.checks import HOOK

IMAGES = ("rooted", "walked", "nesting")
HOOKS = Path("/etc/enroot/hooks.d")
WAY = 'grep -q "^overlay / .*/mounted/" /proc/mounts && echo from-tree || echo from-image'
RULES = """\
rules:
  - {name: everyone, match: {partition: main}, profiles: [numba, triton], scope: site, publish: {users: [ws-alice]}}
"""

INNER = (
    "cd /tmp && mkdir a u w m && mount -t overlay -o lowerdir=a,upperdir=u,workdir=w,userxattr inner m && "
    "echo x >m/x && cat u/x"
)
LEASED = """\
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for fd in files:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
signal.pause()
"""
STEPS = "tests.lib.wings.step_images.steps"


def fill(root: Path) -> None:
    """Add to an image what a container with root's name needs, and a file that nothing reads as it starts."""
    (root / "root").mkdir()
    (root / "large").write_bytes(os.urandom(4 << 20))
    if root.parent.name == "nesting":
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (root / "usr/bin/apptainer").touch()


@contextmanager
def with_shelf(site: Site) -> Iterator[None]:
    """Install the hook, and have a shelf in the policy."""
    (site.cluster.base / "shelf").mkdir(exist_ok=True)
    shutil.copy(site.cluster.prefix / "share/warmstart/enroot" / HOOK, HOOKS)
    site.write_policy(RULES, constant="enroot", workspace=f"{site.workspace}\n  shelf: {site.cluster.base}/shelf")
    try:
        yield
    finally:
        (HOOKS / HOOK).unlink()
        site.write_policy(RULES, constant="enroot")


def ran(site: Site, script: str, image: str, *options: str, user: str = ALICE, group: str = "") -> list[str]:
    """Run a step in a container on n1, as another group of the user's if one is given; print and return its output."""
    account = site.cluster.account(user)
    if group:
        account = account._replace(gid=site.cluster.account(group).gid)
    argv = ["srun", "--nodelist=n1", f"--container-image={image}", "--no-container-mount-home", *options]
    sys.stdout.write(f"\n$ {' '.join(argv[2:])} sh -c '{script}'  # {user} {group}\n")
    done = processes.run_as(account, [*argv, "sh", "-c", script], environment=site.cluster.environment)
    site.cluster.wait_idle(120)
    sys.stdout.write("".join(f"    {line}\n" for line in f"{done.stdout}{done.stderr}".splitlines()))
    return [*done.stdout.splitlines(), f"[{done.returncode}]"]


def run_without_unpacking(site: Site, registry: Registry, private: str) -> None:
    """Check containers of an image that n1 has unpacked."""
    image, other, nesting = (f"{registry.url}/team/{name}:1" for name in IMAGES)
    check("without a shelf from the image's file", seen="from-image" in ran(site, WAY, image))
    with with_shelf(site):
        check("the first container on a node waits for its tree", seen="from-tree" in ran(site, WAY, image))
        began = time.monotonic()
        check("from the tree", seen=ran(site, f"cat /etc/motd; {WAY}", image) == ["rooted", "from-tree", "[0]"])
        check(f"within {time.monotonic() - began:.1f} s, from srun to its end", seen=True)
        check_forms(site, image)
        done = ran(site, f"{WAY}; {INNER}", nesting, "--container-remap-root")
        check("one that may lay a third overlay, from its file", seen=done == ["from-image", "x", "[0]"])
        check_others(site, image)
        check_step(site, other)
        check_ends(site, image)
        check("no node is drained", seen=site.cluster.drained() == [])


def run_in_a_namespace(site: Site, image: str) -> None:
    """Check a container in a job that has a mount namespace of Slurm's."""
    rooms = _mounted(site)
    with with_shelf(site):
        for _ in range(2):
            check("from the tree", seen=ran(site, WAY, image) == ["from-tree", "[0]"])
        left = [mount for mount in _mounted(site) if mount not in rooms]
        check(f"no mount is left on the node: {left}", seen=not left)


@contextmanager
def by_fuse(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Have a file system of a process show the store; yield the process."""
    server = processes.start(site.cluster.base, "store", ["/usr/bin/bindfs", "-f", str(site.store), str(site.store)])
    wait_until("the store", lambda: os.path.ismount(site.store), 20)
    try:
        yield server
    finally:
        subprocess.run(["/usr/bin/umount", "--lazy", site.store], check=True)
        processes.stop(server)


def check_forms(site: Site, image: str) -> None:
    """Check the ways to start a container."""
    box = "/tmp/busybox"
    write = f"cp /bin/busybox {box}; echo x >/new && rm -r /bin && {box} mkdir /bin && {box} ls -A /bin; {box} cat /new"
    check("read-only", seen="[1]" in ran(site, "echo x >/new", image, "--container-readonly"))
    done = ran(site, f"{WAY}; {write}", image, "--container-writable")
    check("writable", seen=done == ["from-tree", "x", "[0]"])
    done = ran(site, f"{WAY}; id -u; stat -c %u /etc; {write}", image, "--container-writable", "--container-remap-root")
    check("as root", seen=done == ["from-tree", "0", "0", "x", "[0]"])
    done = ran(site, f"{WAY}; {INNER}", image, "--container-remap-root")
    check("an overlay in a container works", seen=done == ["from-tree", "x", "[0]"])
    home = site.cluster.account(ALICE).home
    (home / "mounted file").write_text("mounted\n")
    done = ran(site, f"{WAY}; cat /mnt/*file", image, f"--container-mounts={home}:/mnt")
    check("with mounts", seen=done[:2] == ["from-tree", "mounted"])
    done = ran(site, f"echo $ENTERED; {WAY}", image, "--container-entrypoint")
    check("with its entrypoint", seen=done == ["1", "from-tree", "[0]"])
    done = ran(site, WAY, image, "--ntasks=2", "--overcommit")
    check("two tasks", seen=done == ["from-tree", "from-tree", "[0]"])
    subprocess.run(["/usr/sbin/usermod", "-aG", BOB, ALICE], check=True)
    done = ran(site, f"cat /etc/motd; {WAY}", image, group=BOB)
    check("as a job of another group of the user's", seen=done[:2] == ["rooted", "from-tree"])
    done = ran(site, f"cat /etc/motd; {WAY}", image, "--container-name=rooted")
    check("a container with a name is unpacked", seen=done[:2] == ["rooted", "from-image"])


def check_others(site: Site, image: str) -> None:
    """Check that another user cannot get to a job's clone."""
    go = site.cluster.base / "go-others"
    options = f"--container-image={image} --container-mounts={go.parent}:/go --no-container-mount-home"
    waits = f"while [ ! -e /go/{go.name} ]; do sleep 0.2; done"
    leases = f"python3 -c '{LEASED}' $WARMSTART_ROOTFS/etc/motd $WARMSTART_ROOTFS/bin/busybox &\n"
    script = f"#!/bin/sh\necho root=$WARMSTART_ROOTFS\n{leases}srun {options} sh -c '{waits}'\n"
    job = site.cluster.submit(script, ALICE, "--nodelist=n1", f"--comment=warmstart: image={image}")
    output = site.cluster.account(ALICE).home / f"slurm-{job}.out"
    wait_until("the script", lambda: output.exists() and "leased" in output.read_text(), 60)
    began, step = time.monotonic(), f"srun --nodelist=n1 --container-image={image} --no-container-mount-home"
    done = site.cluster.run(["sh", "-c", f"{step} sh -c 'cat /etc/motd; {WAY}'"], BOB)
    took = time.monotonic() - began
    check(f"a lease on the tree keeps another's container for {took:.1f} s", seen=took < 20)
    check("which starts from it", seen=done.stdout.splitlines() == ["rooted", "from-tree"])
    clone = output.read_text().partition("root=")[2].split()[0]
    tries = (
        f"ls {clone}",
        f"unshare -Urm sh -c 'ls {clone}'",
        f"unshare -Urm sh -c 'mount -t overlay -o lowerdir={clone}:/var,userxattr overlay /mnt && ls /mnt'",
        f"unshare -Urm sh -c 'mount --rbind {os.path.dirname(clone)} /mnt && ls /mnt'",
    )
    failed = [site.cluster.run(["sh", "-c", attempt], BOB, node="n1").returncode for attempt in tries]
    check("users have namespaces", seen=site.cluster.run(["unshare", "-Urm", "true"], BOB, node="n1").returncode == 0)
    check(f"another user gets to {clone} in none of {len(tries)} ways", seen=all(failed))
    check("its own user does", seen=site.cluster.run(["ls", clone], ALICE, node="n1").returncode == 0)
    go.touch()
    check("the job ends well", seen=site.finish(job).state == "COMPLETED")
    mounted = Path("/proc/self/mountinfo").read_text()
    check("nothing stays mounted", seen=f"/{job}." not in mounted and "team" not in mounted)
    text = site.command("explain", str(job)).stdout
    check("explain says from what they started", seen="1 from the node's tree" in text)


def check_step(site: Site, image: str) -> None:
    """Check an image that only a step names, where there is a wing that steps ask."""
    if find_spec(STEPS) is None:
        return
    served = import_module(STEPS).served
    step = f"srun --container-image={image} --no-container-mount-home sh -c '{WAY}'\n"
    with served(site):
        ended = site.finish(site.cluster.submit(f"#!/bin/sh\n{step}{step}", ALICE, "--nodelist=n1"))
    sys.stdout.write(f"\n{step}{ended.output}")
    check("a step's image, too, from the first container on", seen=ended.output.count("from-tree") == 2)


def check_store_gone(site: Site, image: str) -> list[str]:
    """Have the store's file system end while a container runs; return what that says, and the state of its job."""
    go = site.cluster.base / "log"
    go.chmod(0o777)
    for name in ("started", "gone"):
        (go / name).unlink(missing_ok=True)
    read = "cat /large >/dev/null && echo read || echo not read"
    script = f"{WAY}; touch /go/started; while [ ! -e /go/gone ]; do sleep 0.2; done; {read}"
    step = f"srun --container-image={image} --container-mounts={go}:/go --no-container-mount-home sh -c '{script}'"
    with by_fuse(site) as server:
        job = site.cluster.submit(f"#!/bin/sh\n{step}\n", ALICE, "--nodelist=n1", f"--comment=warmstart: image={image}")
        wait_until("the container", (go / "started").exists, 60)
        server.kill()
        server.wait()
        (go / "gone").touch()
        ended = site.finish(job)
    sys.stdout.write(f"\n{step}\n{ended.output}")
    check("no node is drained", seen=site.cluster.drained() == [])
    known = ("from-tree", "from-image", "read", "not read")
    return [*(line for line in ended.output.splitlines() if line in known), ended.state]


def check_ends(site: Site, image: str) -> None:
    """Check that a container outlives the store, and that one that is killed leaves nothing."""
    check(
        "it reads on when the store is gone", seen=check_store_gone(site, image) == ["from-tree", "read", "COMPLETED"]
    )
    sleeping = f"srun --container-image={image} --no-container-mount-home sleep 600"
    for pause in (0.2, 0.5, 1.0, 1.5, 3.0):
        job = site.cluster.submit(
            f"#!/bin/sh\n{sleeping}\n", ALICE, "--nodelist=n1", f"--comment=warmstart: image={image}"
        )
        time.sleep(pause)
        site.cluster.admin("scancel", str(job))
        site.cluster.wait_idle(120)
        left = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"/{job}." in line]
        check(f"a job that is killed after {pause} s leaves no mount", seen=not left)
    check_nothing_left(site)


def check_nothing_left(site: Site) -> None:
    """Check that no job's directory and no half tree is left on n1."""
    runs = [name for name in os.listdir(site.workspace / "n1") if name[0].isdigit()]
    trees = _trees(site)
    check(f"no directory of a job, and whole trees only: {runs}, {trees}", seen=not runs and "." not in "".join(trees))


def _trees(site: Site) -> list[str]:
    return os.listdir(site.cluster.base / "shelf/n1/images")


def _mounted(site: Site) -> list[str]:
    """Return the places on the node at which something of the cluster is mounted, and its files behind loop devices."""
    base = str(site.cluster.base)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if base in line]
    loops = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return mounts + [path for path in loops if base in path]
