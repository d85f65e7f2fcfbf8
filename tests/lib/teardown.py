"""Teardown of a cluster: processes, then mounts, then its directory.

Runs in two places: at the end of `Cluster`, and as a watchdog process (`python -m
tests.lib.teardown BASE`) that waits on a pipe. If the process that owns the cluster
dies without a teardown, even by SIGKILL, the pipe closes and the watchdog does the same work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lib.accounts import remove_unused
from tests.lib.processes import kill_all

_REPOSITORY = Path(__file__).resolve().parents[2]


def watch(base: Path) -> subprocess.Popen[bytes]:
    """Start the watchdog of `base`. Its stdin is the pipe: `stop_watching` ends it unharmed."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lib.teardown", str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{_REPOSITORY}/hooks"},  # not every environment has it installed
        start_new_session=True,
    )


def stop_watching(watchdog: subprocess.Popen[bytes]) -> None:
    """Tell the watchdog that the cluster was taken down properly."""
    watchdog.communicate(b"done")


def tear_down(base: Path) -> None:
    """End every process of the cluster in `base`, unmount everything below it, remove it."""
    kill_all(base)
    unmount_below(base)
    if Path("/sys/class/net", bridge_of(base)).exists():
        subprocess.run(["/usr/sbin/ip", "link", "del", bridge_of(base)], check=True)
    # rm stays on one file system, in case something is still mounted there.
    argv = ["/bin/rm", "-rf", "--one-file-system", "--", str(base)]
    subprocess.run(argv, check=True, timeout=120)


def bridge_of(base: Path) -> str:
    """Return the name of the network device that a cluster's pods have in common."""
    return f"ws{base.name[-8:]}"


def unmount_below(base: Path) -> None:
    """Unmount everything mounted at or below `base`, last mounted first."""
    for target in reversed(mounts_below(base)):
        unmount(target)


def unmount(target: str) -> None:
    """Unmount one mount point; detach it if it is busy."""
    for options in ([], ["--lazy"]):
        # umount must not look at the target: a FUSE mount refuses root.
        argv = ["/bin/umount", "--no-canonicalize", *options, target]
        if subprocess.run(argv, check=False, capture_output=True, timeout=30).returncode == 0:
            return


def mounts_below(base: Path) -> list[str]:
    """Return the mount points at and below `base` in mount order, unescaped (proc(5), mountinfo)."""
    targets = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        target = line.split()[4].encode().decode("unicode_escape")
        if f"{target}/".startswith(f"{base}/"):
            targets.append(target)
    return targets


def _watch(base: Path) -> None:
    if sys.stdin.buffer.read() == b"done":
        return
    tear_down(base)
    remove_unused()


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
