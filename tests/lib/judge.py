"""An independent reader of the store and of a node: says what is not as the documents promise.

It knows docs/store-format.md, docs/reference/images.md and docs/architecture.md (On a node), and uses nothing of the
package: a mistake that hooks and maintenance share does not hide here.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

_BUNDLE = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}")
_IMAGE = re.compile(r"[0-9a-f]{64}\.[^.]+\.[^.]+")
_BELOW_NAMESPACE = {"index.json", "locks", "quarantine"}
_MODES = {"artifacts": 0o700, "locks": 0o700, "quarantine": 0o700}


def store_problems(store: Path, *, settled: bool = True) -> list[str]:
    """Return what is wrong in a store. Unless it is `settled`, what a publisher left that died is not."""
    problems = [f"{path}: has mode {oct(path.stat().st_mode)}" for path in _open_to_others(store)]
    for namespace in sorted(store.glob("artifacts/*/*/*")):
        problems += [f"{namespace.relative_to(store)}: {text}" for text in _namespace(namespace, settled=settled)]
    images = store / "images"
    if images.is_dir():
        problems += [f"images: {text}" for text in _images(images, settled=settled)]
    if settled:
        problems += [f"{path}: was left" for pattern in (".tmp-*", ".*.tmp") for path in store.rglob(pattern)]
    return problems


def _open_to_others(store: Path) -> Iterator[Path]:
    for path in store.rglob("*"):
        if path.name in _MODES and path.is_dir() and path.stat().st_mode & 0o777 != _MODES[path.name]:
            yield path


def _namespace(where: Path, *, settled: bool) -> Iterator[str]:
    names = {path.name for path in where.iterdir() if not path.name.startswith(".tmp-")}
    manifests = {}
    for name in sorted(names - _BELOW_NAMESPACE):
        stem, _, suffix = name.rpartition(".")
        if not _BUNDLE.fullmatch(stem) or suffix not in {"sqsh", "json"}:
            yield f"{name}: nothing of that name belongs there"
        elif suffix == "sqsh" and f"{stem}.json" not in names and settled:
            yield f"{name}: has no manifest"
        elif suffix == "json":
            manifests[stem] = json.loads((where / name).read_bytes())
            yield from (f"{name}: {text}" for text in _bundle(where, stem))
    if "index.json" in names:
        lines = [json.loads(line) for line in (where / "index.json").read_bytes().splitlines()]
        yield from _index(lines, manifests, settled=settled)


def _bundle(where: Path, name: str) -> list[str]:
    manifest = (where / f"{name}.json").read_bytes()
    try:
        bundle = (where / f"{name}.sqsh").read_bytes()
    except FileNotFoundError:
        return ["has no bundle"]
    modes = {oct((where / f"{name}.{suffix}").stat().st_mode & 0o777) for suffix in ("json", "sqsh")}
    wrong = [] if modes == {"0o444"} else [f"modes {modes}"]
    return wrong + _content(name, where.parts[-3:], manifest, bundle)


@lru_cache(1000)
def _content(name: str, place: tuple[str, ...], text: bytes, bundle: bytes) -> list[str]:
    """Return what is wrong with a bundle, by its manifest. Sweeps leave the same bundles again and again."""
    manifest = json.loads(text)
    wrong = []
    if (manifest["format"], manifest["bundle"]) != (1, name):
        wrong.append("is of another bundle")
    if (manifest["scope"], manifest["profile"], manifest["namespace"]) != place:
        wrong.append("is of another namespace")
    if (manifest["size"], manifest["sha256"]) != (len(bundle), hashlib.sha256(bundle).hexdigest()):
        wrong.append("its bundle has other bytes")
        return wrong
    if manifest["profile"].startswith("whole-"):  # its one entry stands for all of it
        return wrong
    listed = {
        (f"{entry}{file[1:]}" if file.startswith("/") else file): (size, sha256)
        for entry, files in manifest["entries"].items()
        for file, (size, sha256, _mtime) in files.items()
    }
    if bundle and (found := _unpacked(bundle)) != listed:
        wrong.append(f"it lists {sorted(listed)}, its bundle holds {sorted(found)}")
    return wrong


def _unpacked(bundle: bytes) -> dict[str, tuple[int, str]]:
    with tempfile.TemporaryDirectory() as directory:
        packed, top = Path(directory, "bundle.sqsh"), Path(directory, "tree")
        packed.write_bytes(bundle)
        argv = ["unsquashfs", "-no-progress", "-quiet", "-processors", "1", "-dest", str(top), str(packed)]
        done = subprocess.run(argv, check=False, capture_output=True, timeout=60)
        if done.returncode:
            return {done.stderr.decode(): (0, "")}
        files = [path for path in top.rglob("*") if not path.is_dir()]
        return {
            str(path.relative_to(top)): (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in files
        }


def _index(lines: list[dict[str, Any]], manifests: dict[str, Any], *, settled: bool) -> Iterator[str]:
    index, *names = lines
    listed = {item["bundle"]: item for item in index["bundles"]}
    entries = dict(zip(listed, names, strict=True))
    if settled and (missing := manifests.keys() - listed.keys() - index["refused"].keys()):
        yield f"the index lacks {sorted(missing)}"
    if list(listed) != sorted(listed):
        yield "the index is not sorted by age"
    several = len({entry for of in names for entry in of}) < sum(map(len, names))
    if index["plain"] == (several or any(item["supersedes"] for item in index["bundles"])):
        yield "the index is wrong about entries that are in two bundles"
    for name, item in listed.items():
        if name not in manifests:
            yield f"the index names {name}, which is not there"
            continue
        manifest = manifests[name]
        if (item["sha256"], item["size"]) != (manifest["sha256"], manifest["size"]):
            yield f"the index has another hash of {name}"
        if entries[name].keys() != manifest["entries"].keys() or item["number"] != len(manifest["entries"]):
            yield f"the index has other entries of {name}"


def _images(images: Path, *, settled: bool) -> Iterator[str]:
    names = [path.name for path in images.iterdir() if not path.is_dir() and not path.name.startswith(".")]
    whole = {name.removesuffix(".sqsh") for name in names if name.endswith(".sqsh")}
    known = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    for name in sorted(whole | known):
        if not _IMAGE.fullmatch(name):
            yield f"{name}: nothing of that name belongs there"
        elif name in whole & known:
            found = hashlib.sha256((images / f"{name}.sqsh").read_bytes()).hexdigest()
            if json.loads((images / f"{name}.json").read_bytes())["sha256"] != found:
                yield f"{name}: has other bytes"
        elif settled:
            yield f"{name}: {'nothing is known of it' if name in whole else 'there is no such image'}"
    for tag in sorted(images.glob("tags/*.json")):
        digest = json.loads(tag.read_bytes())["digest"].rpartition(":")[2]
        if not any(digest in name for name in whole):
            yield f"tag {tag.name}: its image is not there"
    if settled:
        yield from (f"{path.name}: its producer is gone" for path in images.glob("locks/*.producer"))


def node_problems(workspace: Path, var: Path, runtime: Path, job: int) -> list[str]:
    """Return what a job that is over has left on a node.

    `workspace` is the policy's; `var` and `runtime` are the node's directories of what lasts, and of runs.
    """
    wrong = [f"{path}: is left" for path in sorted([*workspace.glob(f"{job}.*"), *workspace.glob(f".{job}.*")])]
    of_runs = (runtime.parent / "view", *(runtime / part for part in ("state", "queue/endings")))
    for part in (*of_runs, var / "stage"):
        wrong += [f"{path}: is left" for path in sorted(part.glob(f"*{job}*"))]
    wrong += [f"{path}: is left" for path in sorted((var / "spool").glob("*")) if f".{job}." in path.name]
    wrong += [f"{path}: is left" for top in (var.parent, runtime.parent) for path in top.rglob(".*.tmp")]
    for port in (runtime.parent / "ports").glob("[0-9]*"):
        if json.loads(port.read_bytes() or b"{}").get("job_id") == job:
            wrong.append(f"port {port.name}: is reserved")
    mounted = Path("/proc/self/mountinfo").read_text()
    wrong += [f"{line.split()[4]}: is mounted" for line in mounted.splitlines() if f"{workspace}/{job}." in line]
    for loop in re.findall(r"loop\d+$", Path("/proc/partitions").read_text(), re.MULTILINE):  # those in use
        try:
            file = Path(f"/sys/block/{loop}/loop/backing_file").read_text().strip()
        except OSError:  # it was freed meanwhile
            continue
        if file.startswith(f"{workspace}/{job}.") or (file.endswith("(deleted)") and file.startswith(f"{workspace}/")):
            wrong.append(f"{loop}: is attached to {file}")
    return wrong


def shelf_problems(shelf: Path) -> list[str]:
    """Return what is wrong on a shelf with unpacked images, all of whose jobs are over."""
    wrong = [f"{path}: is left" for path in shelf.glob(".*")]
    for path in shelf.glob("*/images/*"):
        if "." in path.name:
            wrong.append(f"{path}: is left")
        elif {below.name for below in path.iterdir()} != {"about.json", "tree"}:
            wrong.append(f"{path}: is half")
    return wrong
