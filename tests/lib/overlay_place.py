"""A node's bundles and the runs of jobs that see them, with real mounts and a real uid. No store, no Slurm."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lib.collecting import staged
from tests.lib.privileges import drop_to
from warmstart.caches.store.layout import File
from warmstart.caches.store.listing import Row
from warmstart.harvest.collect import Collected, Limits, Place, collect
from warmstart.harvest.known import Known
from warmstart.harvest.pack import pack
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.host.remove import remove_tree
from warmstart.run.state import Seeded
from warmstart.seed import copies, node_cache, overlay, overlay_end

JOB = Identity("a job", 64201, 64201)
SUBDIR = "tool"
MTIME_NS = 1_700_000_000_500_000_000


class Copy(NamedTuple):
    """A node's copy of a bundle."""

    row: Row
    directory: str

    @property
    def path(self) -> str:
        """Path of the squashfs file."""
        return copies.path_of(self.directory, self.row.sha256)


class Node(NamedTuple):
    """A node's directories below `base`, which every uid can enter but not list."""

    base: Path

    @property
    def layers(self) -> str:
        """Directory where the node's bundles are mounted."""
        return str(self.base / "layers")

    def bundle(self, content: Mapping[str, bytes], scope: str = "") -> Copy:
        """Pack a bundle as a harvest does and copy it to the node, from a scope if one is given."""
        stage = Path(tempfile.mkdtemp(dir=self.base))
        for path, data in content.items():
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).write_bytes(data)
            os.utime(stage / path, ns=(MTIME_NS, MTIME_NS))
        made = self.base / f"{stage.name}.sqsh"
        os.close(pack(str(stage), str(made), after(300)))
        shutil.rmtree(stage)
        directory = self.base / "bundles"
        directory.mkdir(mode=0o700, exist_ok=True)
        sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
        files = {path: File(len(data), hashlib.sha256(data).hexdigest(), MTIME_NS) for path, data in content.items()}
        entries = {path: {path: file} for path, file in files.items()}
        place = [scope, "tool", "ns"] if scope else []
        (directory / f"{sha256}.json").write_text(f"{json.dumps(place)}\n{json.dumps(entries)}")
        made.rename(directory / f"{sha256}.sqsh")
        row = Row(sha256, 0, len(entries), "a", 1, 7, 0)
        return Copy(row, str(directory))

    def run(self, name: str) -> Run:
        """Make a run's directory, with a cache that still belongs to root."""
        path = self.base / "workspace" / name
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=0o711)
        path.chmod(0o711)
        (path / "cache").mkdir(mode=0o700)
        (path / "cache" / SUBDIR).mkdir(mode=0o700)
        return Run(self, path)

    def mounts(self) -> list[str]:
        """Return all mount points below `base`, relative to it."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [line.split()[4] for line in lines]
        return [os.path.relpath(point, self.base) for point in points if point.startswith(f"{self.base}/")]


class Run(NamedTuple):
    """One job's directory on a node."""

    node: Node
    path: Path
    job: Identity = JOB

    @property
    def cache(self) -> Path:
        """The run's cache directory."""
        return self.path / "cache" / SUBDIR

    def show(self, *copies: Copy, hidden: Sequence[str] = ()) -> bool:
        """Mount an overlay of bundles and give the cache to the job. Return whether it is id-mapped."""
        roots = node_cache.mounted(self.node.layers, [copy.path for copy in copies], after(10))
        with opened_dir(str(self.path)) as fd, overlay.job_ids(self.job) as ids:
            mapped = overlay.show(fd, SUBDIR, roots, hidden, ids)
        for root in roots:
            os.close(root)
        os.chown(self.cache, self.job.uid, self.job.gid)
        os.chown(self.path / "cache", self.job.uid, self.job.gid)
        return mapped

    def as_job(self, act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever JSON it returns
        """Run `act` as the job, in its cache. Return its result."""
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            _be_the_job(self, act, write)
        os.close(write)
        with open(read, "rb") as pipe:
            answer = json.loads(pipe.read())
        os.waitpid(pid, 0)
        if "failed" in answer:
            raise AssertionError(answer["failed"])
        return answer["value"]

    def harvest(
        self,
        stage: Path,
        entry_of: Callable[[str], str | None],
        published: Collection[str] = (),
        *,
        seconds: float = 5.0,
    ) -> Collected:
        """Collect what the job made into a new stage, as root; the store has some entries already."""
        with (
            opened_dir(str(self.path)) as base,
            staged(stage) as made,
            overlay_end.opened_overlay(base, SUBDIR, after(seconds)) as frozen,
        ):
            assert frozen is not None
            place = Place(frozen.merged, "", self.job.uid, frozen.upper)
            known = Known(Seeded("ns"), lambda _: {}, lambda: published)
            return collect(place, entry_of, known, made, Limits(1 << 30, 1000, after(20)))

    def take_down(self) -> list[str]:
        """Unmount and remove it as the epilog does. Return what was still in use."""
        with opened_dir(str(self.path)) as fd:
            used = overlay_end.take_down(fd)
        with opened_dir(str(self.path.parent)) as parent:
            remove_tree(parent, self.path.name, after(20))
        return used


def _be_the_job(run: Run, act: Callable[[], Any], answer: int) -> None:
    try:
        drop_to(run.job.uid, run.job.gid)
        os.umask(0o022)
        os.chdir(run.cache)
        os.write(answer, json.dumps({"value": act()}).encode())
    except BaseException:  # noqa: BLE001 - the parent raises it
        os.write(answer, json.dumps({"failed": traceback.format_exc()}).encode())
    finally:
        os._exit(0)


def content(top: Path) -> dict[str, bytes]:
    """Return all regular files below a directory."""
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def tried(act: Callable[[], object]) -> str:
    """Return "yes", or the name of the error that `act` raised."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "yes"


def without_overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a kernel without overlays."""
    real = linux.mount

    def refused(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        if kind == "overlay":
            raise OSError(errno.ENODEV, "No such device")
        real(source, target, kind, flags, options)

    monkeypatch.setattr(linux, "mount", refused)


@contextmanager
def a_node() -> Iterator[Node]:
    """Yield a node, and unmount everything on it afterwards."""
    base = Path(tempfile.mkdtemp(prefix="warmstart-overlay-", dir="/var/tmp"))
    base.chmod(0o711)
    try:
        yield Node(base)
    finally:
        with opened_dir(str(base.parent)) as fd:
            remove_tree(fd, base.name, after(300))
