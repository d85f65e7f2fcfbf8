"""A stand-in for enroot 4.1: a container's namespaces, its root from a squashfs, and the hook, as the job's user.

Like enroot it starts a shell whose arguments name the file; unlike it, it takes the root from a directory that stands
for what squashfuse shows, and it maps the user to root, as `enroot start --root` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.lib.runs import a_run
from warmstart.host import linux
from warmstart.host.files import opened_dir
from warmstart.paths import NOTHING, Shown
from warmstart.run import mounted
from warmstart.run.shown import show
from warmstart.wings.ready_roots.settings import OWN

HOOK = Path("hooks/warmstart/wings/ready_roots/enroot/05-warmstart-root.sh.in")
OWNER, JOB = (64204, 64205), (64201, 64202)  # uid and gid
MOUNT = r"""#!/bin/bash
# enroot-mount: fstab lines, as far as the hook writes them
while read -r source target kind options; do
    printf -v source %b "${source//\\/\\0}"
    printf -v target %b "${target//\\/\\0}"
    case $kind in
    none) mount -o "$options" "$source" "$target" || exit 1 ;;
    *) mount -t "$kind" -o "$options" "$source" "$target" || exit 1 ;;
    esac
done
"""
START = r"""
runtime::_start() {
    set -e
    export ENROOT_RUNTIME_PATH=$BASE/runtime
    mount -t tmpfs tmpfs "$ENROOT_RUNTIME_PATH"
    mkdir "$ENROOT_RUNTIME_PATH/overlay"
    case $1 in
    /*) root=$ENROOT_RUNTIME_PATH/overlay; mount --bind "$BASE/image" "$root" ;;
    *) root=$BASE/data; mount --bind "$BASE/image" "$root" ;;
    esac
    mount --bind "$root" "$root"
    eval "$BEFORE"
    (
        export ENROOT_PID=$$ ENROOT_ROOTFS=$root
        unset BASH_ENV
        "$BASE/hook"
    ) && echo "hook: 0" || echo "hook: $?"
    cd "$root" # which looks the path up again
    eval "$INSIDE"
}
"""


class Container(NamedTuple):
    """What the commands in a container printed, and with which status its hook ended."""

    output: list[str]
    hook: str


class Place:
    """A node with a job that was given the tree of an image."""

    def __init__(self, base: Path, job: tuple[int, int] = JOB, tree: Path | None = None) -> None:
        """`job` is its uid and gid; the image's tree is made, if it is none that the node has."""
        self.base = base
        self.job = job
        self.tree = tree or base / "tree"
        base.mkdir(exist_ok=True)
        base.chmod(0o711)
        self.record = a_run(workspace=str(base / "w"), uid=job[0], gid=job[1])
        self.run = Path(self.record.directory)
        self.run.mkdir(parents=True)
        for path in (base / "w", self.run):
            path.chmod(0o711)
        self.own = self.run / OWN
        self.file = base / "image.sqsh"
        self.file.write_text("squashfs")
        for name in ("runtime", "data"):
            (base / name).mkdir()
            os.chown(base / name, *job)
        for where in ("tree", "image")[tree is not None :]:
            for name in ("etc", "mnt", "old/sub"):
                (base / where / name).mkdir(parents=True)
            (base / where / "which").write_text(f"{where}\n")
            (base / where / "old/sub/file").write_text("old")
            subprocess.run(
                ["/bin/chown", "-R", "{}:{}".format(*(OWNER if where == "tree" else job)), base / where], check=True
            )
        (base / "hook").write_text(HOOK.read_text().replace("@RUN@", str(base / "var")))
        (base / "start").write_text(START)
        (base / "bin").mkdir()
        (base / "bin/enroot-mount").write_text(MOUNT)
        for name in ("hook", "bin/enroot-mount"):
            (base / name).chmod(0o755)
        self.view = base / "var/view/7"
        self.view.mkdir(parents=True)
        (self.view / "environment").write_text(f"{base}/w\n/var/cache/warmstart\n{self.run}/cache\n")

    def give(self) -> Path:
        """Show the job the tree for the file, as the prolog does; return what it is shown."""
        if not self.own.exists():
            self.own.mkdir(mode=0o700)
            os.chown(self.own, *self.job)
        with opened_dir(str(self.tree)) as tree, opened_dir(str(self.run)) as run:
            clone = linux.clone_as(tree, OWNER, self.job)
            source = mounted.mount_for(run, os.urandom(4).hex(), clone, self.job)
            os.close(clone)
            status = self.file.stat()
            show(run, Shown("ro", "root", source, f"{status.st_dev} {status.st_ino}", NOTHING, NOTHING), self.job[0])
        return self.run / source

    def start(
        self, inside: str, file: str | Path = "", *arguments: str, before: str = "", gid: int = JOB[1]
    ) -> Container:
        """Start a container from a file, by default the image's; run commands `before` the hook, and then `inside`."""
        done = self._run([], inside, file or self.file, *arguments, before=before, gid=gid)
        assert done.returncode == 0, done.stderr
        first, *output = done.stdout.splitlines()
        return Container(output, first)

    def kill(self, after: float) -> None:
        """Start a container that sleeps; kill all of its processes after so many seconds."""
        done = self._run(["timeout", "-s", "KILL", str(after)], "sleep 60", self.file)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def _run(
        self, wrap: list[str], inside: str, file: str | Path, *arguments: str, before: str = "", gid: int = JOB[1]
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self.base}/bin:/usr/bin:/bin"
        env = {"PATH": path, "BASE": str(self.base), "BASH_ENV": str(self.base / "start"), "BEFORE": before}
        slurm = {"INSIDE": inside, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
        enter = ["unshare", "--user", "--map-root-user", "--mount"]
        words = ["", str(file), "", "", "", "", *arguments]
        return subprocess.run(
            [*wrap, *enter, "bash", "--norc", "-o", "pipefail", "-c", 'runtime::_start "$@"', *words],
            env={**env, **slurm}, user=JOB[0], group=gid, extra_groups=[], capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip

    def said(self) -> list[str]:
        """Return what the containers said that they started from."""
        return sorted(path.name.partition(".")[0] for path in self.own.glob("from-*"))
