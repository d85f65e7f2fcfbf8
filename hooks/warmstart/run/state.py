"""The record: what the prolog saves for the epilog, in `state/<jobid>/record.json`, readable only by root.

A run has a set of caches for each image that it runs in (docs/adr/0057). The first one's fields stand in the record;
each other one has a file beside it, `set-KEY.json`, which is written while the job runs. An empty file `tree-NAME`
stands for each unpacked image that the run was given (`images.unpacked`).

It is the epilog's only source about the job: comment, restart count and `SPANK_*` can differ between the two hooks, and
users can forge them (Slurm's prolog_epilog.html; seen on 22.05). The record is written before the work that it names,
so after a crash it lists everything that may have to be removed.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errors import ResourceError
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import (
    DIRECTORY,
    NODE_FAULTS,
    FileSystemBroken,
    ensure_dir,
    is_at,
    names_in,
    opened_dir,
    read_small,
    replace_file,
    unlink_if_there,
    wait_flock,
)
from warmstart.lean import TYPE_CHECKING, Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.paths import SETS, reserve_beside

FORMAT = 1
LONGEST = 64 << 20
NAME = "record.json"
_HEAD = 512  # bytes, in which the uid stands, and before it nobody's text
_SET, _JSON = "set-", ".json"  # of the name of another set's file: its key stands between them
MARK = ".of-"  # before the run's name, in its directory
_HELD = "tree-"  # before the name of something on the node's shelf
CLAIMED = "claimed:"  # before the reference of an image that was left to pyxis, in place of a digest
_MACHINES_PIDS = 0xEFFFFFFC  # inode of the first pid namespace (PROC_PID_INIT_INO of linux/proc_ns.h)
_NOT_OURS = frozenset({errno.EFBIG, errno.ELOOP, errno.EINVAL})  # no file that `save` writes: too long, a link, a FIFO


class Reserve(NamedTuple):
    """The node's reserve for a full disk, `host.reserve`, which is loaded only then."""

    path: str

    def write_file(self, dir_fd: int, name: str, data: bytes, mode: int) -> int:
        """Write a file, and return its descriptor."""
        from warmstart.host import reserve

        return reserve.write_file(self.path, dir_fd, name, data, mode)

    def make_directory(self, dir_fd: int | None, name: str, mode: int) -> None:
        """Make a directory."""
        from warmstart.host import reserve

        reserve.make_directory(self.path, dir_fd, name, mode)


class RecordUnreadable(ResourceError):
    """The record cannot be parsed, e.g. after a power failure or on a damaged disk."""

    code = "record-unreadable"
    template = "{path}: {problem}"
    hint = "the record was removed; look below the workspace for directories with the job's id"


class RecordOfOtherRelease(RecordUnreadable):
    """Another release of warmstart wrote the record, in a format that this one does not know. The record stays.

    Its code is the same.
    """

    template = "{path} has format {found}, known is {known}"
    hint = "install the newer release again on this node; its maintenance finishes the run"


class JobBusy(ResourceError):
    """Another hook of the same job is still running on this node."""

    code = "job-busy"
    template = "another hook of job {job_id} is still running on this node"
    hint = "nothing to do: Slurm may repeat an epilog, and the first one handles the job"


class StateFull(ResourceError):
    """There is no space for a job's record or view, or no descriptor or lock to be had for it."""

    code = "state-full"
    template = "no space for warmstart's state {path}: {problem}"
    hint = "free space or inodes there; put the state on a file system that users cannot write"


@contextmanager
def using_state(path: str) -> Iterator[None]:
    """Turn `OSError` from reading or writing warmstart's state into `FileSystemBroken` or `StateFull`."""
    try:
        yield
    except OSError as error:
        cls = FileSystemBroken if error.errno in NODE_FAULTS else StateFull
        raise cls(path=path, problem=error.strerror or str(error)) from error


class SeededBundle(NamedTuple):
    """The entries that a job was seeded with from one bundle."""

    scope: str
    bundle: str  # id
    sha256: str  # of the squashfs file
    entries: list[str]  # empty if they are all of a large bundle's: its manifest names them
    number: int = 0  # of entries, where their names are left out


class Seeded(NamedTuple):
    """What one profile of the job was seeded with."""

    namespace: str
    bundles: list[SeededBundle] = []  # noqa: RUF012 - never mutated

    @property
    def entries(self) -> list[str]:
        """The entries that the job found, without those whose names are left out."""
        return [entry for bundle in self.bundles for entry in bundle.entries]

    @property
    def number(self) -> int:
        """The number of entries that the job found."""
        return len(self.entries) + sum(bundle.number for bundle in self.bundles)


class CacheSet(NamedTuple):
    """The caches of one more image of a run on a node.

    But for `nodes`, each field is as in `Record`, of which this takes the place.
    """

    run_id: str
    key: str
    image: str
    nodes: str = ""  # those that agreed on what is in it, this one among them, as a Slurm hostlist
    head: bool = True
    publish_scope: str = ""
    read_scopes: list[str] = []  # noqa: RUF012 - never mutated, like the rest
    cache: str = ""
    facts: dict[str, str] = {}  # noqa: RUF012
    seeded: dict[str, Seeded] = {}  # noqa: RUF012 - empty while the set is being made: then nobody uses it
    topics: list[str] = []  # noqa: RUF012
    deferred: list[str] = []  # noqa: RUF012
    judged: dict[str, str] = {}  # noqa: RUF012
    began: float = 0.0


class Record(NamedTuple):
    """One run of a job on one node, and the set of caches that its prolog made. Steps of the prolog add to it."""

    run_id: str
    boot_id: str  # `incarnation`
    job_id: int
    view_id: int
    uid: int
    gid: int
    user: str
    account: str
    partition: str
    cluster: str
    node: str
    head: bool  # whether this is the first of the job's nodes
    workspace: str = ""  # the policy's workspace root at the time; "" until one is to be made
    image: str = ""  # digest of the job's first image, sha256:…; claimed:REFERENCE of one that was left to pyxis
    images: dict[str, str] = {}  # noqa: RUF012 - reference → path; never mutated, only replaced
    facts: dict[str, str] = {}  # noqa: RUF012 - from which the namespaces were computed
    seeded: dict[str, Seeded] = {}  # noqa: RUF012 - by profile
    fresh: bool = False  # the job asked to start cold: what it builds takes the place of what is published
    publish_scope: str = ""  # the scope's directory name in the store; "" = nothing is harvested
    read_scopes: list[str] = []  # noqa: RUF012
    cache: str = ""  # the path at which the job sees its cache; "" if it has none
    live: bool = False  # whether it is harvested while it runs, too (`harvest.live`)
    environment: dict[str, str] = {}  # noqa: RUF012 - variables for the job, set by steps
    verdict: str = ""
    topics: list[str] = []  # noqa: RUF012 - of the board in the store, which this node takes down at the run's end
    wings: list[str] = []  # noqa: RUF012 - those whose step has run
    nodelist: str = ""  # the job's nodes as a Slurm hostlist, if there are several: they publish as a whole
    restarts: int = 0  # which run of the job this is, on all of its nodes
    apart: bool = False  # whether what an earlier job of that id left has its directory's name: it has one of its own
    deferred: list[str] = []  # noqa: RUF012 - profiles that the epilog had no time to harvest
    judged: dict[str, str] = {}  # noqa: RUF012 - of those: up to which place (`harvest.collect`) all is judged
    began: float = 0.0  # when its caches were shown, in seconds since the epoch
    ended: float = 0.0  # when its epilog began; 0: that is not known
    died: bool = False  # whether it was a batch job that ended badly, as far as Slurm tells its epilog
    key: str = ""  # of the set that the fields above are about; "" is the first one
    sets: list[CacheSet] = []  # noqa: RUF012 - the others, of the first one's record alone

    @property
    def run_name(self) -> str:
        """Name of the run: `<jobid>.<run>`."""
        return f"{self.job_id}.{self.run_id}"

    @property
    def set_name(self) -> str:
        """The run's name, and the set's key where it is not the first one."""
        return f"{self.run_name}.{self.key}" if self.key else self.run_name

    @property
    def set_directory(self) -> str:
        """The directory of the set's cache and overlays: owned by root, as the run's."""
        return f"{self.run_directory}/{SETS}/{self.key}" if self.key else self.run_directory

    def of(self, other: CacheSet) -> Record:
        """Return the record of another set of this run."""
        fields = other._asdict()
        del fields["nodes"]
        return self._replace(**fields, sets=[])

    def each(self) -> list[Record]:
        """Return the records of all sets that jobs may have used, the first one's first."""
        return [self, *(self.of(other) for other in self.sets if other.seeded)]

    @property
    def all_topics(self) -> list[str]:
        """The topics of all sets."""
        return [*self.topics, *(topic for other in self.sets for topic in other.topics)]

    @property
    def left(self) -> list[str]:
        """The profiles that are still to be harvested, of all sets."""
        return list(dict.fromkeys([*self.deferred, *(name for other in self.sets for name in other.deferred)]))

    @property
    def job_labels(self) -> dict[str, object]:
        """The job, for `Log.for_job`."""
        return {"job_id": self.job_id, "uid": self.uid, "user": self.user, "cluster": self.cluster}

    @property
    def place(self) -> str:
        """Name of the run's directory, the same on all nodes of the job: the id that its tasks see, and which run."""
        return self.run_name if self.apart else f"{self.view_id}.{self.restarts:08x}"

    @property
    def mark(self) -> str:
        """Name of the empty file that says that a directory of that name is this run's on this node."""
        return f"{MARK}{self.run_name}"

    @property
    def going(self) -> str:
        """Name of the run's directory while it is removed, beside the others."""
        return f".{self.run_name}"

    @property
    def run_directory(self) -> str:
        """The job's workspace on this node: owned by root, with directories for the job in it."""
        return f"{self.workspace}/{self.place}"


if TYPE_CHECKING:
    from typing import TypedDict

    class RecordChange(TypedDict, total=False):
        """Fields of `Record` that steps set."""

        apart: bool
        cache: str
        read_scopes: list[str]
        publish_scope: str
        image: str
        images: dict[str, str]
        facts: dict[str, str]
        seeded: dict[str, Seeded]
        fresh: bool
        live: bool
        began: float
        deferred: list[str]
        judged: dict[str, str]
        sets: list[CacheSet]

else:
    RecordChange = dict


def incarnation() -> str:
    """Return the id of this boot and, in a container, of this container. Of a run of another one only files are left.

    A pod that was replaced has the boot id of its machine, and none of the processes and mounts of the one before. Its
    process 1 began at another time.
    """
    with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
        boot = str(file.read(64), "ascii").strip()
    return boot if os.stat("/proc/self/ns/pid").st_ino == _MACHINES_PIDS else f"{boot}.{_began_ticks()}"


def uptime_s() -> float:
    """Return for how long this machine, or this container, has been up."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _began_ticks() / os.sysconf("SC_CLK_TCK")


def _began_ticks() -> int:
    """Return when process 1 began, in clock ticks since boot (proc_pid_stat(5), field 22)."""
    with open("/proc/1/stat", "rb", buffering=0) as file:
        return int(file.read().rpartition(b")")[2].split()[19])


@contextmanager
def job_lock(state: str, job_id: int, deadline: Deadline) -> Iterator[None]:
    """Hold the exclusive lock on the job's state on this node. Raises `JobBusy` at the deadline.

    The lock is a flock on the job's state directory, so no lock file outlives the job. The holder removes the directory
    on exit if it is empty. So a waiter checks that the directory which it locked is still the one of that name.
    """
    path = os.path.join(state, str(job_id))
    with using_state(path):
        fd = _open_locked(path, job_id, deadline)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty: the record is still there
            os.rmdir(path)
        os.close(fd)


def _open_locked(path: str, job_id: int, deadline: Deadline) -> int:
    while True:
        ensure_dir(path, 0o700, reserve=Reserve(reserve_beside(os.path.dirname(path))))
        try:
            fd = os.open(path, DIRECTORY)
        except FileNotFoundError:  # removed between the two calls
            continue
        try:
            if not wait_flock(fd, deadline):
                raise JobBusy(job_id=job_id)
            if is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def save(state: str, record: Record) -> None:
    """Write the record. Raises `FileSystemBroken` or `StateFull`.

    Does not fsync, which takes longer than the rest of a warm prolog. A power failure also ends the job, and leaves
    the record whole or unreadable.
    """
    _save(state, record.job_id, NAME, encode(record._replace(sets=[])))


def save_set(state: str, job_id: int, other: CacheSet) -> None:
    """Write the file of another set. The caller holds the job's lock. Raises as `save`."""
    _save(state, job_id, _name_of(other), dumps({"format": FORMAT, **other._asdict()}).encode())


def forget_set(state: str, job_id: int, other: CacheSet) -> None:
    """Remove the file of another set. The caller holds the job's lock."""
    with suppress(FileNotFoundError), opened_dir(os.path.join(state, str(job_id))) as fd:
        unlink_if_there(_name_of(other), fd)


def note_held(state: str, job_id: int, name: str) -> None:
    """Note that the job's run has something of the node's shelf, by its name, before it is shown. Raises as `save`.

    It has it until `forget`.
    """
    _save(state, job_id, _HELD + name, b"")


def held(state: str) -> dict[str, list[int]]:
    """Return the names of what runs on this node have of its shelf, each with the jobs. Raises `OSError`."""
    found: dict[str, list[int]] = {}
    for job in names_in(state):
        for name in names_in(os.path.join(state, job)) if job.isdecimal() else ():
            if name.startswith(_HELD):
                found.setdefault(name.removeprefix(_HELD), []).append(int(job))
    return found


def _name_of(other: CacheSet) -> str:
    return f"{_SET}{other.key}{_JSON}"


def _save(state: str, job_id: int, name: str, data: bytes) -> None:
    with using_state(state), opened_dir(os.path.join(state, str(job_id))) as fd:
        if len(data) > LONGEST:  # users choose the names of entries; `load` would refuse a longer record
            raise OSError(errno.EFBIG, f"the record has {len(data)} bytes")
        replace_file(fd, name, data, 0o600, durable=False, reserve=Reserve(reserve_beside(state)))


def load(state: str, job_id: int) -> Record | None:
    """Return the job's record with all sets of its run, or None if there is none.

    Raises `RecordUnreadable` if it is damaged, `FileSystemBroken` or `StateFull` if it cannot be read.
    """
    path = os.path.join(state, str(job_id), NAME)
    try:
        with opened_dir(os.path.dirname(path)) as fd:
            record = decode(path, read_small(NAME, LONGEST, fd))
            return record._replace(sets=_sets(fd, record.run_id))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise RecordUnreadable(path=path, problem=error.strerror) from error
        with using_state(path):
            raise


def owner(state: str, job_id: int) -> int | None:
    """Return the uid in the job's record, None if there is none that can be read. Costs the same for any record."""
    with suppress(OSError, ValueError), open(os.path.join(state, str(job_id), NAME), "rb", buffering=0) as file:
        return int(file.read(_HEAD).partition(b'"uid":')[2].partition(b",")[0])
    return None


def encode(record: Record) -> bytes:
    """Return the JSON of a record."""
    sets = [other._asdict() for other in record.sets]  # as objects: releases may know other fields
    return dumps({"format": FORMAT, **record._asdict(), "sets": sets}).encode()


def decode(path: str, data: bytes) -> Record:
    """Parse what `encode` wrote. Raises `RecordUnreadable`, which names `path`, for anything else."""
    try:
        raw = wire.parse(data)
        written = raw.pop("format")
        if written != FORMAT:
            raise RecordOfOtherRelease(path=path, found=ascii(written)[:20], known=FORMAT)
        sets = [wire.from_object(CacheSet, other) for other in raw.pop("sets", [])]
        return wire.from_object(Record, raw)._replace(sets=sets)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordUnreadable(path=path, problem=str(error)) from error


def _sets(fd: int, run_id: str) -> list[CacheSet]:
    """Return a run's other sets. What cannot be read goes with the run's directory, unharvested."""
    found = []
    for name in sorted(os.listdir(fd)):
        if name.startswith(_SET):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                raw = wire.parse(read_small(name, LONGEST, fd))
                if raw.pop("format") == FORMAT:
                    found.append(wire.from_object(CacheSet, raw))
    return [other for other in found if other.run_id == run_id]


def forget(state: str, job_id: int) -> None:
    """Remove the record and temporary files of killed writers. `job_lock` removes the directory.

    The record goes last: it names the run to whoever goes on where this process dies.
    """
    with suppress(FileNotFoundError), opened_dir(os.path.join(state, str(job_id))) as fd:
        for name in sorted(os.listdir(fd), key=NAME.__eq__):
            unlink_if_there(name, fd)
