"""Ten images of Debian's packages, each by warmstart's `oci` and by the real enroot: their trees and environments.

    python -m tools.real.images LAYERS

Run it as `tools.real` (CONTRIBUTING.md). LAYERS is a directory with `base.tar`, `hello.tar` and `tree.tar`:

    apt-get download hello tree
    for_a_shell=base-files,base-passwd,dash,coreutils,sed,grep,libc-bin,bash
    mmdebstrap --variant=extract --include=$for_a_shell bookworm base.tar
    for deb in *.deb; do dpkg-deb --fsys-tarfile "$deb" >"${deb%%_*}.tar"; done

Under the real pyxis each image's two squashfs files are started with and without the entry point. Prints what differs;
ends with 1 if that is not what docs/reference/images.md lists.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.lib.accounts import ALICE
from tests.lib.cluster import Cluster
from tests.lib.image_configs import CASES, GPU, PATH
from tests.lib.layer_stacks import write_layout
from tests.lib.registry import Registry
from tests.lib.site import Site
from tools.real.__main__ import plugged, set_up_enroot
from tools.real.starts import say

VARIABLES = [each for each in GPU if not each.startswith("NVIDIA_")]  # enroot's hook would look for a driver
ODD = ["/usr/bin/env", 'WORD=it\'s "odd" $HOME `id` a\\b']
IMAGES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "nothing": ({}, ("base",)),
    "env": ({"Env": VARIABLES}, ("base",)),
    "entrypoint": ({"Env": [PATH], "Entrypoint": ["/usr/bin/env", "VIA=the entry point"]}, ("base", "hello")),
    "user": ({"Env": [PATH, "HOME=/home/app"], "User": "1000:1000"}, ("base", "tree")),
    "workdir": ({"Env": [PATH], "WorkingDir": "/workspace/deep"}, ("base",)),
    "command": ({"Env": [PATH], "Cmd": ["env"], "Labels": {"say": 'it\'s a "label"'}}, ("base",)),
    "quotes": (CASES["quotes"].config | {"Entrypoint": ODD}, ("base",)),
    "newlines": (CASES["newlines"].config, ("base",)),
    "volume": ({"Env": [PATH], "Volumes": {"/data": {}, "/srv/more": {}}}, ("base",)),
    "all": (
        {"Env": VARIABLES, "Entrypoint": ["/usr/bin/env"], "Cmd": ["hello"], "WorkingDir": "/usr/share", "User": "app",
         "Labels": {"a": "b"}, "ExposedPorts": {"80/tcp": {}}, "StopSignal": "SIGINT"},
        ("base", "hello", "tree"),
    ),
}  # fmt: skip
SCRIPT = 'env -0 | sort -z | grep -zv "^SLURM" | tr "\\0" "\\1"; pwd; id'
EXTRA = {".singularity.d", ".singularity.d/env", ".singularity.d/env/10-docker2singularity.sh", "ch", "ch/environment"}
WRITTEN = {"etc/environment", "etc/rc", "etc/rc.local", "etc/fstab"}  # both make them anew, so their times differ


def tree(image: Path, to: Path) -> dict[str, tuple[str, int, int, str]]:
    """Return a squashfs' tree: by path, the kind, mode and time, and the SHA-256 of the content or the target."""
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-d", to, image], check=True, stdout=subprocess.DEVNULL)
    found = {}
    for path in [to, *to.rglob("*")]:
        status = path.lstat()
        kind = stat.filemode(status.st_mode)[0]
        content = str(path.readlink()) if kind == "l" else ""
        if kind == "-":
            data = path.read_bytes()
            is_rc = path == to / "etc/rc"  # skopeo sorts the labels of an image with Docker's manifest
            content = hashlib.sha256(b"".join(sorted(data.splitlines(True))) if is_rc else data).hexdigest()
        time = 0 if kind == "d" else int(status.st_mtime)
        found[str(path.relative_to(to))] = (kind, stat.S_IMODE(status.st_mode), time, content)
    return found


def by_enroot(site: Site, name: str, registry: str) -> Path:
    """Have enroot import an image as a user; return the squashfs."""
    user = site.cluster.account(ALICE)
    result = site.cluster.base / "enroot" / f"{name}.sqsh"
    top = site.cluster.base / "enroot" / str(user.uid)
    env = {f"ENROOT_{place.upper()}_PATH": str(top / place) for place in ("runtime", "cache", "data", "temp")}
    argv = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "enroot", "import"]
    subprocess.run(
        [*argv, "--output", top / "image.sqsh", f"docker://{registry}#team/{name}:1"], check=True,
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(user.home), "ENROOT_ALLOW_HTTP": "yes", "LANG": "C.UTF-8",
             "ENROOT_SQUASH_OPTIONS": "-no-xattrs -comp zstd", **env},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    (top / "image.sqsh").rename(result)
    result.chmod(0o644)
    return result


def by_warmstart(site: Site, name: str, registry: str) -> Path:
    """Import an image into the store; return the squashfs."""
    subprocess.run([site.cluster.prefix / "bin/warmstart", "images", "import", f"{registry}/team/{name}:1"], check=True)
    return max(site.store.glob("images/*.sqsh"), key=lambda path: path.stat().st_mtime_ns)


def started(site: Site, image: Path, *options: str) -> str:
    """Start a container; return what it sees."""
    argv = ["srun", "--no-warm", "--nodelist=n1", f"--container-image={image}", "--no-container-mount-home", *options]
    done = site.cluster.run([*argv, "sh", "-c", SCRIPT], ALICE)
    site.cluster.wait_idle(120)
    return f"{done.stdout}{done.stderr if done.returncode else ''}[{done.returncode}]"


def compare(site: Site, name: str, registry: str) -> bool:
    """Print what differs between an image by warmstart and by enroot; return whether that is what is listed."""
    ours, theirs = by_warmstart(site, name, registry), by_enroot(site, name, registry)
    scratch = site.cluster.base / f"trees-{name}"
    scratch.mkdir()
    one, other = tree(ours, scratch / "ours"), tree(theirs, scratch / "theirs")
    more = one.keys() - other.keys()
    lost = other.keys() - one.keys()
    changed = {path for path in one.keys() & other.keys() if one[path] != other[path]}
    changed -= {
        path for path in changed & WRITTEN if one[path][:2] + one[path][3:] == other[path][:2] + other[path][3:]
    }
    mount_point = {str(Path(*Path(site.constant).parts[1:depth])) for depth in range(2, 9)}
    say(f"{name:10} {len(one)} paths; only by warmstart: {sorted(more)}; only by enroot: {sorted(lost)}")
    for path in sorted(changed):
        say(f"           {path}: {one[path]} and not {other[path]}")
    same = True
    for options in ((), ("--container-entrypoint",)):
        seen, expected = started(site, ours, *options), started(site, theirs, *options)
        same = same and seen == expected
        if seen != expected:
            say(f"           {options}: {seen!r} and not {expected!r}")
        else:
            say(f"           the same environment {options}: {seen.replace(chr(1), ' ')!r}")
    return same and not lost and not changed and more <= EXTRA | mount_point


def main() -> int:
    """Compare all images."""
    layers = {path.stem: path.read_bytes() for path in Path(sys.argv[1]).glob("*.tar")}
    with Cluster() as cluster, Registry(cluster.base) as registry:
        site = Site(cluster, registry.url)
        site.write_policy("rules: []\n", constant="enroot")
        set_up_enroot(site, registry.url)
        for name in sys.argv[2:] or IMAGES:
            config, parts = IMAGES[name]
            layout = cluster.base / f"layout-{name}"
            write_layout(layout, [layers[part] for part in parts], config=config)
            options = ["--quiet", "--insecure-policy", "--format=v2s2", "--dest-tls-verify=false"]
            subprocess.run(
                ["skopeo", "copy", *options, f"oci:{layout}:import", f"docker://{registry.url}/team/{name}:1"],
                check=True,
            )
        with plugged(site):
            results = {name: compare(site, name, registry.url) for name in (sys.argv[2:] or IMAGES)}
    say(f"as listed: {results}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
