"""Export bundles to another cluster and receive them: a directory (docs/store-format.md, An export).

    export.json                                     {"format": 1}
    SCOPE/PROFILE/NAMESPACE/BUNDLE.sqsh  .json      as in the store
    SHA256SUMS                                      of all these files, for sha256sum(1); written last

Runs as root. Files are opened by descriptor and links are not followed. The receiver does not trust an export: names
must be valid in the store, and every file is compared with SHA256SUMS. A received squashfs is unpacked under the
validator's uid, compared with its manifest file by file, judged by its profile's validator and packed again by root;
only that new bundle is published. Entries that the store already has are not replaced, and those that another bundle
of the export supersedes are left out.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import re
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
    read_up_to,
    unlink_if_there,
    write_all,
)
from warmstart.profiles import registry
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
    """Write an export for a `with`; the directory may hold an earlier one, complete or not, which is added to.

    Raises `ExportRefused` or `OSError`.
    """
    path = os.path.abspath(path)
    with ExitStack() as opened:
        try:
            fd = opened.enter_context(opened_trusted(path, (0, os.geteuid()), sticky=True, make=0o700))
        except (PermissionError, NotADirectoryError) as error:
            raise ExportRefused(path=path, problem=f"{error.filename or ''} {error.strerror}".strip()) from error
        writer = Writer(fd)
        writer.add_text(HEAD, json.dumps({"format": FORMAT}).encode() + b"\n")
        yield writer


class Writer:
    """Writes an export; without `finish` it is incomplete and cannot be received."""

    def __init__(self, directory: int) -> None:
        """`directory` is a descriptor of the export."""
        self._fd = directory
        self._sums: dict[str, str] = {}

    def add(self, name: str, source: int, sha256: str) -> None:
        """Add a file, read from the start of `source`; raises `ExportRefused` if a different file has `name`."""
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
        """Write SHA256SUMS."""
        data = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(self._sums.items())).encode()
        unlink_if_there(SUMS, self._fd)  # of a smaller export
        self.add_text(SUMS, data)


def _put(top: int, name: str, source: int, sha256: str) -> None:
    """Copy a file to `name` below `top` atomically; raises `FileExistsError` if a different file is there."""
    with _folder(top, os.path.dirname(name)) as folder:
        base = os.path.basename(name)
        with suppress(FileNotFoundError):
            there = open_regular(base, folder)
            try:
                if copy_hashed(there).sha256 != sha256:
                    raise FileExistsError(errno.EEXIST, "a different file of this name exists", name)
            finally:
                os.close(there)
            return
        temp = f".{base}.part"
        unlink_if_there(temp, folder)
        out = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            _copy_exactly(source, os.fstat(source).st_size, out)
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
def reading(path: str) -> Iterator[Reader]:
    """Open an export for a `with`. Raises `OSError` if it is no directory."""
    with opened_dir(path) as fd:
        yield Reader(path, fd)


class Reader:
    """Reads an export; call `items` first."""

    def __init__(self, path: str, directory: int) -> None:
        """`directory` is a descriptor of the export."""
        self._path = path
        self._fd = directory
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

    def superseded(self, item: Item, exported: Manifest) -> set[str]:
        """Return the entries of a bundle of which other bundles of the export take the place."""
        key = item[:3]
        if key not in self._marks:
            folder = "/".join(key) + "/"
            names = [name for name in self._sums if name.startswith(folder) and name.endswith(MANIFEST)]
            self._marks[key] = index.marks(self._listed(names))
        listed = index.listed_of(exported)
        return {entry for entry in exported.entries if index.is_superseded(listed, entry, self._marks[key])}

    def _listed(self, names: list[str]) -> Iterator[index.Listed]:
        for name in names:
            with suppress(ExportDamaged, manifest.ManifestUnreadable):  # said when its turn comes
                bundle = name.rpartition("/")[2].removesuffix(MANIFEST)
                yield index.listed_of(manifest.decode(bundle, self.text(name, manifest.LARGEST)))

    def copy(self, item: Item, exported: Manifest, out: int) -> None:
        """Copy a bundle into the empty file `out`; raises `ExportDamaged` if it does not match list and manifest."""
        name = item.path + BUNDLE
        if self._sums[name] != exported.sha256:
            raise self._damaged(name, f"{SUMS} and manifest disagree")
        with self._opened(name) as fd:
            size = os.fstat(fd).st_size
            if size != exported.size:
                raise self._damaged(name, f"it has {size} bytes, not {exported.size}")
            if _copy_exactly(fd, size, out) != exported.sha256:
                raise self._damaged(name, f"it does not match {SUMS}")

    def _read(self, name: str, limit: int) -> bytes:
        with self._opened(name) as fd:
            data = read_up_to(fd, limit + 1)
        if len(data) > limit:
            raise self._damaged(name, f"larger than {limit} bytes")
        return data

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Open a file of the export for a `with`, following no link."""
        try:
            fd = _open_below(self._fd, name)
        except OSError as error:
            raise self._damaged(name, error.strerror or str(error)) from error
        try:
            yield fd
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

    Raises `ExportRefused` if the scope's user does not exist on this node, if a shared scope needs `to`, or if the
    profile's entries stay with their user.
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
    if kind != "user" and registry.is_of_user(item.profile):
        raise ExportRefused(path=item.path, problem=f"entries of {item.profile} stay in their user's own scope")
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
    exported = _manifest(reader, item)
    producer = exported.producer
    known = set(settings.repack.store.known_entries(where, producer.user, producer.uid, deadline))
    new = sorted(exported.entries.keys() - known - reader.superseded(item, exported))
    if not new:
        return Received(None, 0, len(exported.entries), {})
    try:
        selections = [BundleSelection(where, exported, new)]
        with unpacked(settings.repack, selections, deadline, lambda _, out: reader.copy(item, exported, out)) as stage:
            rejected = _rejected(settings, stage, exported, new, deadline)
            valid = [entry for entry in new if entry not in rejected]
            bundle = None
            if valid:
                draft = draft_of(exported, [BundleSelection(where, exported, valid)])
                bundle = publish_stage(settings.repack, stage, where, draft, deadline).bundle
    except bundles.BundleDamaged as error:
        raise ExportDamaged(path=item.path, problem=error.fields["problem"]) from error
    return Received(bundle, len(valid) if bundle else 0, len(exported.entries) - len(new), rejected)


def _manifest(reader: Reader, item: Item) -> Manifest:
    exported = manifest.decode(item.bundle, reader.text(item.path + MANIFEST, manifest.LARGEST))
    if (exported.scope, exported.profile, exported.namespace) != item[:3]:
        raise ExportDamaged(path=item.path + MANIFEST, problem="it names another namespace")
    return exported


def _rejected(
    settings: ReceiveSettings, stage: str, exported: Manifest, entries: list[str], deadline: Deadline
) -> dict[str, str]:
    """Return the entries that the validator rejects, with reasons; removes them from the stage."""
    files = {entry: sorted(exported.entries[entry]) for entry in entries}
    with opened_dir(os.path.join(stage, "entries")) as fd:
        validator = Validator(settings.repack.validator)
        verdicts = validator.judge(exported.profile, fd, files, defined=settings.profiles, deadline=deadline)
        rejected = {entry: why for entry, why in verdicts if why is not None}
        for entry in rejected:
            Stage(fd).discard(files[entry])
    return rejected


def _copy_exactly(source: int, size: int, out: int) -> str:
    """Copy `size` bytes and return their hash; raises `OSError` with `EIO` if the file is shorter."""
    copied = copy_hashed(source, out, most=size)
    if copied.size != size:
        raise OSError(errno.EIO, "the file is too short")
    return copied.sha256
