"""The spool: bundles on this node that could not be published yet. A later epilog or maintenance retries them.

    <node>/spool/                              root, 0700
        <microseconds>.<uid>.<job>.<run>.<profile>/  one bundle of a user's job; the names sort by age
            bundle.sqsh  draft.json

A bundle enters the spool by the rename of a complete, synced directory, and is removed once it is published.
Publishing is idempotent: after a crash between the two, the next attempt finds the entries published and removes the
bundle. Only one process at a time publishes or drops; it holds a flock on the directory.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import WarmstartError
from warmstart.host import files, wire
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import (
    DiskFailed,
    closing,
    copy_hashed,
    disk_errors,
    ensure_dir,
    open_regular,
    opened_dir,
    read_small,
    remove_tree,
    replace_file,
)
from warmstart.host.identity import WorkerSilent
from warmstart.host.space import Held, fair_order
from warmstart.host.wire import Json
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.policy.keys import Maintenance
from warmstart.store import bundles, manifest, parts
from warmstart.store.bundles import Published, QuotaExceeded
from warmstart.store.client import StoreClient
from warmstart.store.index import HarvestTooLarge
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Base, Draft, Entries, Producer
from warmstart.store.parts import RunParts

BUNDLE = "bundle.sqsh"
DRAFT = "draft.json"
NO_ROOM = "harvest.spool is used up"
DAMAGED = "damaged"
FORMAT = 1  # of draft.json; not written, so one that has a number is of a newer release

_REMOVAL = 10.0  # seconds


class _OtherFormat(ValueError):
    """Another release wrote the draft, in a format that this one does not know."""


class Spooled(NamedTuple):
    """Where a bundle is to be published, and what its manifest is made of.

    Of a run on several nodes it is to be handed in (`store.parts`). A run's last item then says that the node hands in
    nothing more: it has no profile and an empty bundle.
    """

    scope: str
    profile: str
    namespace: str
    draft: Draft
    run: str  # <job>.<run>.<profile>, the end of its name in the spool
    sha256: str = ""  # of the squashfs, set by `add`
    parts: str = ""  # the name of the run's directory, if it is to be handed in
    nodelist: str = ""  # the job's nodes


class Delivered(NamedTuple):
    """One bundle that left the spool."""

    name: str
    spooled: Spooled | None  # None if its draft.json is damaged
    published: Published | None  # None if it was dropped or handed in
    reason: str  # why it was dropped, or ""

    @property
    def job_labels(self) -> dict[str, object]:
        """What is known of the job that made it, for `Log.for_job`."""
        if self.spooled:
            producer = self.spooled.draft.producer
            return {"job_id": producer.job, "uid": producer.uid, "user": producer.user, "cluster": producer.cluster}
        known = zip(("uid", "job_id"), self.name.split(".")[1:3], strict=False)
        return {key: int(word) for key, word in known if word.isdecimal()}

    @property
    def run(self) -> str:
        """The run that made it, as `Run.name`; "" if the name does not tell."""
        return ".".join(self.name.split(".")[2:4])


def add(directory: str, stage: str, spooled: Spooled, limit: int) -> list[Delivered]:
    """Move `bundle.sqsh` from the run's stage into the spool; return the bundles that were dropped.

    `limit` is the size of the whole spool in bytes. Beyond it bundles of the user who has most there are dropped, the
    oldest first; the new one, too, if it alone is larger. Raises `DiskFailed` if the disk fails.
    """
    with disk_errors(directory):
        ensure_dir(directory, 0o700)
        with opened_dir(directory) as parent, opened_dir(stage) as source:
            _prepare(source, spooled)
            name = f"{time.time_ns() // 1000:020d}.{spooled.draft.producer.uid}.{spooled.run}"
            os.rename("spooled", name, src_dir_fd=source, dst_dir_fd=parent)
            os.fsync(parent)
            with _exclusive(parent) as is_ours:
                return _make_room(parent, limit) if is_ours else []


def _prepare(stage: int, spooled: Spooled) -> None:
    """Make the directory `spooled` in the stage, complete and synced to disk."""
    os.mkdir("spooled", 0o700, dir_fd=stage)
    with opened_dir("spooled", stage) as item:
        os.rename(BUNDLE, BUNDLE, src_dir_fd=stage, dst_dir_fd=item)
        with closing(open_regular(BUNDLE, item)) as bundle:
            os.fsync(bundle)
            spooled = spooled._replace(sha256=copy_hashed(bundle).sha256)
        replace_file(item, DRAFT, _encode(spooled), 0o600)


def _make_room(parent: int, limit: int) -> list[Delivered]:
    names = sorted(os.listdir(parent))
    held = [Held(name.split(".")[1], _size(parent, name)) for name in names]
    total = sum(item.size for item in held)
    dropped = []
    for number in fair_order(held):
        if total <= limit:
            break
        spooled = None
        with suppress(OSError, ValueError), opened_dir(names[number], parent) as item:
            spooled = _load(item)
        remove_tree(parent, names[number], after(_REMOVAL))
        total -= held[number].size
        dropped.append(Delivered(names[number], spooled, None, NO_ROOM))
    return dropped


def holds(directory: str, run: str) -> bool:
    """Return whether something of a run is in the spool; `run` as `Run.name`."""
    try:
        return any(".".join(name.split(".")[2:4]) == run for name in os.listdir(directory))
    except FileNotFoundError:
        return False


def held(directory: str) -> list[int]:
    """Return the size of each bundle in the spool, in bytes."""
    try:
        with opened_dir(directory) as parent:
            return [_size(parent, name) for name in os.listdir(parent)]
    except FileNotFoundError:
        return []


def _size(parent: int, name: str) -> int:
    size = 0
    for file in (BUNDLE, DRAFT):
        with suppress(OSError):
            size += os.stat(f"{name}/{file}", dir_fd=parent, follow_symlinks=False).st_size
    return size


def deliver(directory: str, store: StoreClient, rules: Maintenance, deadline: Deadline) -> Iterator[Delivered]:
    """Publish the spooled bundles, oldest first, and yield each before it leaves the spool: then its event is written.

    `rules` has the scopes' quotas. Bundles that can never be published are dropped. Ends at the deadline; the rest
    stays in the spool. Yields nothing while another process holds the lock. A bundle that the store does not take, or
    that the node's disk does not give back, keeps no other: the first such error is raised at the end, `DiskFailed`
    for the disk. A store that does not answer ends it.
    """
    failure: WarmstartError | None = None
    with (
        disk_errors(directory),
        suppress(FileNotFoundError),
        opened_dir(directory) as parent,
        _exclusive(parent) as is_ours,
    ):
        for name in sorted(os.listdir(parent)) if is_ours else []:
            if deadline.expired():
                break
            try:
                with disk_errors(f"{directory}/{name}"):
                    delivered = _deliver_one(parent, name, store, rules, deadline)
            except _OtherFormat:  # stays for that release
                continue
            except WorkerSilent:
                raise
            except WarmstartError as error:
                failure = failure or error
                continue
            yield delivered
            try:
                with disk_errors(f"{directory}/{name}"):
                    remove_tree(parent, name, after(_REMOVAL))
            except DiskFailed as error:
                failure = failure or error
    if failure:
        raise failure


def _deliver_one(parent: int, name: str, store: StoreClient, rules: Maintenance, deadline: Deadline) -> Delivered:
    spooled = None
    published = None
    reason = ""
    try:
        with opened_dir(name, parent) as item:
            spooled = _load(item)
            with closing(open_regular(BUNDLE, item)) as bundle:
                if copy_hashed(bundle).sha256 != spooled.sha256:
                    raise ValueError(DAMAGED)
                published = _hand_over(spooled, bundle, store, rules, deadline)
    except _OtherFormat:
        raise
    except (QuotaExceeded, HarvestTooLarge, ValueError, TypeError, FileNotFoundError) as error:
        reason = str(error) if isinstance(error, WarmstartError) else DAMAGED
    return Delivered(name, spooled, published, reason)


def _hand_over(
    spooled: Spooled, bundle: int, store: StoreClient, rules: Maintenance, deadline: Deadline
) -> Published | None:
    """Publish a bundle, or hand it in; returns None if it was handed in."""
    namespace = Namespace(store.path, spooled.scope, spooled.profile, spooled.namespace)
    quota = bundles.quota(spooled.scope, rules)
    if not spooled.parts:
        return store.publish(namespace, bundle, spooled.draft, deadline, quota=quota)
    place = RunParts(store.path, spooled.parts)
    if spooled.profile:
        store.hand_in(place, namespace, bundle, spooled.draft, spooled.nodelist, deadline, quota=quota)
    else:
        store.run_in(deadline, parts.finish, place, spooled.draft.producer.node, spooled.nodelist)
    return None


def _load(item: int) -> Spooled:
    try:
        raw = read_small(DRAFT, manifest.LARGEST, item)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(DAMAGED) from error
    return _decode(raw)


def _encode(spooled: Spooled) -> bytes:
    draft = spooled.draft
    text = {
        "producer": draft.producer._asdict(),
        "facts": draft.facts,
        "entries": draft.entries,
        "based_on": draft.based_on,
        "fresh": draft.fresh,
    }
    return dumps({**spooled._asdict(), "draft": text}).encode()


def _decode(data: bytes) -> Spooled:
    """Decode what `_encode` wrote; raises `ValueError` for anything else."""
    raw: Json = wire.parse(data)
    try:
        if raw.get("format", FORMAT) != FORMAT:
            raise _OtherFormat
        written = raw.pop("draft")
        draft = Draft(
            wire.from_object(Producer, written["producer"]),
            wire.decode(dict[str, str], written["facts"]),
            wire.decode(Entries, written["entries"]),
            based_on=wire.decode(dict[str, Base], written["based_on"]),
            fresh=wire.decode(bool, written["fresh"]),
        )
        return Spooled(**wire.decode(dict[str, str], wire.known_fields(Spooled, raw)), draft=draft)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(DAMAGED) from error


@contextmanager
def _exclusive(directory: int) -> Iterator[bool]:
    """Try to take the lock for a `with`; yields whether this process may publish and drop."""
    is_ours = files.try_flock(directory)
    try:
        yield is_ours
    finally:
        if is_ours:
            files.unlock(directory)
