"""Images made of layers: OCI layouts, random stacks of layers as builders make them, and the trees they become."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import stat
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lib.layer_registry import GOARCH
from tests.lib.tar_headers import zstd

OCI = "application/vnd.oci.image"
MODES = (0o644, 0o600, 0, 0o4755, 0o4111, 0o1777)
SUFFIXES = {"gzip": "+gzip", "zstd": "+zstd", "plain": ""}  # of a layer's media type
DIRECTORY_MODES = (0o755, 0o700, 0o111, 0)


class Item(NamedTuple):
    """One entry of a layer."""

    name: str
    kind: str = "file"  # "directory", "symlink", "hardlink", "fifo", "device"
    mode: int = 0o644
    content: bytes = b""
    target: str = ""


TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}


def archive(items: Sequence[Item], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return the tar archive of a layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for item in items:
            info = tarfile.TarInfo(item.name)
            info.type, info.mode, info.linkname, info.mtime = TYPES[item.kind], item.mode, item.target, 1000
            info.size = len(item.content)
            tar.addfile(info, io.BytesIO(item.content))
    return buffer.getvalue()


def packed(archive: bytes, form: str) -> bytes:
    """Return a layer in a form: "gzip", "zstd" or "plain"."""
    return gzip.compress(archive, 1) if form == "gzip" else zstd(archive) if form == "zstd" else archive


def write_layout(
    directory: Path,
    archives: Sequence[bytes],
    tag: str = "import",
    form: str = "gzip",
    config: Mapping[str, object] | None = None,
) -> None:
    """Write an OCI layout with one image of these layers, the lowest first."""
    layers = [(packed(data, form), hashlib.sha256(data).hexdigest()) for data in archives]
    write_packed(directory, layers, tag, form, config)


def write_packed(
    directory: Path,
    packed_layers: Sequence[tuple[bytes, str]],
    tag: str = "import",
    form: str = "gzip",
    config: Mapping[str, object] | None = None,
) -> None:
    """Write an OCI layout with one image of layers, each with the SHA-256 of its archive."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{name}", "size": len(data)}

    diff_ids = [f"sha256:{sha256}" for _, sha256 in packed_layers]
    layers = [blob(data, f"layer.v1.tar{SUFFIXES[form]}") for data, _ in packed_layers]
    system = {"architecture": GOARCH[os.uname().machine], "os": "linux", "history": [{} for _ in packed_layers]}
    document = {**system, "config": config or {}, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": blob(json.dumps(document).encode(), "config.v1+json"),
        "layers": layers,
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}), "utf-8")
    (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', "utf-8")


class Tree(NamedTuple):
    """What a directory tree holds."""

    entries: dict[bytes, tuple[object, ...]]
    links: list[list[bytes]]  # names of the same file


def tree_of(root: Path) -> Tree:
    """Return the tree below a directory, which is in it as `.`."""
    top = os.fsencode(root)
    entries: dict[bytes, tuple[object, ...]] = {}
    inodes: dict[int, list[bytes]] = {}
    for directory, below, files in os.walk(top):
        for name in [b".", *files, *(found for found in below if os.path.islink(os.path.join(directory, found)))]:
            path = os.path.normpath(os.path.join(directory, name))
            relative, status = os.path.relpath(path, top), os.lstat(path)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISREG(status.st_mode):
                entries[relative] = ("file", mode, int(status.st_mtime), Path(os.fsdecode(path)).read_bytes())
                inodes.setdefault(status.st_ino, []).append(relative)
            elif stat.S_ISLNK(status.st_mode):
                entries[relative] = ("symlink", os.readlink(path))
            else:
                entries[relative] = ("fifo" if stat.S_ISFIFO(status.st_mode) else "directory", mode)
    return Tree(entries, sorted(sorted(names) for names in inodes.values() if len(names) > 1))


class _Builder:
    """Makes layers from the lowest up; each describes a change of the tree that the lower ones make."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._tree: dict[str, str] = {}  # path → kind
        self._items: list[Item] = []
        self._here: dict[str, str] = {}  # what this layer has; "whiteout" for what it removes

    def layer(self) -> list[Item]:
        self._items, self._here = [], {}
        if self._chance.random() < 0.6:
            self._items.append(Item("./", "directory", self._chance.choice([0o755, 0o555])))
        for _ in range(self._chance.randint(1, 8)):
            path = "/".join(self._chance.choice("abc") for _ in range(self._chance.randint(1, 3)))
            kind = self._chance.choice(["file", "hardlink", "whiteout"] * 3 + ["directory"] * 2 + OTHERS)
            if kind == "whiteout":
                self._remove(self._chance.choice(sorted(self._tree) or [path]))
            elif kind == "opaque":
                self._empty(path)
            else:
                self._add(path, kind)
        return self._items

    def _remove(self, path: str) -> None:
        if (
            path in self._here
            or self._holds(path)
            or any(self._here.get(p, "directory") != "directory" for p in up(path))
        ):
            return
        self._forget(path)
        parent, _, name = path.rpartition("/")
        self._items.append(Item(f"{parent}/.wh.{name}".lstrip("/")))
        self._here[path] = "whiteout"

    def _empty(self, path: str) -> None:
        if self._tree.get(path) != "directory" or self._holds(path):
            return
        self._forget(f"{path}/")
        if path not in self._here:
            self._items.append(Item(path, "directory", 0o750))
            self._here[path] = "directory"
        self._items.append(Item(f"{path}/.wh..wh..opq"))

    def _add(self, path: str, kind: str) -> None:
        if self._here.get(path, "whiteout") != "whiteout" or self._holds(path):
            return
        if any(self._here.get(parent, "directory") != "directory" for parent in up(path)):
            return
        for parent in up(path):
            self._enter(parent)
        target = ""
        if kind == "hardlink":
            files = [found for found, what in self._tree.items() if what in ("file", "hardlink") and found != path]
            files = [found for found in files if not found.startswith(f"{path}/")]
            if not files:
                return
            target = self._chance.choice(sorted(files))
        elif kind == "symlink":
            target = self._chance.choice(["a", "../b", "/c", "nowhere"])
        mode = self._chance.choice(DIRECTORY_MODES if kind == "directory" else MODES)
        content = bytes([self._chance.randrange(256)]) * self._chance.choice([0, 1, 511, 512, 300_000])
        self._items.append(Item(path, kind, mode, content if kind == "file" else b"", target))
        if kind != "directory" or self._tree.get(path) != "directory":
            self._forget(f"{path}/")
        self._tree[path] = self._here[path] = kind

    def _enter(self, path: str) -> None:
        if path in self._here:
            return
        if self._tree.get(path) != "directory":
            self._forget(f"{path}/")
        elif self._chance.random() < 0.3:  # its entry may be missing if it is a directory below
            return
        self._tree[path] = self._here[path] = "directory"
        self._items.append(Item(path, "directory", self._chance.choice([0o755, 0o700])))

    def _holds(self, path: str) -> bool:
        return any(found.startswith(f"{path}/") for found in self._here)

    def _forget(self, path: str) -> None:
        """Remove what is at a path or below it; with a trailing slash only what is below."""
        for found in [found for found in self._tree if found == path or found.startswith(f"{path.rstrip('/')}/")]:
            del self._tree[found]


OTHERS = ["symlink", "fifo", "device", "opaque"]


def up(path: str) -> list[str]:
    """Return the directories that a path is in, the highest first."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def random_stack(chance: random.Random, depth: int = 0) -> list[list[Item]]:
    """Return the layers of an image, the lowest first; up to five without a number."""
    builder = _Builder(chance)
    return [builder.layer() for _ in range(depth or chance.randint(1, 5))]
