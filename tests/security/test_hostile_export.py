"""Exports whose bundles unpack to more than a disk holds: the import stops before the disk is full."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.maintenance_site import MaintenanceSite
from tests.support.numba_entries import numba_entries
from warmstart.repack import merge

pytestmark = [pytest.mark.threat(5), pytest.mark.usefixtures("capable_host")]

DAEMON = "user-1-daemon"  # a user that every Debian has, with this uid
DISK = 24 << 20
BOMB = 4 * DISK  # of one byte: a few kilobytes in a squashfs


class Carried:
    """An export of one bundle, and a cluster with a small disk that imports it."""

    def __init__(self, base: Path) -> None:
        for name in ("h", "t"):
            (base / name).mkdir()
        here = MaintenanceSite(base / "h")
        self.base = base
        self.bundle = here.publish(numba_entries(1), scope=DAEMON, user="daemon")
        self.out = base / "out"
        assert here.command("cache", "export", str(self.out)) == 0
        subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", base / "t"], check=True)
        self.there = MaintenanceSite(base / "t")

    def change(self, act: Callable[[Path, dict[str, Any]], None]) -> None:
        """Change the bundle's tree and its manifest, and correct all hashes."""
        folder = self.out / DAEMON / "numba" / "ns"
        path, manifest = (folder / f"{self.bundle}{suffix}" for suffix in (".sqsh", ".json"))
        tree, text = self.base / "tree", json.loads(manifest.read_text())
        subprocess.run(["/usr/bin/unsquashfs", "-quiet", "-no-progress", "-dest", tree, path], check=True)
        act(tree, text)
        path.unlink()
        packer = ["/usr/bin/mksquashfs", str(tree), str(path), "-quiet", "-no-progress", "-comp", "zstd"]
        subprocess.run(packer, check=True, stdout=subprocess.DEVNULL)
        data = path.read_bytes()
        text.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        manifest.write_text(json.dumps(text))
        files = (path, manifest, self.out / "export.json")
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(self.out)}\n" for file in files]
        (self.out / "SHA256SUMS").write_text("".join(lines))

    def problem(self) -> str:
        """Import it. Return the error. Asserts that nothing remains."""
        (row,) = self.there.json("cache", "import", str(self.out))
        assert (row["entries"], self.there.seen(DAEMON)) == (0, {})
        used = os.statvfs(self.there.base)
        assert (used.f_blocks - used.f_bfree) * used.f_frsize < DISK // 10
        return str(row["problem"])


@pytest.fixture
def carried(base: Path) -> Carried:
    """Yield an export, and a directory that other uids can traverse."""
    return Carried(base)


def pad(path: Path) -> None:
    """Make a file of `BOMB` bytes."""
    with path.open("wb") as file:
        for _ in range(BOMB >> 20):
            file.write(b"a" * (1 << 20))


def first(text: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return the path of a manifest's first file, with its record: size, SHA-256, mtime."""
    entry, files = next(iter(text["entries"].items()))
    name, file = next(iter(files.items()))
    return entry + name[1:] if name.startswith("/") else name, file


def test_a_file_that_nobody_named(carried: Carried) -> None:
    """It is larger than any file of the manifest: unpacking stops long before the disk is full."""
    carried.change(lambda tree, _: pad(tree / "more"))
    assert "No space" not in carried.problem()


@pytest.mark.parametrize("hole", [False, True])
def test_a_file_larger_than_its_manifest_says(carried: Carried, hole: bool) -> None:
    """With bytes, or with a hole, which takes space only when root copies it."""

    def grow(tree: Path, text: dict[str, Any]) -> None:
        path = tree / first(text)[0]
        if hole:
            os.truncate(path, BOMB)
        else:
            pad(path)

    carried.change(grow)
    problem = carried.problem()
    assert problem
    assert "No space" not in problem
    assert "full" not in problem


def test_a_manifest_that_says_how_much_it_is(carried: Carried) -> None:
    """All hashes are right; the bundle is refused before it is unpacked."""

    def declare(tree: Path, text: dict[str, Any]) -> None:
        path, file = first(text)
        pad(tree / path)
        file[:2] = BOMB, hashlib.sha256(b"a" * BOMB).hexdigest()

    carried.change(declare)
    assert f"no room for {(2 * BOMB >> 20) + 1} MiB" in carried.problem()  # twice the file, and a little


def test_a_disk_that_fills_up_meanwhile(carried: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files, none larger than a listed one: free space is checked while unpacking."""

    def add(tree: Path, _: dict[str, Any]) -> None:
        for number in range(100):
            (tree / f"more{number}").write_bytes(b"a")

    carried.change(add)
    monkeypatch.setattr(merge, "room", lambda _: 0)
    assert "no room for more" in carried.problem()
