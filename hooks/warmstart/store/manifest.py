"""The manifest of a bundle: its entries, producer and namespace. docs/store-format.md describes the format.

A manifest has only what root knows itself (docs/architecture.md, rule 3). It is written once and never changed. Every
identity uses this module. Hot path.
"""

from __future__ import annotations

from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.wire import Json
from warmstart.lean import Iterable, Mapping, NamedTuple, dumps, loads, sha256
from warmstart.store.layout import is_bundle_id, is_plain_path

FORMAT = 1
OTHER_FORMAT = "its format is"  # start of the problem in `ManifestUnreadable` for another format
LARGEST = 64 << 20  # bytes of JSON
# Bounds of `weight` at publication, in bytes: whoever reads a bundle or an index holds all of its names in memory, and
# a job chooses the names (docs/threats.md, row 24). 50,000 entries of two files with ordinary names weigh 30 MB.
MOST_ENTRIES = 50_000  # of one bundle, and of what is harvested from one job
MOST_PER_BUNDLE = 32 << 20
MOST_PER_USER = 64 << 20  # of one user's bundles in one namespace
MOST_PER_NAMESPACE = 128 << 20

LATEST_NS = (2**32 - 1) * 1_000_000_000  # a squashfs keeps seconds in 32 bits

# Most bytes that JSON takes besides the name: for a file, for an entry, for a superseded entry, for a bundle.
_PER_FILE, _PER_ENTRY, _PER_MARK, _PER_BUNDLE = 120, 40, 60, 512

_HEX = frozenset("0123456789abcdef")


class ManifestUnreadable(StoreError):
    """A manifest is damaged, or of a format that this version of warmstart does not know."""

    code = "manifest-unreadable"
    template = "bundle {bundle}: {problem}"
    hint = "upgrade warmstart on this node, or remove the bundle if it is damaged"


class File(NamedTuple):
    """One file of an entry, as it was when it was harvested."""

    size: int  # bytes
    sha256: str
    mtime_ns: int  # a squashfs keeps whole seconds only


Entries = dict[str, dict[str, File]]  # entry → path relative to the profile's directory → file


class Producer(NamedTuple):
    """The job whose files a bundle holds."""

    job: int
    user: str
    uid: int
    node: str
    cluster: str


class Origin(NamedTuple):
    """The producer of an entry in a compacted or promoted bundle, and the bundle that first published it."""

    job: int
    user: str
    uid: int
    node: str
    cluster: str
    scope: str
    bundle: str  # id


class Base(NamedTuple):
    """What a job was seeded with for an entry that it then changed or removed."""

    scope: str
    content: str  # `content_digest` of the entry's files


class Draft(NamedTuple):
    """What a publisher knows about a bundle before the bundle has an id."""

    producer: Producer
    facts: dict[str, str]
    entries: Entries
    origins: dict[str, Origin] = {}  # noqa: RUF012 - never mutated
    replaces: list[str] = []  # noqa: RUF012 - never mutated
    supersedes: dict[str, str] = {}  # noqa: RUF012 - of a compacted bundle; as in `Manifest`
    based_on: dict[str, Base] = {}  # noqa: RUF012 - entries that the job changed, or removed if `entries` lacks them
    fresh: bool = False  # the job asked to start cold: what it built takes the place of what is published


class Manifest(NamedTuple):
    """The description of one bundle, as in the store."""

    bundle: str
    sha256: str  # of the squashfs file
    size: int  # of the squashfs file, bytes
    created: float  # seconds since the epoch, the publisher's clock
    scope: str
    profile: str
    namespace: str
    producer: Producer
    facts: dict[str, str]  # the namespace is their hash
    entries: Entries
    origins: dict[str, Origin] = {}  # noqa: RUF012 - never mutated
    replaces: list[str] = []  # noqa: RUF012 - never mutated; ids of the bundles that it replaces
    supersedes: dict[str, str] = {}  # noqa: RUF012 - entry → id; readers do not take it from bundles before that id


def content_digest(files: dict[str, File]) -> str:
    """Return a hash of an entry's content: paths, sizes and hashes of its files, without times."""
    content = sorted((path, file.size, file.sha256) for path, file in files.items())
    digest: str = sha256(dumps(content).encode()).hexdigest()
    return digest


def entry_weight(entry: str, paths: Iterable[str]) -> int:
    """Return the most bytes that an entry takes as JSON, with every name in full."""
    return _length(entry) + _PER_ENTRY + sum(_length(path) + _PER_FILE for path in paths)


def mark_weight(entry: str) -> int:
    """Return the most bytes that a superseded entry takes as JSON."""
    return _length(entry) + _PER_MARK


def weight(manifest: Manifest) -> int:
    """Return the most bytes that names and numbers of a bundle's files and marks take as JSON."""
    entries = sum(entry_weight(entry, files) for entry, files in manifest.entries.items())
    marks = sum(map(mark_weight, manifest.supersedes))
    return _PER_BUNDLE + entries + marks + _PER_MARK * len(manifest.replaces)


def _length(name: str) -> int:
    return len(dumps(name)) - 2


def is_sha256(text: object) -> bool:
    """Return whether a value is a SHA-256 in lower-case hexadecimal."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)


def encode(manifest: Manifest, more: Mapping[str, Json] | None = None) -> bytes:
    """Encode a manifest as JSON, as it is stored; `more` are fields that `decode` does not know."""
    entries = {
        entry: {_relative(entry, path): file for path, file in sorted(files.items())}
        for entry, files in sorted(manifest.entries.items())
    }
    origins = {entry: origin._asdict() for entry, origin in manifest.origins.items()}
    nested = {"producer": manifest.producer._asdict(), "entries": entries, "origins": origins}
    return dumps({"format": FORMAT, **manifest._asdict(), **nested, **(more or {})}, separators=(",", ":")).encode()


def _relative(entry: str, path: str) -> str:
    """Return a file's name as in a manifest: if it begins with its entry's name, `/` in place of that."""
    return "/" + path[len(entry) :] if path.startswith(entry) else path


def _in_full(entry: str, name: str) -> str:
    return entry + name[1:] if name.startswith("/") else name


def decode(bundle: str, data: bytes) -> Manifest:
    """Decode and check the manifest of `bundle`; raises `ManifestUnreadable` if it is unusable."""
    try:
        raw = loads(data)
        written = raw.pop("format")
        if written != FORMAT:
            raise ManifestUnreadable(bundle=bundle, problem=f"{OTHER_FORMAT} {written!r}, known is {FORMAT}")
        raw["producer"] = wire.from_object(Producer, raw["producer"])
        raw["entries"] = {entry: _files(entry, files) for entry, files in raw["entries"].items()}
        origins = raw.get("origins", {})
        raw["origins"] = {entry: wire.from_object(Origin, origin) for entry, origin in origins.items()}
        manifest = Manifest(**wire.known_fields(Manifest, raw))
        _check_types(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(bundle, error) from error
    return checked(bundle, manifest)


def checked(bundle: str, manifest: Manifest) -> Manifest:
    """Return the manifest if it follows docs/store-format.md; raises `ManifestUnreadable` otherwise."""
    try:
        _check(bundle, manifest)
    except (ValueError, TypeError) as error:
        raise _unreadable(bundle, error) from error
    return manifest


def _unreadable(bundle: str, error: Exception) -> ManifestUnreadable:
    return ManifestUnreadable(bundle=bundle, problem=f"not a manifest: {error!r:.200}")


def _files(entry: str, raw: dict[str, Json]) -> dict[str, File]:
    return {_in_full(entry, name): File(*file) for name, file in raw.items()}


def _check_types(manifest: Manifest) -> None:
    """Check the types of fields that `decode` takes from JSON unchanged; raises `WireMismatch`."""
    wire.decode(int, manifest.size)
    wire.decode(float, manifest.created)
    wire.decode(list[str], [manifest.scope, manifest.profile, manifest.namespace])
    wire.decode(dict[str, str], manifest.facts)
    wire.decode(list[str], manifest.replaces)
    wire.decode(dict[str, str], manifest.supersedes)


def _check(bundle: str, manifest: Manifest) -> None:
    if manifest.bundle != bundle or not is_bundle_id(bundle):
        raise ValueError("it names another bundle")
    if manifest.size < 0 or not is_sha256(manifest.sha256):
        raise ValueError("invalid size or sha256")
    if not all(map(is_bundle_id, manifest.replaces)):
        raise ValueError("invalid bundle id in replaces")
    if not all(is_plain_path(entry) and is_bundle_id(mark) for entry, mark in manifest.supersedes.items()):
        raise ValueError("invalid entry or bundle id in supersedes")
    seen: set[str] = set()
    for entry, files in manifest.entries.items():
        if not files or not all(map(is_plain_path, (entry, *files))):
            raise ValueError("invalid names of files")
        if not seen.isdisjoint(files):
            raise ValueError("two entries share a file")
        if not all(map(_is_in_form, files.values())):
            raise ValueError("invalid size, sha256 or mtime of a file")
        seen.update(files)


def _is_in_form(file: File) -> bool:
    # These numbers reach system calls in every job's prolog: `utimensat` refuses the year 10^13.
    numbers = type(file.size) is int and type(file.mtime_ns) is int
    return numbers and file.size >= 0 and 0 <= file.mtime_ns <= LATEST_NS and is_sha256(file.sha256)
