"""Cold import of an image: from a registry on this machine to a squashfs that a container can start from.

The image has three layers of this machine's own programs and libraries. Each round imports from a repository of its
own, so nobody has kept a layer, and an image with a label of its own, so the store does not have it under its digest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.lib.bench_site import BenchSite
from tests.lib.registry import Registry
from tools.bench.clock import in_turns, timed
from tools.bench.figures import Figure, Series

ENROOT = "/usr/bin/enroot"
RULES = "rules:\n  - {name: everyone, profiles: [numba]}\n"
PATH = {"PATH": "/usr/bin:/bin"}
# docs/reference/images.md, Import by hand.
BY_HAND = """\
set -eu
skopeo copy --quiet --insecure-policy --src-tls-verify=false "docker://$1" oci:layout:import
umoci raw unpack --rootless --image layout:import rootfs
chmod -R u+rX rootfs
mksquashfs rootfs image.sqsh -all-root -no-xattrs -comp zstd -Xcompression-level 3 -quiet -no-progress
"""


def measured(site: BenchSite, layers: Sequence[str], rounds: int) -> Iterator[Figure]:
    """Import an image whose layers are these directories."""
    (site.base / "log").mkdir()
    with Registry(site.base) as registry:
        size = _push(site.base / "pushed", registry, layers, 4 * rounds)
        names = iter(f"{registry.url}/bench/r{number}:1" for number in range(4 * rounds))
        measures: dict[str, Callable[[], float]] = {
            "warmstart": lambda: _by_warmstart(site, registry.url, "oci", next(names)),
            "skopeo, umoci, mksquashfs": lambda: _in_scratch(site, ["/bin/sh", "-c", BY_HAND, "-", next(names)]),
        }
        if os.path.exists(ENROOT):
            measures["enroot import"] = lambda: _by_enroot(site, next(names))
            measures["warmstart, by enroot"] = lambda: _by_warmstart(site, registry.url, "enroot", next(names))
        found = in_turns(measures, rounds)
    ours = Series("warmstart", found.pop("warmstart"))
    peers = [Series(name, values, 0.5 if name == "enroot import" else None) for name, values in found.items()]
    cpus = len(os.sched_getaffinity(0))
    yield Figure("import", f"an image of {size >> 20} MiB in {len(layers)} layers, {cpus} CPUs", ours, peers)


def _push(scratch: Path, registry: Registry, layers: Sequence[str], copies: int) -> int:
    """Push an image into so many repositories, each time with another label. Return the size of its content."""
    scratch.mkdir()
    layout, size = scratch / "layout", 0
    for argv in (["init", "--layout", layout], ["new", "--image", f"{layout}:1"]):
        subprocess.run(["/usr/bin/umoci", *argv], check=True)
    for number, directory in enumerate(layers):
        layer = scratch / f"{number}.tar"
        subprocess.run(["/bin/tar", "-C", "/", "-cf", layer, directory.lstrip("/")], check=True)
        size += layer.stat().st_size
        subprocess.run(["/usr/bin/umoci", "raw", "add-layer", "--image", f"{layout}:1", layer], check=True)
        layer.unlink()
    # enroot takes no manifest but Docker's.
    options = ["--quiet", "--insecure-policy", "--format=v2s2", "--dest-tls-verify=false"]
    for number in range(copies):
        label = ["--tag", "1", "--config.label", f"round={number}"]
        subprocess.run(["/usr/bin/umoci", "config", "--image", f"{layout}:1", *label], check=True)
        name = f"docker://{registry.url}/bench/r{number}:1"
        subprocess.run(["/usr/bin/skopeo", "copy", *options, f"oci:{layout}:1", name], check=True)
    shutil.rmtree(scratch)
    return size


def _by_warmstart(site: BenchSite, registry: str, importer: str, name: str) -> float:
    site.write_policy(RULES, registry, importer)
    images = site.base / "store" / "images"
    before = len(list(images.glob("*.sqsh")))
    taken = timed(site.command("images", "import", name).run)
    if len(list(images.glob("*.sqsh"))) != before + 1:
        raise RuntimeError(f"{name} was not imported: the store had it")
    return taken


def _in_scratch(site: BenchSite, argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    scratch = site.base / "scratch"
    scratch.mkdir()
    taken = timed(lambda: subprocess.run(argv, cwd=scratch, env=PATH | (env or {}), check=True, capture_output=True))
    shutil.rmtree(scratch)
    return taken


def _by_enroot(site: BenchSite, name: str) -> float:
    registry, _, rest = name.partition("/")
    places = {f"ENROOT_{part}_PATH": str(site.base / "scratch" / part) for part in ("CACHE", "DATA", "RUNTIME", "TEMP")}
    make = 'mkdir CACHE DATA RUNTIME TEMP && exec enroot import --output image.sqsh "docker://$1"'
    argv = ["/bin/sh", "-c", make, "-", f"{registry}#{rest}"]
    return _in_scratch(site, argv, {**places, "ENROOT_ALLOW_HTTP": "y", "HOME": str(site.base / "scratch")})
