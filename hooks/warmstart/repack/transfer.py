"""Export bundles to another cluster and receive them: a directory, or one tar file (docs/store-format.md, An export).

    export.json                                     {"format": 1}
    SCOPE/PROFILE/NAMESPACE/BUNDLE.sqsh  .json      as in the store
    SHA256SUMS                                      of all of them, as sha256sum(1) checks it; written last

Files are written and opened by descriptor, through no link. The receiver believes nothing but bytes: names must be
names of the store's layout, a tar's table is read by a process that is nobody, and every file is compared with the
list. A received squashfs is unpacked under the validator's uid, compared with its manifest file by file, judged by
its profile's validator and packed anew by root; only that is published. Entries that the store has stay as they are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import StoreError, UserError
from warmstart.harvest.collect import Stage
from warmstart.host.deadline import Deadline
from warmstart.host.files import (
    copy_hashed,
    ensure_dir,
    open_regular,
    opened_dir,
    opened_trusted,
    unlink_if_there,
    write_all,
)
from warmstart.host.identity import Identity
from warmstart.host.tar import Member
from warmstart.profiles.client import Validator
from warmstart.profiles.defined import DefinedProfile
from warmstart.repack.merge import BundleSelection, RepackSettings, draft_of, publish_stage, unpacked
from warmstart.store import bundles, manifest
from warmstart.store.layout import BUNDLE, MANIFEST, Namespace, is_bundle_id, is_component
from warmstart.store.manifest import Manifest

FORMAT = 1
HEAD = "export.json"
SUMS = "SHA256SUMS"
LARGEST_SUMS = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (\S{1,1000})")


class ExportRefused(UserError):
    """An export can't be made there, or is not one that may be received."""

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


class ReceiveSettings(NamedTuple):
    """Where bundles are received, and as whom."""

    repack: RepackSettings
    profiles: Sequence[DefinedProfile]  # of the policy


class Received(NamedTuple):
    """What became of one bundle of an export."""

    bundle: str | None  # its id here; None: nothing of it is new
    entries: int  # published
    known: int  # were here already
    rejected: dict[str, str]  # entry → why its validator did not take it


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
        try:
            archive = opened.enter_context(_new_archive(fd, name)) if archived else None
        except FileExistsError as error:
            raise ExportRefused(path=path, problem="it is there already") from error
        writer = Writer(fd, archive)
        writer.add_text(HEAD, json.dumps({"format": FORMAT}).encode() + b"\n")
        yield writer


class Writer:
    """An export that is being made: a directory that may hold a part of it already, or a new tar file."""

    def __init__(self, directory: int, archive: _Archive | None) -> None:
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
                _put(self._fd, name, source, sha256)
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


def _put(top: int, name: str, source: int, sha256: str) -> None:
    """Copy a file to `name` below a directory, whole; `FileExistsError` where another one is there."""
    with _folder(top, os.path.dirname(name)) as folder:
        base = os.path.basename(name)
        with suppress(FileNotFoundError):
            there = open_regular(base, folder)
            try:
                if _copy_exactly(there, 0, os.fstat(there).st_size, None) != sha256:
                    raise FileExistsError(errno.EEXIST, "another file of this name is there", name)
            finally:
                os.close(there)
            return
        temp = f".{base}.part"
        unlink_if_there(temp, folder)
        out = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            _copy_exactly(source, 0, os.fstat(source).st_size, out)
            os.fsync(out)
        finally:
            os.close(out)
        os.rename(temp, base, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


@contextmanager
def _folder(top: int, path: str) -> Iterator[int]:
    """Open a directory below an export, made where it lacks."""
    fd = os.dup(top)
    try:
        for part in path.split("/") if path else ():
            ensure_dir(part, 0o700, fd)
            with opened_dir(part, fd) as below:
                os.dup2(below, fd, inheritable=False)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _new_archive(folder: int, name: str) -> Iterator[_Archive]:
    """Give a new tar file in a directory of root's; what a dead one left under its temporary name goes. `EEXIST`."""
    temp = f".{name}.part"
    unlink_if_there(temp, folder)
    if name in os.listdir(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    archive = _Archive(folder, name, temp, fd)
    try:
        yield archive
    finally:
        archive.close()
        os.close(fd)
        unlink_if_there(temp, folder)


class _Archive:
    """A tar file that is being written under another name."""

    def __init__(self, folder: int, name: str, temp: str, fd: int) -> None:
        self._folder, self._name, self._temp, self._fd = folder, name, temp, fd
        self._file = os.fdopen(os.dup(fd), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115 - `finish` closes it

    def add(self, name: str, source: int, size: int) -> None:
        """Add a file's bytes, from its start."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        with open(f"/proc/self/fd/{source}", "rb") as file:
            self._tar.addfile(info, file)

    def finish(self) -> None:
        """Give it its name; `EEXIST` where something has it by now."""
        self._tar.close()
        self._file.flush()
        os.fsync(self._fd)
        os.link(self._temp, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        os.fsync(self._folder)

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


@contextmanager
def reading(path: str, nobody: Identity, deadline: Deadline) -> Iterator[Reader]:
    """Open an export; a tar's table is read as `nobody`, the validator. `ExportRefused`, `ExportDamaged`, `OSError`."""
    if os.path.isdir(path):
        with opened_dir(path) as fd:
            yield Reader(path, fd, None)
        return
    fd = open_regular(path)
    try:
        try:
            members = Validator(nobody).tar_members(fd, deadline)
        except OSError as error:  # whatever it says, bytes are compared with the list
            raise ExportRefused(path=path, problem="not a tar file that can be read") from error
        yield Reader(path, fd, members)
    finally:
        os.close(fd)


class Reader:
    """An export that is received."""

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

    def copy(self, item: Item, found: Manifest, out: int) -> None:
        """Copy a bundle into the empty file `out`; `ExportDamaged` unless list and manifest both are right about it."""
        name = item.path + BUNDLE
        if self._sums[name] != found.sha256:
            raise self._damaged(name, "list and manifest disagree")
        with self._opened(name) as (fd, offset, size):
            if size != found.size:
                raise self._damaged(name, f"it has {size} bytes, not {found.size}")
            if _copy_exactly(fd, offset, size, out) != found.sha256:
                raise self._damaged(name, "its bytes are not those of the list")

    def _read(self, name: str, limit: int) -> bytes:
        with self._opened(name) as (fd, offset, size):
            if size > limit:
                raise self._damaged(name, f"larger than {limit} bytes")
            out = os.memfd_create("text")
            try:
                _copy_exactly(fd, offset, size, out)
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
            fd = _open_below(self._fd, name)
        except OSError as error:
            raise self._damaged(name, error.strerror or str(error)) from error
        try:
            yield fd, 0, os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _damaged(self, name: str, problem: str) -> ExportDamaged:
        return ExportDamaged(path=f"{self._path}/{name}", problem=problem)


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


def _open_below(top: int, name: str) -> int:
    """Open a regular file below a directory; follows no link."""
    *folders, base = name.split("/")
    fd = os.dup(top)
    try:
        for part in folders:
            with opened_dir(part, fd) as below:
                os.dup2(below, fd, inheritable=False)
        return open_regular(base, fd)
    finally:
        os.close(fd)


def destination(store: str, item: Item, to: str | None, namespace: str | None) -> Namespace:
    """Return where a bundle goes; `ExportRefused` for a scope that nobody named, or whose user is not on this node."""
    scope = to or item.scope
    kind, _, rest = scope.partition("-")
    if kind == "user":
        uid, _, name = rest.partition("-")
        if not _is_user(name, uid):
            raise ExportRefused(path=item.path, problem=f"{scope} is no user of this cluster; name the scope with --to")
    elif to is None:
        raise ExportRefused(path=item.path, problem=f"its scope is {scope}: name it with --to if others may run it")
    elif kind not in ("account", "site") or (kind == "site") == bool(rest):
        raise ExportRefused(path=to, problem="no scope: user-UID-NAME, account-NAME or site")
    return Namespace(store, scope, item.profile, namespace or item.namespace)


def _is_user(name: str, uid: str) -> bool:
    with suppress(KeyError):
        return str(pwd.getpwnam(name).pw_uid) == uid
    return False


def receive(reader: Reader, item: Item, where: Namespace, settings: ReceiveSettings, deadline: Deadline) -> Received:
    """Publish what is new of one bundle.

    `ExportDamaged`, `ManifestUnreadable`, `ProfileUnknown`, `PublishBlocked`, the errors of unpacking and publishing.
    """
    found = _manifest(reader, item)
    producer = found.producer
    known = set(settings.repack.store.known_entries(where, producer.user, producer.uid, deadline))
    new = sorted(found.entries.keys() - known)
    if not new:
        return Received(None, 0, len(found.entries), {})
    try:
        selections = [BundleSelection(where, found, new)]
        with unpacked(settings.repack, selections, deadline, lambda _, out: reader.copy(item, found, out)) as stage:
            rejected = _rejected(settings, stage, found, new, deadline)
            valid = [entry for entry in new if entry not in rejected]
            bundle = None
            if valid:
                draft = draft_of(found, [BundleSelection(where, found, valid)])
                bundle = publish_stage(settings.repack, stage, where, draft, deadline).bundle
    except bundles.BundleDamaged as error:
        raise ExportDamaged(path=item.path, problem=error.fields["problem"]) from error
    return Received(bundle, len(valid) if bundle else 0, len(found.entries) - len(new), rejected)


def _manifest(reader: Reader, item: Item) -> Manifest:
    found = manifest.decode(item.bundle, reader.text(item.path + MANIFEST, manifest.LARGEST))
    if (found.scope, found.profile, found.namespace) != item[:3]:
        raise ExportDamaged(path=item.path + MANIFEST, problem="it is of another namespace")
    return found


def _rejected(
    settings: ReceiveSettings, stage: str, found: Manifest, entries: list[str], deadline: Deadline
) -> dict[str, str]:
    """Return which entries their validator does not take; they have left the stage."""
    files = {entry: sorted(found.entries[entry]) for entry in entries}
    with opened_dir(os.path.join(stage, "entries")) as fd:
        validator = Validator(settings.repack.validator)
        verdicts = validator.judge(found.profile, fd, files, defined=settings.profiles, deadline=deadline)
        rejected = {entry: why for entry, why in verdicts.items() if why is not None}
        for entry in rejected:
            Stage(fd).discard(files[entry])
    return rejected


def _copy_exactly(source: int, offset: int, size: int, out: int | None) -> str:
    """Copy bytes, if there is where to, and return their SHA-256; `EIO` where there are fewer."""
    copied = copy_hashed(source, out, offset=offset, most=size)
    if copied.size != size:
        raise OSError(errno.EIO, "it ended early")
    return copied.sha256
