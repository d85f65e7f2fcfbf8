"""Apptainer, Charliecloud and Podman start what warmstart imported, with the job's caches, as their guides say."""

from __future__ import annotations

import subprocess

import pytest

from tests.releases.roots import HERE, root_of

pytestmark = pytest.mark.sweep

PODMAN = ("podman", "crun", "uidmap", "squashfuse")
PACKAGES = {"bookworm": ("charliecloud", *PODMAN), "sid": ("apptainer", "charliecloud", *PODMAN)}
# As udev leaves a node: users may open /dev/fuse. And one kind of cgroups: crun refuses a mixture.
NODE = """
mknod -m 666 /run/fuse c 10 229
mount --bind /run/fuse /dev/fuse
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
for part in tests/releases/runtimes.py tests/releases/wings/*/runtimes.py; do
    [ ! -e "$part" ] || .venv/bin/python -m pytest -q -p no:cacheprovider "$part"
done
"""


@pytest.mark.parametrize("suite", PACKAGES)
def test_runtimes_as_their_guides_say(capable_host: None, suite: str) -> None:
    argv = [str(HERE / "enter"), root_of(suite, *PACKAGES[suite]), "sh", "-euc", NODE]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
