"""Eight users' containers start at once: with stock pyxis, with pyxis's caching_importer.sh, and with warmstart.

    python -m tools.real.starts [ROUNDS]

Run it as `tools.real` (CONTRIBUTING.md). Two images, about 45 and 150 MB compressed, on four nodes of one host. Prints
the seconds from the first `srun` to the end of the last one, and the CPU time that all processes of the cluster took,
in rounds that alternate, cold and warm; then the CPU time of each of warmstart's own programs. Nothing is asserted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.lib.accounts import Account, lookup
from tests.lib.cluster import Cluster
from tests.lib.numba_entries import numba_entries
from tests.lib.registry import Registry
from tests.lib.site import Site
from tools.real.__main__ import ENROOT, PYXIS, plugged, push, set_up_enroot

USERS = [f"ws-start{number}" for number in range(1, 9)]
FILLING = ["/usr/lib", "/usr/bin"]  # real files, to compress as images do
SIZES = (120 << 20, 400 << 20)  # bytes of it: about 45 and 150 MB once compressed
CACHING = Path("/src/pyxis/importers/caching_importer.sh")
RULES = """\
rules:
  - {{name: everyone, match: {{partition: main}}, profiles: [numba], scope: site, publish: {{users: [{user}]}}}}
"""
GROUP = Path("/sys/fs/cgroup/cpuacct/warmstart-starts")
HOOKS = ("Prolog=", "Epilog=", "TaskProlog=")
PARTS = ("prolog", "epilog", "pyxis-importer", "40-warmstart.sh")
WRAPPER = """#!/bin/sh
echo 0 >{group}/{part}/cgroup.procs
exec {program} "$@"
"""


class Start(NamedTuple):
    """One round: wall seconds, CPU seconds, and what a user's step saw."""

    wall: float
    cpu: float
    output: str


def accounts(homes: Path) -> list[Account]:
    """Add the users to this root file system, where they stay."""
    for number, name in enumerate(USERS):
        if subprocess.run(["/usr/bin/id", name], check=False, capture_output=True).returncode != 0:
            argv = ["/usr/sbin/useradd", "--key", "SYS_UID_MAX=65000", "--system", "--uid", str(64301 + number), name]
            subprocess.run([*argv, "--user-group"], check=True)
    return [lookup(name, homes / name) for name in USERS]


def prepare(site: Site, users: list[Account]) -> None:
    """Give each user a home and directories for enroot."""
    for user in users:
        user.home.mkdir(mode=0o700)
        places = [
            site.cluster.base / "enroot" / str(user.uid) / name for name in ("", "runtime", "cache", "data", "temp")
        ]
        for path in places:
            path.mkdir(parents=True, exist_ok=True)
        for path in (user.home, *places):
            os.chown(path, user.uid, user.gid)


def fill(directory: Path, size: int, round_: int) -> None:
    """Copy real files until there are enough, and one that no other round has, since a layer is fetched once."""
    (directory / "round").write_text(str(round_))
    left = size
    for top in FILLING:
        for path in sorted(Path(top).rglob("*")):
            if path.is_file() and not path.is_symlink() and left > 0:
                target = directory / str(path).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                left -= path.stat().st_size


def used(part: str = "") -> float:
    """Return the CPU seconds of a control group and of those in it."""
    return int((GROUP / part / "cpuacct.usage").read_text()) / 1e9


def start(site: Site, users: list[Account], image: str, script: str, *options: str) -> Start:
    """Run one step of each user at the same time."""
    argv = ["srun", "-n1", f"--container-image={image}", "--no-container-mount-home", *options]
    cpu, begun = used(), time.monotonic()
    running = [
        subprocess.Popen(
            [*argv, f"--nodelist=n{number % 4 + 1}", "sh", "-c", script],
            env={**user.environment(), **site.cluster.environment}, cwd=user.home,
            user=user.uid, group=user.gid, extra_groups=[],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number, user in enumerate(users)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in running]
    wall = time.monotonic() - begun
    if any(process.returncode for process in running):
        raise RuntimeError("\n".join(outputs))
    site.cluster.wait_idle(120)
    return Start(wall, used() - cpu, outputs[0])


@contextmanager
def peer(site: Site, importer: str) -> Iterator[None]:
    """Take warmstart out of Slurm and enroot; use pyxis alone, or with an importer of its own."""
    conf, plugstack = site.cluster.base / "etc/warmstart.conf", site.cluster.base / "etc/plugstack.conf"
    hook, ours, stack = ENROOT / "hooks.d/40-warmstart.sh", conf.read_text(), plugstack.read_text()
    conf.write_text("".join(line for line in ours.splitlines(keepends=True) if not line.startswith(HOOKS)))
    plugstack.write_text(f"required {PYXIS} {importer}runtime_path={site.cluster.base}/pyxis\n")
    hook.rename(ENROOT / "40-warmstart.sh")
    site.cluster.admin("scontrol", "reconfigure")
    try:
        yield
    finally:
        (ENROOT / "40-warmstart.sh").rename(hook)
        plugstack.write_text(stack)
        conf.write_text(ours)
        site.cluster.admin("scontrol", "reconfigure")


@contextmanager
def counted(site: Site) -> Iterator[None]:
    """Have each of warmstart's programs run in a control group of its own."""
    libexec = site.cluster.prefix / "libexec/warmstart"
    programs = [ENROOT / "hooks.d" / part if part.endswith(".sh") else libexec / part for part in PARTS]
    for program in programs:
        real, group = program.parent.parent / f"real-{program.name}", GROUP / program.name
        program.rename(real)
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").chmod(0o666)
        program.write_text(WRAPPER.format(group=GROUP, part=program.name, program=real))
        program.chmod(0o755)
    try:
        yield
    finally:
        for program in programs:
            (program.parent.parent / f"real-{program.name}").rename(program)


def measure(site: Site, users: list[Account], images: list[str]) -> None:
    """Run everything with images of one size, of which each cold round takes one, and print it."""

    def alone(image: str, importer: str) -> Start:
        with peer(site, importer):
            return start(site, users, image, "true")

    cases: dict[str, Callable[[str], Start]] = {
        "stock pyxis": lambda image: alone(image, ""),
        "caching_importer.sh": lambda image: alone(image, f"importer={CACHING} "),
        "warmstart": lambda image: start(site, users, image, "true"),
    }
    rounds = len(images)
    for kind in ("cold", "warm"):
        times: dict[str, list[Start]] = {name: [] for name in cases}
        for number in range(rounds):
            for name, case in cases.items():
                if name != "stock pyxis" or number % 3 == 0:  # it takes longest, and is not what the others must beat
                    times[name].append(case(images[number if kind == "cold" else 0]))
                    say(f"{kind} {name:20} {times[name][-1].wall:6.2f} s {times[name][-1].cpu:6.2f} s CPU")
        for name, found in times.items():
            walls, cpus = sorted(one.wall for one in found), [one.cpu for one in found]
            figures = f"{median(walls):.2f} s ({walls[0]:.2f} to {walls[-1]:.2f}), {median(cpus):.2f} s CPU"
            say(f"{name:20} {kind}: {figures}")
        if kind == "cold":
            seed(site, users, images[0])
    with counted(site):
        before = {part: used(part) for part in PARTS}
        total = sum(cases["warmstart"](images[0]).cpu for _ in range(rounds))
        for part in PARTS:
            say(f"{part:20} {(used(part) - before[part]) / rounds / len(users) * 1000:7.1f} ms CPU for each job")
        say(f"{'everything':20} {total / rounds / len(users) * 1000:7.1f} ms CPU for each job")


def seed(site: Site, users: list[Account], image: str) -> None:
    """Have one user publish a cache in a container of the image, so that all others are seeded with it."""
    entries = site.cluster.base / "entries"
    for files in numba_entries(*range(40)).values():
        for path, data in files.items():
            (entries / path).parent.mkdir(parents=True, exist_ok=True)
            (entries / path).write_bytes(data)
    mount = f"--container-mounts={entries}:/entries"
    start(site, users[:1], image, "/bin/busybox cp -r /entries/. $NUMBA_CACHE_DIR", mount)
    count = "/bin/busybox find $NUMBA_CACHE_DIR -type f | /bin/busybox wc -l"
    say(f"files in the cache of a job: {start(site, users[1:2], image, count).output.splitlines()[-1]}")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Start everything, measure, take everything down."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cgroup.procs").write_text("0")
    with Cluster() as cluster, Registry(cluster.base) as registry:
        users = accounts(cluster.base / "home")
        site = Site(cluster, registry.url)
        site.write_policy(RULES.format(user=users[0].name), constant="enroot")
        set_up_enroot(site, registry.url)
        prepare(site, users)
        with plugged(site):
            for size in SIZES:
                images = [f"{registry.url}/team/app-{size >> 20}:{number}" for number in range(rounds)]
                for number, image in enumerate(images):
                    push(cluster.base / f"app-{size >> 20}-{number}", image, partial(fill, size=size, round_=number))
                say(f"{size >> 20} MiB of files")
                measure(site, users, images)
    return 0


if __name__ == "__main__":
    sys.exit(main())
