"""The first line of a container, and the work after it, with real pyxis: each way to have its root, in turns.

    python -m tests.lib.wings.ready_roots.first_line [--mib N] [--modules NAME,...] [--rounds N] [--many N] [--stock]

Run it as `tools.real` (CONTRIBUTING.md). The image has the /usr of this root file system, with copies of it `--mib` in
all; Python there imports `--modules`. The store has the image. With `--stock` pyxis alone starts containers, too: it
fetches the image for each, and with its caching importer, which starts from squashfuse, for the first one. Prints a
table of medians: milliseconds from `sbatch` until one container, or the last of `--many`, has its first line, and what
the work in one takes then; and in MB, how much more of its memory the node has in use at the end of that work than
before, without what it can drop, and what the disk below /var/tmp has read and written by the end of the job. That disk
has the store, too, and all that `--many` unpack at once; it should be an ext4 with a journal (tools.bench says why). A
way that needs more room than it has starts one container only.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from tests.lib.accounts import ALICE
from tests.lib.cluster import Cluster
from tests.lib.registry import Registry
from tests.lib.site import Site
from tests.lib.wings.ready_roots.real import HOOKS
from tools.real.__main__ import plugged, push, set_up_enroot
from tools.real.starts import CACHING, peer, say
from warmstart.wings.ready_roots.checks import HOOK

RULES = """\
  max_size: 60GiB
  unpack: {keep: 60GiB}
rules: [{name: all, profiles: [numba], scope: user}]
"""
SQUASHFUSE = "use_squashfuse=1 "
WORK = """\
t() {{ echo at $1 $(/usr/bin/date +%s%N); }}
t first
for n in 1 2 3; do /usr/bin/python3 -c "import {modules}" || exit; t import-$n; done
for n in 1 2; do /usr/bin/find /usr -size +1000000000k; t walk-$n; done
/usr/bin/find /usr -type f -exec /usr/bin/cat {{}} + >/dev/null; t read
/usr/bin/rm -r /usr/share 2>/dev/null; t rm
/usr/bin/cp -a /usr/lib/python3* /opt/; t install
/usr/bin/cat /proc/meminfo"""
LAST = "install"
IN_USE = ("AnonPages:", "Shmem:")  # of /proc/meminfo, in KiB
UNPACKED = 1.3  # bytes on the disk for each of the image's, with some to spare
BY_PYXIS = "ours, unpacked by pyxis"
STOCK = "stock"
STOCK_CACHING = "stock, caching_importer.sh, use_squashfuse"
SECTOR = 512  # bytes, in /sys
LINE = "echo at first $(/usr/bin/date +%s%N)"
Times = dict[str, float]


def fill(root: Path, mib: int) -> None:
    """Copy /usr, and again, until there is as much."""
    (root / "opt").mkdir(exist_ok=True)
    for name in ("lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    subprocess.run(["/bin/cp", "-a", "/usr/.", root / "usr"], check=True)
    (root / "usr/sbin/nologin").unlink(missing_ok=True)  # the users' shell, which enroot would start
    left = (mib << 20) - sum(path.lstat().st_size for path in (root / "usr").rglob("*"))
    for number in range(1000):
        for path in Path("/usr").rglob("*"):
            if left <= 0:
                return
            if path.is_file() and not path.is_symlink():
                target = root / f"usr/more/{number}" / path.relative_to("/usr")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
                left -= path.stat().st_size


def one(site: Site, image: str, work: str) -> Times:
    """Start a container, and work in it."""
    before = _in_use(Path("/proc/meminfo").read_text())
    began, output = _started(site, image, work, 1)
    marks = _marks(output)
    if not marks or marks[-1][0] != LAST:  # a part of the work has failed
        raise RuntimeError(output)
    ends = [began, *(at for _, at in marks)]
    times = {f"one: {name}": (at - end) / 1e6 for (name, at), end in zip(marks, ends, strict=False)}
    return times | {"one: MB in memory": (_in_use(output) - before) / 1e6}


def several(site: Site, image: str, many: int) -> Times:
    """Start so many at once, in a job; return when the last one had its first line."""
    began, output = _started(site, image, LINE, many)
    marks = _marks(output)
    if len(marks) != many:
        raise RuntimeError(output)
    return {f"{many}: last first": (max(at for _, at in marks) - began) / 1e6}


def _started(site: Site, image: str, work: str, many: int) -> tuple[int, str]:
    """Run a batch job with so many containers; return when it was submitted, and its output.

    A batch script starts as soon as the prolog is over. srun, where it asks for the job itself, looks for that after
    0.1, 1.1, 2.6 and 4.6 seconds.
    """
    options = f"--container-image={image} --no-container-mount-home --container-writable"
    step = f"srun --overlap -n1 {options} sh -c {shlex.quote(work)} &\n"
    began = time.time_ns()
    script = f"#!/bin/sh\n{step * many}wait\n"
    job = site.cluster.submit(script, ALICE, "--nodelist=n1", f"--comment=warmstart: image={image}")
    return began, site.finish(job, deadline_s=1800).output


def _marks(output: str) -> list[tuple[str, int]]:
    lines = [line.split() for line in output.splitlines()]
    return [(words[1], int(words[2])) for words in lines if words[:1] == ["at"]]


def _in_use(meminfo: str) -> int:
    """Return the bytes of the node's memory that nothing but their owner's end gives back."""
    return sum(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith(IN_USE))


def on_disk(path: Path) -> tuple[int, int]:
    """Return the bytes that the disk of a path has read and written since it is there, with all that waited for it."""
    os.sync()
    device = path.stat().st_dev
    fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[2]) * SECTOR, int(fields[6]) * SECTOR


def table(found: dict[str, list[Times]]) -> str:
    """Return the medians as a table in Markdown."""
    names = list(dict.fromkeys(name for rounds in found.values() for name in rounds[0]))
    rows = [["", *names], ["---"] * (len(names) + 1)]
    rows += [
        [way, *(f"{median(times[name] for times in rounds):,.0f}" if name in rounds[0] else "" for name in names)]
        for way, rounds in found.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


@contextmanager
def _ours(site: Site, shelf: bool, options: str) -> Iterator[None]:
    more = f"\n  shelf: {site.cluster.base}/shelf" if shelf else ""
    (site.cluster.base / "shelf").mkdir(exist_ok=True)
    site.write_policy(RULES, constant="enroot", workspace=f"{site.workspace}{more}")
    with plugged(site, options=options):
        yield


@contextmanager
def _stock(site: Site, options: str) -> Iterator[None]:
    with plugged(site), peer(site, options):
        yield


def _forget(site: Site) -> None:
    """Remove the layers and images that pyxis and enroot have kept for the user."""
    uid = site.cluster.account(ALICE).uid
    for layer in (site.cluster.base / f"enroot/{uid}/cache").iterdir():
        layer.unlink()
    shutil.rmtree(f"/tmp/pyxis-cache-{uid}", ignore_errors=True)


def measure(  # noqa: PLR0917 - what is measured, and how often
    site: Site, image: str, work: str, rounds: int, many: int, size: int, stock: bool
) -> dict[str, list[Times]]:
    """Run each way in turns, with an image of that many bytes."""
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        BY_PYXIS: partial(_ours, site, False, ""),
        "ours, use_squashfuse": partial(_ours, site, False, SQUASHFUSE),
        "ours, the node's tree, first": partial(_ours, site, True, SQUASHFUSE),
        "ours, the node's tree, later": partial(_ours, site, True, SQUASHFUSE),
    }
    if stock:
        caching = f"importer={CACHING} {SQUASHFUSE}"  # without an importer pyxis unpacks what is no file
        ways |= {STOCK: partial(_stock, site, ""), STOCK_CACHING: partial(_stock, site, caching)}
    found: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with way():
                site.finish(site.cluster.submit("#!/bin/sh\n", ALICE, "--nodelist=n1"))  # compiles the policy
                times: Times = {}
                starts = {"one": partial(one, site, image, work)}
                room = shutil.disk_usage(site.cluster.base).free
                if name not in {BY_PYXIS, STOCK} or many * size * UNPACKED < room:
                    starts[str(many)] = partial(several, site, image, many)
                for which, start in starts.items():
                    if name.endswith("first"):
                        shutil.rmtree(site.cluster.base / "shelf/n1", ignore_errors=True)
                    if name == STOCK or which == "one":
                        _forget(site)
                    before = on_disk(site.cluster.base)
                    times |= start()
                    site.cluster.wait_idle(300)
                    read, written = (now - then for now, then in zip(on_disk(site.cluster.base), before, strict=True))
                    times |= {f"{which}: MB read": read / 1e6, f"{which}: MB written": written / 1e6}
                found[name].append(times)
                say(f"{name}: " + ", ".join(f"{what} {took:.0f}" for what, took in times.items()))
    return found


def main() -> int:
    """Start everything, measure, take everything down."""
    parser = argparse.ArgumentParser(prog="python -m tests.lib.wings.ready_roots.first_line")
    parser.add_argument("--mib", type=int, default=1500)
    parser.add_argument(
        "--modules", default="asyncio, sqlite3, xml.dom.minidom, unittest.mock, ctypes, email.mime.text, http.server"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--many", type=int, default=8, help="containers at once")
    parser.add_argument("--stock", action="store_true", help="stock pyxis, too")
    options = parser.parse_args()
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with Cluster() as cluster, Registry(cluster.base) as registry:
        site = Site(cluster, registry.url)
        site.write_policy(RULES, constant="enroot")
        set_up_enroot(site, registry.url)
        image = f"{registry.url}/team/line:1"
        push(cluster.base / "line", image, partial(fill, mib=options.mib))
        shutil.rmtree(cluster.base / "line")
        say(site.command("images", "import", image).stdout)
        shutil.copy(cluster.prefix / "share/warmstart/enroot" / HOOK, HOOKS)
        try:
            work = WORK.format(modules=options.modules)
            found = measure(site, image, work, options.rounds, options.many, options.mib << 20, options.stock)
        finally:
            (HOOKS / HOOK).unlink()
    say(f"\nMedians of {options.rounds} rounds, an image of {options.mib} MiB, in ms:\n\n{table(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
