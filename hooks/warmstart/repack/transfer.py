"""Export bundles to another cluster and receive them: a directory, or one tar file (docs/store-format.md, An export).

    export.json                                     {"format": 1}
    SCOPE/PROFILE/NAMESPACE/BUNDLE.sqsh  .json      as in the store
    SHA256SUMS                                      of all these files, for sha256sum(1); written last

Runs as root. Files are opened by descriptor and links are not followed. The receiver does not trust an export: names
must be valid in the store, a confined process under the validator's uid reads the table of a tar file, and every file
is compared with SHA256SUMS. A received squashfs is unpacked under the validator's uid, compared with its manifest file
by file, judged by its profile's validator and packed again by root; only that new bundle is published. Entries that
the store already has are not replaced, and those that another bundle of the export supersedes are left out.
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
from warmstart.host import wire
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
from warmstart.store import bundles, index, manifest
from warmstart.store.layout import BUNDLE, MANIFEST, Namespace, is_bundle_id, is_component
from warmstart.store.manifest import Manifest

FORMAT = 1
HEAD = "export.json"
SUMS = "SHA256SUMS"
LARGEST_SUMS = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (\S{1,1000})")


class ExportRefused(UserError):
    """An export cannot be written to this path, or not be received from it."""

    code = "export-refused"
    template = "{path}: {problem}"
    hint = "make exports with `warmstart cache export`, in a directory that only root can write"


class ExportDamaged(StoreError):
    """A file of an export is missing or does not match SHA256SUMS; nothing of that bundle is received."""

    code = "export-damaged"
    template = "{path}: {problem}"
    hint = "copy the export again; `sha256sum -c SHA256SUMS` in the export names the damaged files"


class Item(NamedTuple):
    """One bundle of an export."""

    scope: str
    profile: str
    namespace: str
    bundle: str

    @property
    def path(self) -> str:
        """Path in the export, without the suffix."""
        return "/".join(self)


class ReceiveSettings(NamedTuple):
    """What receiving needs besides the export."""

    repack: RepackSettings
    profiles: Sequence[DefinedProfile]  # that the policy defines


class Received(NamedTuple):
    """The result of receiving one bundle."""

    bundle: str | None  # its new id; None if no entry was published
    entries: int  # number published
    known: int  # number that the store already had
    rejected: dict[str, str]  # entry → why the validator rejected it


@contextmanager
def writing(path: str) -> Iterator[Writer]:
    """Write an export for a `with`: a tar file if `path` ends in .tar, else a directory.

    A directory may hold an earlier export, complete or not, which is added to. A tar file must not exist, and appears
    when it is complete. Raises `ExportRefused` or `OSError`.
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
            raise ExportRefused(path=path, problem="it already exists") from error
        writer = Writer(fd, archive)
        writer.add_text(HEAD, json.dumps({"format": FORMAT}).encode() + b"\n")
        yield writer


class Writer:
    """Writes an export; without `finish` it is incomplete and cannot be received."""

    def __init__(self, directory: int, archive: _Archive | None) -> None:
        """`directory` is a descriptor of the export, or of the directory of the tar file."""
        self._fd = directory
        self._archive = archive
        self._sums: dict[str, str] = {}

    def add(self, name: str, source: int, sha256: str) -> None:
        """Add a file, read from the start of `source`; raises `ExportRefused` if a different file has `name`."""
        if self._archive:
            self._archive.add(name, source, os.fstat(source).st_size)
        else:
            try:
                _put(self._fd, name, source, sha256)
            except FileExistsError as error:
                raise ExportRefused(path=name, problem=error.strerror) from error
        self._sums[name] = sha256

    def add_text(self, name: str, data: bytes) -> None:
        """Add a small file from memory."""
        fd = os.memfd_create("text")
        try:
            write_all(fd, data)
            self.add(name, fd, hashlib.sha256(data).hexdigest())
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Write SHA256SUMS, and give a tar file its name."""
        data = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(self._sums.items())).encode()
        if not self._archive:
            unlink_if_there(SUMS, self._fd)  # of a smaller export
        self.add_text(SUMS, data)
        if self._archive:
            self._archive.finish()


def _put(top: int, name: str, source: int, sha256: str) -> None:
    """Copy a file to `name` below `top` atomically; raises `FileExistsError` if a different file is there."""
    with _folder(top, os.path.dirname(name)) as folder:
        base = os.path.basename(name)
        with suppress(FileNotFoundError):
            there = open_regular(base, folder)
            try:
                if _copy_exactly(there, 0, os.fstat(there).st_size, None) != sha256:
                    raise FileExistsError(errno.EEXIST, "a different file of this name exists", name)
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
    """Open a directory below an export; create it and its parents if they are missing."""
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
    """Start a new tar file in `folder`; removes the leftover of a dead process. Raises `OSError` with `EEXIST`."""
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
    """A tar file, written under a temporary name until `finish`."""

    def __init__(self, folder: int, name: str, temp: str, fd: int) -> None:
        self._folder, self._name, self._temp, self._fd = folder, name, temp, fd
        self._file = os.fdopen(os.dup(fd), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115 - `finish` closes it

    def add(self, name: str, source: int, size: int) -> None:
        """Add the first `size` bytes of an open file."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        with open(f"/proc/self/fd/{source}", "rb") as file:
            self._tar.addfile(info, file)

    def finish(self) -> None:
        """Complete the file and link it to its name; raises `OSError` with `EEXIST` if the name is taken by now."""
        self._tar.close()
        self._file.flush()
        os.fsync(self._fd)
        os.link(self._temp, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        os.fsync(self._folder)

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()


@contextmanager
def reading(path: str, nobody: Identity, deadline: Deadline) -> Iterator[Reader]:
    """Open an export for a `with`; the identity `nobody`, the validator, reads the table of a tar file.

    Raises `ExportRefused` if it is not a readable tar file, or `OSError`.
    """
    if os.path.isdir(path):
        with opened_dir(path) as fd:
            yield Reader(path, fd, None)
        return
    fd = open_regular(path)
    try:
        try:
            members = Validator(nobody).tar_members(fd, deadline)
        except OSError as error:  # a wrong table needs no check here: files are compared with SHA256SUMS
            raise ExportRefused(path=path, problem="not a readable tar file") from error
        yield Reader(path, fd, members)
    finally:
        os.close(fd)


class Reader:
    """Reads an export; call `items` first."""

    def __init__(self, path: str, directory: int, members: dict[str, Member] | None) -> None:
        """`directory` is a descriptor of the directory, or of a tar file with its `members` by name."""
        self._path = path
        self._fd = directory
        self._members = members
        self._sums: dict[str, str] = {}
        self._marks: dict[tuple[str, ...], dict[str, str]] = {}  # by scope, profile and namespace; see `store.index`

    def items(self) -> list[Item]:
        """Return the bundles that SHA256SUMS lists, oldest first.

        Raises `ExportRefused` for another format, `ExportDamaged` if the list or export.json is invalid.
        """
        self._sums = _parsed(self._path, self._read(SUMS, LARGEST_SUMS))
        head = self.text(HEAD, 1024)
        try:
            written = wire.parse(head)["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(HEAD, "it has no format number") from error
        if written != FORMAT:
            raise ExportRefused(path=self._path, problem=f"its format is {written!r}, known is {FORMAT}")
        stems = sorted(name.removesuffix(MANIFEST) for name in self._sums if name.endswith(MANIFEST) and "/" in name)
        for stem in stems:
            if stem + BUNDLE not in self._sums:
                raise self._damaged(SUMS, f"it does not list {stem}{BUNDLE}")
        return sorted((Item(*stem.split("/")) for stem in stems), key=lambda item: item.bundle)

    def text(self, name: str, limit: int) -> bytes:
        """Read a file; raises `ExportDamaged` if it has more than `limit` bytes or does not match SHA256SUMS."""
        data = self._read(name, limit)
        if hashlib.sha256(data).hexdigest() != self._sums.get(name):
            raise self._damaged(name, f"it does not match {SUMS}")
        return data

    def superseded(self, item: Item, found: Manifest) -> set[str]:
        """Return the entries of a bundle of which other bundles of the export take the place."""
        key = item[:3]
        if key not in self._marks:
            folder = "/".join(key) + "/"
            names = [name for name in self._sums if name.startswith(folder) and name.endswith(MANIFEST)]
            self._marks[key] = index.marks(self._listed(names))
        listed = index.listed_of(found)
        return {entry for entry in found.entries if index.is_superseded(listed, entry, self._marks[key])}

    def _listed(self, names: list[str]) -> Iterator[index.Listed]:
        for name in names:
            with suppress(ExportDamaged, manifest.ManifestUnreadable):  # said when its turn comes
                bundle = name.rpartition("/")[2].removesuffix(MANIFEST)
                yield index.listed_of(manifest.decode(bundle, self.text(name, manifest.LARGEST)))

    def copy(self, item: Item, found: Manifest, out: int) -> None:
        """Copy a bundle into the empty file `out`; raises `ExportDamaged` if it does not match list and manifest."""
        name = item.path + BUNDLE
        if self._sums[name] != found.sha256:
            raise self._damaged(name, f"{SUMS} and manifest disagree")
        with self._opened(name) as (fd, offset, size):
            if size != found.size:
                raise self._damaged(name, f"it has {size} bytes, not {found.size}")
            if _copy_exactly(fd, offset, size, out) != found.sha256:
                raise self._damaged(name, f"it does not match {SUMS}")

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
        """Open a file of the export for a `with`, following no link; yields descriptor, offset and size in bytes."""
        if self._members is not None:
            if name not in self._members:
                raise self._damaged(name, "it is missing")
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
            raise ExportDamaged(path=f"{path}/{SUMS}", problem=f"invalid line: {line[:80]!a}")
        sums[match[2]] = match[1]
    return sums


def _is_item(name: str) -> bool:
    stem, suffix = os.path.splitext(name)
    *folders, bundle = stem.split("/")
    return (
        suffix in (BUNDLE, MANIFEST) and len(folders) == 3 and all(map(is_component, folders)) and is_bundle_id(bundle)
    )


def _open_below(top: int, name: str) -> int:
    """Open a regular file below a directory, following no link."""
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
    """Return the namespace to receive a bundle into; `to` and `namespace` override those of the export.

    Raises `ExportRefused` if the scope's user does not exist on this node, or if a shared scope needs `to`.
    """
    scope = to or item.scope
    kind, _, rest = scope.partition("-")
    if kind == "user":
        uid, _, name = rest.partition("-")
        if not _is_user(name, uid):
            raise ExportRefused(
                path=item.path, problem=f"{scope} is not a user of this cluster; name the scope with --to"
            )
    elif to is None:
        raise ExportRefused(path=item.path, problem=f"its scope is {scope}: name it with --to if others may run it")
    elif kind not in ("account", "site") or (kind == "site") == bool(rest):
        raise ExportRefused(path=to, problem="not a scope: user-UID-NAME, account-NAME or site")
    return Namespace(store, scope, item.profile, namespace or item.namespace)


def _is_user(name: str, uid: str) -> bool:
    with suppress(KeyError):
        return str(pwd.getpwnam(name).pw_uid) == uid
    return False


def receive(reader: Reader, item: Item, where: Namespace, settings: ReceiveSettings, deadline: Deadline) -> Received:
    """Publish those entries of one bundle that the store does not have and its validator accepts.

    Raises `ExportDamaged`, `ManifestUnreadable`, `ProfileUnknown`, `PublishBlocked`, and the errors of unpacking and
    publishing.
    """
    found = _manifest(reader, item)
    producer = found.producer
    known = set(settings.repack.store.known_entries(where, producer.user, producer.uid, deadline))
    new = sorted(found.entries.keys() - known - reader.superseded(item, found))
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
        raise ExportDamaged(path=item.path + MANIFEST, problem="it names another namespace")
    return found


def _rejected(
    settings: ReceiveSettings, stage: str, found: Manifest, entries: list[str], deadline: Deadline
) -> dict[str, str]:
    """Return the entries that the validator rejects, with reasons; removes them from the stage."""
    files = {entry: sorted(found.entries[entry]) for entry in entries}
    with opened_dir(os.path.join(stage, "entries")) as fd:
        validator = Validator(settings.repack.validator)
        verdicts = validator.judge(found.profile, fd, files, defined=settings.profiles, deadline=deadline)
        rejected = {entry: why for entry, why in verdicts.items() if why is not None}
        for entry in rejected:
            Stage(fd).discard(files[entry])
    return rejected


def _copy_exactly(source: int, offset: int, size: int, out: int | None) -> str:
    """Hash `size` bytes and copy them if `out` is given; raises `OSError` with `EIO` if the file is shorter."""
    copied = copy_hashed(source, out, offset=offset, most=size)
    if copied.size != size:
        raise OSError(errno.EIO, "the file is too short")
    return copied.sha256
