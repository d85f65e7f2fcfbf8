"""Bundles on their way to another cluster: a directory, or one tar file (docs/store-format.md, An export).

    export.json                                     {"format": 1}
    SCOPE/PROFILE/NAMESPACE/BUNDLE.sqsh  .json      as in the store
    SHA256SUMS                                      of all of them, as sha256sum(1) checks it; written last

Whoever reads one believes nothing but bytes: names come from the list and have to be names of the store's layout, a
tar's table is read by a process that is nobody, and every file is compared with the list. Root copies only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from warmstart.errors import StoreError, UserError
from warmstart.host.deadline import Deadline
from warmstart.host.files import open_regular, opened_dir, opened_trusted, unlink_if_there, write_all
from warmstart.host.identity import Identity
from warmstart.host.tar import Member
from warmstart.profiles.client import Validator
from warmstart.store import manifest, tarred
from warmstart.store.carried import copy, open_below, put
from warmstart.store.layout import BUNDLE, MANIFEST, is_bundle_id, is_component

FORMAT = 1
HEAD = "export.json"
SUMS = "SHA256SUMS"
LARGEST_SUMS = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (\S{1,1000})")


class ExportRefused(UserError):
    """An export can't be made there, or is not one that may be taken in."""

    code = "export-refused"
    template = "{path}: {problem}"
    hint = "exports are made by `warmstart cache export`, into a directory of root's that nobody else can write"


class ExportDamaged(StoreError):
    """A file of an export is not what its list says; nothing of that bundle is taken."""

    code = "export-damaged"
    template = "{path}: {problem}"
    hint = "carry the export over again; `sha256sum -c SHA256SUMS` in the export names what is damaged"


class Item(NamedTuple):
    """One bundle of an export."""

    scope: str
    profile: str
    namespace: str
    bundle: str

    @property
    def path(self) -> str:
        """Its path in the export, without the suffix."""
        return "/".join(self)


class Writer:
    """An export that is being made: a directory that may hold a part of it already, or a new tar file."""

    def __init__(self, directory: int, archive: tarred.Archive | None) -> None:
        """`directory` is the export itself, or the one that the tar file is made in."""
        self._fd = directory
        self._archive = archive
        self._sums: dict[str, str] = {}

    def add(self, name: str, source: int, sha256: str) -> None:
        """Add the file behind an open descriptor, from its start; `ExportRefused` where another one has its name."""
        if self._archive:
            self._archive.add(name, source, os.fstat(source).st_size)
        else:
            try:
                put(self._fd, name, source, sha256)
            except FileExistsError as error:
                raise ExportRefused(path=name, problem=error.strerror) from error
        self._sums[name] = sha256

    def add_text(self, name: str, data: bytes) -> None:
        """Add a small file."""
        fd = os.memfd_create("text")
        try:
            write_all(fd, data)
            self.add(name, fd, hashlib.sha256(data).hexdigest())
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Write the list, without which an export is none."""
        data = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(self._sums.items())).encode()
        if not self._archive:
            unlink_if_there(SUMS, self._fd)  # of a smaller export
        self.add_text(SUMS, data)
        if self._archive:
            self._archive.finish()


@contextmanager
def writing(path: str) -> Iterator[Writer]:
    """Make an export, a tar file where `path` ends in .tar; `ExportRefused`, `OSError`.

    A directory may be that of an export which was not finished, or be added to. A tar file appears when it is whole.
    """
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    archived = name.endswith(".tar")
    with ExitStack() as opened:
        try:
            fd = opened.enter_context(
                opened_trusted(folder if archived else path, (0, os.geteuid()), sticky=True, make=0o700)
            )
        except (PermissionError, NotADirectoryError) as error:
            raise ExportRefused(path=path, problem=f"{error.filename or ''} {error.strerror}".strip()) from error
        if not archived:
            writer = Writer(fd, None)
            writer.add_text(HEAD, _head())
            yield writer
            return
        try:
            archive = opened.enter_context(tarred.new(fd, name))
        except FileExistsError as error:
            raise ExportRefused(path=path, problem="it is there already") from error
        writer = Writer(fd, archive)
        writer.add_text(HEAD, _head())
        yield writer


class Reader:
    """An export that is taken in."""

    def __init__(self, path: str, directory: int, members: dict[str, Member] | None) -> None:
        """`directory` is an open directory, or an open tar file with its `members` by name."""
        self._path = path
        self._fd = directory
        self._members = members
        self._sums: dict[str, str] = {}

    def items(self) -> list[Item]:
        """Return the bundles that the list names whole, the oldest first; `ExportRefused`, `ExportDamaged`."""
        self._sums = _parsed(self._path, self._read(SUMS, LARGEST_SUMS))
        head = self.text(HEAD, 1024)
        try:
            written = json.loads(head)["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(HEAD, "not the head of an export") from error
        if written != FORMAT:
            raise ExportRefused(path=self._path, problem=f"its format is {written!r}, known is {FORMAT}")
        stems = sorted(name.removesuffix(MANIFEST) for name in self._sums if name.endswith(MANIFEST) and "/" in name)
        for stem in stems:
            if stem + BUNDLE not in self._sums:
                raise self._damaged(SUMS, f"it does not list {stem}{BUNDLE}")
        return sorted((Item(*stem.split("/")) for stem in stems), key=lambda item: item.bundle)

    def text(self, name: str, limit: int) -> bytes:
        """Return a file of the list; `ExportDamaged`."""
        data = self._read(name, limit)
        if hashlib.sha256(data).hexdigest() != self._sums.get(name):
            raise self._damaged(name, "its bytes are not those of the list")
        return data

    def copy(self, item: Item, found: manifest.Manifest, out: int) -> None:
        """Copy a bundle into the empty file `out`; `ExportDamaged` unless list and manifest both are right about it."""
        name = item.path + BUNDLE
        if self._sums[name] != found.sha256:
            raise self._damaged(name, "list and manifest disagree")
        with self._opened(name) as (fd, offset, size):
            if size != found.size:
                raise self._damaged(name, f"it has {size} bytes, not {found.size}")
            if copy(fd, offset, size, out) != found.sha256:
                raise self._damaged(name, "its bytes are not those of the list")

    def _read(self, name: str, limit: int) -> bytes:
        with self._opened(name) as (fd, offset, size):
            if size > limit:
                raise self._damaged(name, f"larger than {limit} bytes")
            out = os.memfd_create("text")
            try:
                copy(fd, offset, size, out)
                return os.pread(out, size, 0)
            finally:
                os.close(out)

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, int, int]]:
        """Give descriptor, offset and size of a file; follows no link."""
        if self._members is not None:
            if name not in self._members:
                raise self._damaged(name, "it is not there")
            yield self._fd, *self._members[name]
            return
        try:
            fd = open_below(self._fd, name)
        except OSError as error:
            raise self._damaged(name, error.strerror or str(error)) from error
        try:
            yield fd, 0, os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _damaged(self, name: str, problem: str) -> ExportDamaged:
        return ExportDamaged(path=f"{self._path}/{name}", problem=problem)


@contextmanager
def reading(path: str, nobody: Identity, deadline: Deadline) -> Iterator[Reader]:
    """Open an export; a tar's table is read as `nobody`, the validator. `ExportRefused`, `ExportDamaged`, `OSError`."""
    if os.path.isdir(path):
        with opened_dir(path) as fd:
            yield Reader(path, fd, None)
        return
    fd = open_regular(path)
    try:
        yield Reader(path, fd, _table(path, fd, nobody, deadline))
    finally:
        os.close(fd)


def _table(path: str, fd: int, nobody: Identity, deadline: Deadline) -> dict[str, Member]:
    try:
        return Validator(nobody).tar_members(fd, deadline)
    except OSError as error:  # whatever it says, bytes are compared with the list
        raise ExportRefused(path=path, problem="not a tar file that can be read") from error


def _parsed(path: str, data: bytes) -> dict[str, str]:
    sums: dict[str, str] = {}
    for line in data.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums or not (match[2] == HEAD or _is_item(match[2])):
            raise ExportDamaged(path=f"{path}/{SUMS}", problem=f"not a line of an export's list: {line[:80]!a}")
        sums[match[2]] = match[1]
    return sums


def _is_item(name: str) -> bool:
    stem, suffix = os.path.splitext(name)
    *folders, bundle = stem.split("/")
    return (
        suffix in (BUNDLE, MANIFEST) and len(folders) == 3 and all(map(is_component, folders)) and is_bundle_id(bundle)
    )


def _head() -> bytes:
    return json.dumps({"format": FORMAT}).encode() + b"\n"
