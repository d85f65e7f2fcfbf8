"""The index of a namespace: its bundles, oldest first, their entries, and which bundle provides an entry.

Runs as the store's owner. Hot path. Its first line has all but the names of entries; these follow, in a line for each
bundle, so that a prolog need not read those of large bundles that a job gets whole. The index only saves readers from
opening every manifest. One that is missing, damaged or unreadable is made of the manifests, if all of them can be used:
the marks in one that cannot would be missed, and entries that were retired would come back. An update lists the
directory again after writing and repeats if a bundle has come or gone, so the last writer lists all bundles and no
other, even without a lock.

Within a scope, the bundle whose id sorts first provides an entry. The id of a new bundle sorts last, so the first
publisher keeps its entries. A compacted bundle gets an id one microsecond before the oldest that it replaces, and names
them in `replaces`.

A bundle takes the place of others by `supersedes`: entry → mark, a bundle id. Readers do not take the entry from
bundles of the scope whose id is before the youngest mark, unless the bundle has that same mark itself, which compaction
hands on. A marked entry that the bundle lacks is retired: nobody has it until it is built anew. A mark in a user's
scope also hides the entry in all other scopes, for that user alone reads it (docs/threats.md, row 8).
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import UserError
from warmstart.host import wire
from warmstart.host.files import DIRECTORY, REGULAR, closing, file_of, weakness
from warmstart.host.wire import Json
from warmstart.lean import Iterable, NamedTuple, Sequence, dumps, suppress
from warmstart.store import layout, manifest
from warmstart.store.layout import MANIFEST, is_bundle_id, is_user_scope
from warmstart.store.manifest import (
    MOST_PER_BUNDLE,
    MOST_PER_NAMESPACE,
    MOST_PER_USER,
    OTHER_FORMAT,
    Draft,
    Manifest,
    ManifestUnreadable,
    content_digest,
    is_sha256,
)

FORMAT = 2
NAME = "index.json"
LARGEST = 256 << 20
FIRST = 64 << 10  # bytes that are read at first: all of most indexes


class HarvestTooLarge(UserError):
    """A harvest would take more of every reader's memory, of the store or of names than one user's jobs may."""

    code = "harvest-too-large"
    template = "{problem}"
    hint = "the next job compiles what is missing; fewer entries or shorter names; maintenance removes what is not used"


class Listed(NamedTuple):
    """One bundle in the index."""

    bundle: str
    sha256: str
    size: int  # of the squashfs file, bytes
    entries: dict[str, int]  # entry → bytes of its files
    user: str  # name of the user whose job made it
    uid: int
    replaces: list[str]  # ids of the bundles that it replaces
    supersedes: dict[str, str] = {}  # noqa: RUF012 - never mutated; as in the manifest
    weight: int = 0  # `manifest.weight`, bytes
    number: int = 0  # of entries
    cache: str = ""  # the fact of that name


class Index(NamedTuple):
    """The bundles of a namespace."""

    bundles: list[Listed]  # oldest first
    refused: dict[str, str]  # bundle → why its manifest is unusable


class Head(NamedTuple):
    """What was read at first of an index."""

    listing: Index
    is_named: bool  # it is all of it; else no bundle has its entries
    is_plain: bool  # no entry is in two of its bundles, and none is superseded


def marks(bundles: Iterable[Listed]) -> dict[str, str]:
    """Return the youngest mark of each entry that was superseded or retired; see the module's docstring."""
    youngest: dict[str, str] = {}
    for listed in bundles:
        for entry, mark in listed.supersedes.items():
            if youngest.get(entry, "") < mark:
                youngest[entry] = mark
    return youngest


def is_superseded(listed: Listed, entry: str, youngest: dict[str, str]) -> bool:
    """Return whether readers must not take an entry from this bundle; `youngest` are the marks of its scope."""
    mark = youngest.get(entry, "")
    return listed.bundle < mark and listed.supersedes.get(entry) != mark


def providers(bundles: Sequence[Listed]) -> dict[str, Listed]:
    """Return entry → the bundle of the scope that provides it; `bundles` are ordered oldest first."""
    youngest = marks(bundles)
    provided: dict[str, Listed] = {}
    for listed in bundles:
        for entry in listed.entries:
            if entry not in provided and not is_superseded(listed, entry, youngest):
                provided[entry] = listed
    return provided


def read(directory: str, writer: str) -> Index:
    """Return the index of a namespace, made of the manifests if it cannot be used; empty if there is no such namespace.

    A warm read takes four system calls on the store: open, fstat, read, close. An index of another format is not
    replaced until the next publish, because readers of two versions would rewrite it for ever. With `writer` "" nothing
    is written. Raises `OSError`.
    """
    data = b""
    with suppress(OSError):  # whatever it is, the manifests say the same
        data = read_whole(os.path.join(directory, NAME), LARGEST)
    index = _decode(data)
    if index is not None:
        return index
    try:
        fd = os.open(directory, DIRECTORY)
    except FileNotFoundError:
        return Index([], {})
    try:
        index = _of_manifests(fd)
        if writer and not _is_other_format(data):
            with suppress(OSError):  # a full or read-only store is still readable
                return _written(fd, writer, index, None)
        return index
    except OSError as error:
        error.filename = os.path.join(directory, file_of(error))
        raise
    finally:
        os.close(fd)


def read_head(directory: str) -> Head | None:
    """Return what is at the beginning of a namespace's index; None if it cannot be used.

    With as many system calls on the store as `read`. Raises `OSError` if it cannot be told whether there is such a
    namespace.
    """
    try:
        data, is_whole = _read(os.path.join(directory, NAME), LARGEST, first=FIRST)
    except FileNotFoundError:
        return None if os.path.lexists(directory) else Head(Index([], {}), is_named=True, is_plain=True)
    except OSError:
        return None
    try:
        head = _head(data)
        return Head(_decoded(head, data if is_whole else b""), is_whole, head["plain"] is True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def current(dir_fd: int) -> Index:
    """Return the index of all bundles of the directory, without writing it; raises `OSError`."""
    return _brought_up(dir_fd, _load(dir_fd))


def update(dir_fd: int, writer: str) -> Index:
    """Update the index to list all bundles of the directory, and return it; raises `OSError`."""
    there = _load(dir_fd)
    return _written(dir_fd, writer, _brought_up(dir_fd, there), there)


def rebuild(dir_fd: int, writer: str) -> Index:
    """Rebuild the index from the manifests alone, and return it; raises `OSError`."""
    return _written(dir_fd, writer, _of_manifests(dir_fd), None)


def _written(dir_fd: int, writer: str, index: Index, there: Index | None) -> Index:
    """Write an index unless it is `there`, until it lists the bundles of the directory and no other; return it.

    Another process may have published a bundle meanwhile, or removed one that this index would bring back.
    """
    while True:
        if index != there:
            from warmstart.store.atomic import replace  # not needed to read

            replace(dir_fd, writer, NAME, _encode(index))
            there = index
        index = _covering(dir_fd, index)
        if index == there:
            return index


def _load(dir_fd: int) -> Index | None:
    try:
        return _decode(read_whole(NAME, LARGEST, dir_fd))
    except OSError:  # missing or unreadable: it is replaced
        return None


def _brought_up(dir_fd: int, there: Index | None) -> Index:
    return _of_manifests(dir_fd) if there is None else _covering(dir_fd, there)


def _of_manifests(dir_fd: int) -> Index:
    """Return an index made of the manifests alone; raises `OSError` for one that cannot be read or is damaged."""
    index = _covering(dir_fd, Index([], {}))
    for bundle, problem in index.refused.items():
        if not problem.startswith(OTHER_FORMAT):
            raise OSError(errno.EBADMSG, problem, bundle + MANIFEST)
    return index


def _covering(dir_fd: int, old: Index) -> Index:
    """Return an index of all bundles of the directory; reads only manifests that `old` does not list.

    A listed bundle that the directory lacks is looked up by name, because an NFS client may list a stale directory.
    """
    known = {listed.bundle: listed for listed in old.bundles}
    bundles, refused = [], {}
    there = _manifests(dir_fd)
    for bundle in sorted(there | known.keys()):
        with suppress(FileNotFoundError):  # removed by maintenance
            if bundle not in there:
                os.stat(bundle + MANIFEST, dir_fd=dir_fd, follow_symlinks=False)
            listed = known.get(bundle) or _listed(dir_fd, bundle)
            if isinstance(listed, Listed):
                bundles.append(listed)
            else:
                refused[bundle] = listed
    return Index(bundles, refused)


def _manifests(dir_fd: int) -> set[str]:
    """List the bundles of the directory. It is opened again, because only then NFS revalidates its listing."""
    with closing(os.open(".", DIRECTORY, dir_fd=dir_fd)) as fd:
        names = (name.removesuffix(MANIFEST) for name in os.listdir(fd) if name.endswith(MANIFEST))
        return {name for name in names if is_bundle_id(name)}


def _listed(dir_fd: int, bundle: str) -> Listed | str:
    """Return a bundle as the index lists it, or why its manifest is unusable."""
    try:
        source = read_manifest(dir_fd, bundle)
    except ManifestUnreadable as error:
        return str(error.fields["problem"])
    return listed_of(source)


def listed_of(source: Manifest) -> Listed:
    """Return what the index says of a bundle with this manifest."""
    sizes = {entry: sum(file.size for file in files.values()) for entry, files in source.entries.items()}
    whose = (source.producer.user, source.producer.uid)
    weight = manifest.weight(source)
    marks = (source.replaces, source.supersedes)
    cache = source.facts.get("cache", "")
    return Listed(source.bundle, source.sha256, source.size, sizes, *whose, *marks, weight, len(sizes), cache)


def read_manifest(dir_fd: int, bundle: str) -> Manifest:
    """Return the manifest of a bundle; raises `ManifestUnreadable`, or `FileNotFoundError` if it is gone."""
    try:
        data = read_whole(bundle + MANIFEST, manifest.LARGEST, dir_fd)
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL, errno.ELOOP, errno.EPERM):
            raise ManifestUnreadable(bundle=bundle, problem=str(error.strerror)) from error
        raise
    return manifest.decode(bundle, data)


def read_whole(path: str, limit: int, dir_fd: int | None = None) -> bytes:
    """Read a file that is never written in place, and that nobody but the store's owner can change.

    Raises `OSError`, with `EFBIG` if it has more than `limit` bytes, with `EPERM` if somebody else can change it.
    """
    return _read(path, limit, dir_fd)[0]


def _read(path: str, limit: int, dir_fd: int | None = None, first: int = 0) -> tuple[bytes, bool]:
    """Read a file as `read_whole` does, or its first line and about `first` bytes; return whether that is all of it."""
    try:
        try:
            return _read_once(path, limit, dir_fd, first)
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS: the file was replaced while it was read
                raise
            return _read_once(path, limit, dir_fd, first)
    except OSError as error:
        error.filename = path  # read(2) has only a descriptor
        raise


def _read_once(path: str, limit: int, dir_fd: int | None, first: int) -> tuple[bytes, bool]:
    with closing(os.open(path, REGULAR, dir_fd=dir_fd)) as fd:
        status = os.fstat(fd)
        size = status.st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        if weak := weakness(status, (0, os.geteuid())):  # whoever can change it runs code in the jobs that read it
            raise PermissionError(errno.EPERM, weak, path)
        most = first or size
        data = os.read(fd, most)
        while len(data) < size and not (first and b"\n" in data) and (chunk := os.read(fd, most)):
            data += chunk
        return data, len(data) >= size


def _encode(index: Index) -> bytes:
    names = {entry for listed in index.bundles for entry in listed.entries}
    is_plain = len(names) == sum(listed.number for listed in index.bundles) and not marks(index.bundles)
    rows = [{**listed._asdict(), "entries": {}} for listed in index.bundles]
    head = {"format": FORMAT, "plain": is_plain, "bundles": rows, "refused": index.refused}
    lines = [head, *(listed.entries for listed in index.bundles)]
    return "\n".join(dumps(line, separators=(",", ":")) for line in lines).encode()


def encoded_size(listed: Listed) -> int:
    """Return how many bytes a bundle takes in the index."""
    return len(dumps(listed._asdict(), separators=(",", ":"))) + 1


def _decode(data: bytes) -> Index | None:
    """Decode what `_encode` wrote; return None for anything else."""
    try:
        return _decoded(_head(data), data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _head(data: bytes) -> Json:
    """Return the first line of an index; raises `ValueError` if it is of another format."""
    head = wire.parse(data.partition(b"\n")[0])
    if head["format"] != FORMAT:
        raise ValueError("another format")
    return head


def _decoded(head: Json, data: bytes) -> Index:
    """Return an index by its first line, and the names of entries if `data` is all of it."""
    listed = [listed_row(row) for row in head["bundles"]]
    if data:
        names = [wire.decode(dict[str, int], wire.parse(line)) for line in data.split(b"\n")[1:]]
        listed = [row._replace(entries=entries) for row, entries in zip(listed, names, strict=True)]
        if any(row.number != len(row.entries) for row in listed):
            raise ValueError("not as many entries as it says")
    return Index(listed, wire.decode(dict[str, str], head["refused"]))


def listed_row(row: Json) -> Listed:
    """Decode one bundle; raises `ValueError` if it is invalid, for example an id that could be a path."""
    listed = wire.from_object(Listed, row)
    if not is_bundle_id(listed.bundle) or not is_sha256(listed.sha256) or listed.size < 0:
        raise ValueError(listed.bundle)
    return listed


def _is_other_format(data: bytes) -> bool:
    try:
        return bool(wire.parse(data.partition(b"\n")[0])["format"] != FORMAT)
    except (ValueError, KeyError, TypeError):
        return False


def check_weight(new: Manifest, before: Index) -> None:
    """Raise `HarvestTooLarge` if a bundle, or its user's or all bundles of the namespace with it, weigh too much.

    Bundles that replace others are bounded alone: their sources go soon, and the namespace is lighter without them.
    """
    added = manifest.weight(new)
    _check_bound("the bundle", added, MOST_PER_BUNDLE)
    if not new.replaces:
        check_user_weight(new.producer.user, new.producer.uid, before, added)
        total = sum(listed.weight for listed in before.bundles)
        _check_bound("the namespace", total + added, MOST_PER_NAMESPACE)


def check_user_weight(user: str, uid: int, before: Index, added: int) -> None:
    """Raise `HarvestTooLarge` if a user's bundles of the namespace weigh too much with `added` bytes more."""
    own = sum(listed.weight for listed in before.bundles if (listed.user, listed.uid) == (user, uid))
    _check_bound(f"{user}'s part of the namespace", own + added, MOST_PER_USER)


def _check_bound(what: str, size: int, bound: int) -> None:
    if size > bound:
        problem = f"{what} would have {size} bytes of names and numbers of files; {bound} are allowed"
        raise HarvestTooLarge(problem=problem)


def with_new_id(draft: Draft, new: Manifest, before: Index, dir_fd: int) -> Manifest | None:
    """Set a bundle's id to sort after all others, and mark the entries of which it takes the place.

    Returns None if readers would take nothing from it: the namespace has all its entries, and no base of the draft is
    what readers have now. The clocks of nodes differ: a bundle from a node with a slow clock must not provide entries
    of older bundles.
    """
    provided = providers(before.bundles)
    published = Content(dir_fd)
    taking = _taking_place(draft, new, before.bundles, provided, published)
    there = {entry for entry, listed in provided.items() if not published.is_gone(listed)}
    if not taking and there >= new.entries.keys():
        return None
    named = with_youngest_id(new, before)
    return named._replace(supersedes=dict.fromkeys(taking, named.bundle))


def with_youngest_id(new: Manifest, before: Index) -> Manifest:
    """Set a bundle's id to sort after all others, and the time when it is made."""
    newest = max([*(listed.bundle for listed in before.bundles), *before.refused], default="")
    now = time.time_ns() // 1000
    made = max(now, layout.microseconds_of(newest) + 1) if newest else now
    return new._replace(bundle=layout.bundle_id(made, new.sha256), created=made / 1e6)


def _taking_place(
    draft: Draft, new: Manifest, there: Sequence[Listed], provided: dict[str, Listed], published: Content
) -> list[str]:
    """Return the entries of which the draft's version, or their absence, takes the place.

    Newer work of another job is never replaced: readers must still have what the job was seeded with. A fresh job was
    seeded with nothing. If it made anything that readers have otherwise, all of its entries take the place: layers
    could not show some of them below, and others above, an older bundle.
    """
    own = is_user_scope(new.scope)
    if draft.fresh:
        differs = any(
            published.digest(provided[entry], entry) != content_digest(files) if entry in provided else own
            for entry, files in new.entries.items()
        )
        return sorted(new.entries) if differs else []
    taking = []
    youngest = marks(there)
    for entry, base in draft.based_on.items():
        if base.scope != new.scope:  # its own jobs are a user's only readers
            is_current = own and entry not in youngest
        else:
            is_current = entry in provided and published.digest(provided[entry], entry) == base.content
        if is_current:
            taking.append(entry)
    return sorted(taking)


class Content:
    """The content of published entries; reads each manifest once."""

    def __init__(self, dir_fd: int) -> None:
        self._dir_fd = dir_fd
        self._manifests: dict[str, Manifest | None] = {}
        self._gone: set[str] = set()  # those that were removed since the index was read

    def is_gone(self, listed: Listed) -> bool:
        """Return whether a bundle is known to be gone: `digest` has looked."""
        return listed.bundle in self._gone

    def digest(self, listed: Listed, entry: str) -> str:
        """Return the `content_digest` of an entry of a bundle, or "" if its manifest is gone or unusable."""
        if listed.bundle not in self._manifests:
            self._manifests[listed.bundle] = None
            try:
                self._manifests[listed.bundle] = read_manifest(self._dir_fd, listed.bundle)
            except FileNotFoundError:
                self._gone.add(listed.bundle)
            except ManifestUnreadable:
                pass
        source = self._manifests[listed.bundle]
        files = source.entries.get(entry) if source else None
        return content_digest(files) if files else ""


def with_older_id(new: Manifest, before: Index) -> Manifest | None:
    """Set the id of a bundle to sort just before the oldest that it replaces; return None if one of them is gone."""
    if not {listed.bundle for listed in before.bundles}.issuperset(new.replaces):
        return None
    oldest = layout.microseconds_of(min(new.replaces)) - 1
    return new._replace(bundle=layout.bundle_id(oldest, new.sha256), created=time.time())
