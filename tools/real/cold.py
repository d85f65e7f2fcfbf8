"""A cold import, from a registry on loopback to a startable squashfs: warmstart's `oci` beside `enroot import`.

    python -m tools.real.cold [ROUNDS]

Run it as `tools.real` (CONTRIBUTING.md). One image of three layers, about 1.2 GB, in rounds that alternate. enroot
runs twice: with its default options, which leave the data uncompressed, and with warmstart's compression. Prints wall
and CPU seconds without the registry's, and the largest space on disk. Nothing is asserted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.lib import installation
from tests.lib.accounts import ALICE, STORE, Account, Accounts
from tests.lib.registry import Registry
from tools.real.starts import say

LAYERS = (("/usr", "/usr"), ("/opt", "/opt"), ("/usr/lib/x86_64-linux-gnu", "/usr/local/lib/again"))
GROUP = Path("/sys/fs/cgroup/cpuacct/warmstart-cold")
POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{importer: oci, registries: ["http://{registry}"], max_size: 20GiB}}
rules: []
"""
SAME = "-no-xattrs -exit-on-error -comp zstd -Xcompression-level 3"


class Import(NamedTuple):
    """One import: seconds, and bytes: the most that each place had, and the result."""

    wall: float
    cpu: float
    peaks: dict[str, int]
    result: int


def push(base: Path, name: str) -> int:
    """Push the image; return the bytes of its compressed layers."""
    layout = base / "layout"
    for argv in (["init", "--layout", layout], ["new", "--image", f"{layout}:latest"]):
        subprocess.run(["umoci", *argv], check=True)
    for source, target in LAYERS:
        tar = base / "layer.tar"
        rename = f"--transform=s,^{source.lstrip('/')},{target.lstrip('/')},S"
        subprocess.run(["tar", "-C", "/", "--sort=name", rename, "-cf", tar, source.lstrip("/")], check=True)
        subprocess.run(["umoci", "raw", "add-layer", "--image", f"{layout}:latest", tar], check=True)
        tar.unlink()
    options = ["--quiet", "--insecure-policy", "--format=v2s2", "--dest-tls-verify=false"]
    subprocess.run(["skopeo", "copy", *options, f"oci:{layout}:latest", f"docker://{name}"], check=True)
    size = sum(path.stat().st_size for path in (layout / "blobs/sha256").iterdir())
    shutil.rmtree(layout)
    return size


def on_disk(place: Path) -> int:
    """Return the bytes that a directory takes on its disk, whatever goes meanwhile.

    An import's scratch is a file system in a file there: -x, so that its content does not count twice.
    """
    found = subprocess.run(["du", "-sx", "-B1", place], check=False, capture_output=True, text=True).stdout
    return int(found.split()[0]) if found else 0


def measured(act: Callable[[], None], places: list[Path], result: Callable[[], Path]) -> Import:
    """Run an import and watch the disk."""
    peaks, over = dict.fromkeys((place.name for place in places), 0), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            for place in places:
                peaks[place.name] = max(peaks[place.name], on_disk(place))

    watcher = threading.Thread(target=watch)
    watcher.start()
    cpu, started = int((GROUP / "cpuacct.usage").read_text()), time.monotonic()
    try:
        act()
    finally:
        wall = time.monotonic() - started
        over.set()
        watcher.join()
    used = (int((GROUP / "cpuacct.usage").read_text()) - cpu) / 1e9
    return Import(wall, used, peaks, result().stat().st_size)


def counted(argv: list[str], account: Account | None = None, **environment: str) -> None:
    """Run a program whose CPU time counts."""
    move = ["/bin/sh", "-c", f'echo 0 >{GROUP}/cgroup.procs; exec "$@"', "-"]
    drop = ["setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"] if account else []
    env = {"PATH": "/usr/bin:/bin:/usr/sbin", **environment}
    done = subprocess.run([*move, *drop, *argv], env=env, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout}{done.stderr}")


def ours(base: Path, image: str) -> Import:
    """Import with warmstart: fetched, packed, checked, published."""
    for path in (base / "workspace", *(base / "store").glob("*")):
        shutil.rmtree(path, ignore_errors=True)
    program = str(base / "prefix/bin/warmstart")
    return measured(
        lambda: counted([program, "images", "import", image]),
        [base / "store", base / "workspace"],
        lambda: next((base / "store/images").glob("*.sqsh")),
    )


def enroots(base: Path, image: str, alice: Account, options: str) -> Import:
    """Import with enroot, as a user."""
    own = base / "enroot"
    shutil.rmtree(own, ignore_errors=True)
    env = {"ENROOT_ALLOW_HTTP": "yes", "HOME": str(own)} | ({"ENROOT_SQUASH_OPTIONS": options} if options else {})
    for name in ("", "runtime", "cache", "data", "temp"):
        (own / name).mkdir()
        os.chown(own / name, alice.uid, alice.gid)
        env |= {f"ENROOT_{name.upper()}_PATH": str(own / name)} if name else {}
    registry, _, name = image.partition("/")
    argv = ["enroot", "import", "--output", str(own / "image.sqsh"), f"docker://{registry}#{name}"]
    return measured(lambda: counted(argv, alice, **env), [own], lambda: own / "image.sqsh")


def main() -> int:
    """Measure, and remove everything."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    GROUP.mkdir(exist_ok=True)
    top = Path(tempfile.mkdtemp(prefix="ws-cold-", dir="/var/tmp"))
    base = top / "i"
    (top / "log").mkdir()
    for path in (top, base):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    accounts = Accounts(top / "home")
    try:
        with Registry(top) as registry:
            image = f"{registry.url}/team/app:1"
            layers = push(top, image)
            installation.install(base / "prefix")
            installation.write_policy(base / "prefix", POLICY.format(base=base, registry=registry.url))
            (base / "store").mkdir()
            os.chown(base / "store", accounts[STORE].uid, accounts[STORE].gid)
            say(f"compressed layers: {layers / 1e6:.0f} MB")
            cases: dict[str, Callable[[], Import]] = {
                "warmstart": lambda: ours(base, image),
                "enroot import": lambda: enroots(base, image, accounts[ALICE], ""),
                "enroot import, zstd": lambda: enroots(base, image, accounts[ALICE], SAME),
            }
            found: dict[str, list[Import]] = {name: [] for name in cases}
            for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
                for name, case in cases.items():
                    one = case()
                    found[name].append(one)
                    say(f"{name:20} {one.wall:6.1f} s, {one.cpu:6.1f} s CPU, {one.result / 1e6:.0f} MB")
            for name, rounds in found.items():
                wall, cpu = median(one.wall for one in rounds), median(one.cpu for one in rounds)
                bound = layers + rounds[0].result
                most = {place: max(one.peaks[place] for one in rounds) / bound for place in rounds[0].peaks}
                shown = ", ".join(f"{place} {share:.2f}" for place, share in most.items())
                say(f"{name:20} {wall:6.1f} s, {cpu:6.1f} s CPU; most on disk, in (layers + result): {shown}")
    finally:
        accounts.close()
        shutil.rmtree(top, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
