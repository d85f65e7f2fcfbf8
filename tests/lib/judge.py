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

_BUNDLE = re.compile(r"[0-9a-f]{64}")
_IMAGE = re.compile(r"[0-9a-f]{64}\.[^.]+\.[^.]+")
_BELOW_NAMESPACE = {"listing", "facts"}
_PRIVATE = {"caches", "ending", ".locks"}


def store_problems(store: Path, *, settled: bool = True) -> list[str]:
    """Return what is wrong in a store. Unless it is `settled`, what a publisher left that died is not."""
    problems = [f"{path}: has mode {oct(path.stat().st_mode)}" for path in _open_to_others(store)]
    for namespace in sorted(store.glob("caches/*/*/*")):
        problems += [f"{namespace.relative_to(store)}: {text}" for text in _namespace(namespace, settled=settled)]
    images = store / "images"
    if images.is_dir():
        problems += [f"images: {text}" for text in _images(images, settled=settled)]
    if settled:
        problems += [f"{path}: was left" for pattern in (".tmp-*", ".*.tmp") for path in store.rglob(pattern)]
    return problems


def _open_to_others(store: Path) -> Iterator[Path]:
    for path in store.rglob("*"):
        if path.name in _PRIVATE and path.is_dir() and path.stat().st_mode & 0o777 != 0o700:
            yield path


def _namespace(where: Path, *, settled: bool) -> Iterator[str]:
    at_work = (".tmp-",) if settled else (".tmp-", ".swept-")
    names = {path.name for path in where.iterdir() if not path.name.startswith(at_work)}
    entries: dict[str, dict[str, Any]] = {}
    for name in sorted(names - _BELOW_NAMESPACE):
        stem, _, suffix = name.rpartition(".")
        if not _BUNDLE.fullmatch(stem) or suffix not in {"sqsh", "json", "doubted"}:
            yield f"{name}: nothing of that name belongs there"
        elif suffix == "json":
            problems, entries[stem] = _bundle(where, stem, settled=settled)
            yield from (f"{name}: {text}" for text in problems)
    listings = sorted((where / "listing").glob("[0-9]*"))
    for number, path in enumerate(listings, 1):
        rows, problems = _listing(path)
        yield from (f"listing {path.name}: {text}" for text in problems)
        if number == len(listings):
            yield from _taken(rows, entries)


def _bundle(where: Path, name: str, *, settled: bool) -> tuple[list[str], dict[str, Any]]:
    files, squashfs = where / f"{name}.json", where / f"{name}.sqsh"
    problems, text = _unsealed(files.read_bytes())
    entries: dict[str, Any] = json.loads(text)["entries"] if not problems else {}
    if not squashfs.exists():
        return (["has no bundle"] if settled else []), entries
    modes = {oct(path.stat().st_mode & 0o777) for path in (files, squashfs)}
    wrong = [*problems, *([] if modes == {"0o444"} else [f"modes {modes}"])]
    return wrong + _content(name, where.parts[-2], text, squashfs.read_bytes()), entries


def _unsealed(data: bytes) -> tuple[list[str], bytes]:
    seal, _, text = data.partition(b"\n")
    return ([] if hashlib.sha256(text).hexdigest().encode() == seal else ["is not what its seal says"]), text


@lru_cache(1000)
def _content(name: str, profile: str, text: bytes, bundle: bytes) -> list[str]:
    """Return what is wrong with a bundle, by its list of files. Sweeps leave the same bundles again and again."""
    if hashlib.sha256(bundle).hexdigest() != name:
        return ["its bundle has other bytes"]
    raw = json.loads(text)
    if raw["format"] != 1:
        return ["is of another format"]
    if profile.startswith("whole-"):  # its one entry stands for all of it
        return []
    listed = {
        (f"{entry}{file[1:]}" if file.startswith("/") else file): (size, sha256)
        for entry, files in raw["entries"].items()
        for file, (size, sha256, _mtime) in files.items()
    }
    found = _unpacked(bundle)
    return [] if found == listed else [f"it lists {sorted(listed)}, its bundle holds {sorted(found)}"]


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


def _listing(path: Path) -> tuple[list[tuple[str, list[str], list[str]]], list[str]]:
    """Return the rows of a generation, topmost first: bundle, entries that readers take, others; and what is wrong."""
    seal, head, *lines = path.read_bytes().split(b"\n")
    wrong, _ = _unsealed(seal + b"\n" + head)
    raw = json.loads(head)
    if raw["number"] != int(path.name):
        wrong.append("is of another number")
    if hashlib.sha256(b"".join(b"\n" + line for line in lines)).hexdigest() != raw["content"]:
        wrong.append("its lines are not those of its head")
    rows = [(row[0], *json.loads(line)) for row, line in zip(raw["rows"], lines, strict=True)]
    for row, (_, names, _) in zip(raw["rows"], rows, strict=True):
        if row[2] != len(names) or not names:
            wrong.append(f"has wrong numbers of {row[0]}")
    every = [entry for _, names, _ in rows for entry in names]
    if len(every) != len({*every}):
        wrong.append("an entry is taken from two bundles")
    return rows, wrong


def _taken(rows: list[tuple[str, list[str], list[str]]], entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the newest listing, by the bundles that are there."""
    above = set[str]()
    for bundle, names, lost in rows:
        if bundle not in entries:
            yield f"the listing names {bundle}, which is not there"
            continue
        if {*names, *lost} != entries[bundle].keys():
            yield f"the listing has other entries of {bundle}"
        if covered := above & {*names}:
            yield f"{sorted(covered)} are taken from {bundle}, below another bundle that has them"
        above |= entries[bundle].keys()


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
