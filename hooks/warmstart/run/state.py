"""A run of a job on a node, its caches, and their files: what the prolog writes for the epilog. Only root reads it.

    state/<jobid>/      root, 0700; its flock is the lock of the job's hooks, and of who else writes there (`job_lock`)
        run.json        the run and its caches, written before the work that it names
        tree-NAME       an empty file for each thing of the node's shelf that the run has (`shelf.note_held`)

It is the epilog's only source about the job: comment, restart count and `SPANK_*` can differ between the two hooks, and
users can forge them (Slurm's prolog_epilog.html; seen on 22.05). After a crash it names everything that may have to be
removed. It lies in /run and ends with a boot, or with a pod, as all that it names but directories does; maintenance
removes a run's directory that no file here names.
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import (
    DIRECTORY,
    NODE_FAULTS,
    FileSystemBroken,
    ensure_dir,
    is_at,
    opened_dir,
    read_small,
    replace_file,
    unlink_if_there,
    wait_flock,
)
from warmstart.lean import Iterator, Mapping, NamedTuple, contextmanager, dumps, suppress
from warmstart.paths import CACHES
from warmstart.slurm.nodes import first

FORMAT = 1
LONGEST = 4 << 20  # bytes, in memory; users choose the names of entries
NAME = "run.json"
_HEAD = 512  # bytes, in which the uid stands, and before it nobody's text
MARK = ".of-"  # before the run's name, in its directory
CLAIMED = "claimed:"  # before the reference of an image that was left to pyxis, in place of a digest


class RunUnreadable(ResourceError):
    """Another release of warmstart wrote a run's file, in a form that this one does not know. It stays."""

    code = "run-unreadable"
    template = "{path}: {problem}"
    hint = "install that release again on this node, and its maintenance finishes the run; else it goes with the boot"


class JobBusy(ResourceError):
    """Another hook of the same job is still running on this node."""

    code = "job-busy"
    template = "another hook of job {job_id} is still running on this node"
    hint = "nothing to do: Slurm may repeat an epilog, and the first one handles the job"


class StateFull(ResourceError):
    """There is no space for a run's file or a job's view, or no descriptor or lock to be had for it."""

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
    sha256: str  # of its squashfs file
    entries: list[str]  # empty if they are all of a large bundle's: its manifest names them
    number: int = 0  # of entries, where their names are left out


class Seeded(NamedTuple):
    """What one profile of the job was seeded with."""

    namespace: str
    bundles: list[SeededBundle] = []  # noqa: RUF012 - topmost first; never mutated
    hidden: list[str] = []  # noqa: RUF012 - paths of theirs that the job was not given, where no names are there

    @property
    def number(self) -> int:
        """The number of entries that the job found."""
        return sum(len(bundle.entries) + bundle.number for bundle in self.bundles)


class Caches(NamedTuple):
    """The private caches of one image of a run, on one node."""

    key: str = ""  # of the image: "" is the job's own
    image: str = ""  # digest, sha256:…; claimed:REFERENCE of one that was left to pyxis; "" if the job names none
    nodes: str = ""  # that agree on what is in them, this one among them, as a Slurm hostlist; "": those of the run
    read_scopes: list[str] = []  # noqa: RUF012 - never mutated, like the rest: only replaced
    publish_scope: str = ""  # the scope's directory name in the store; "" = nothing is harvested
    path: str = ""  # at which the job sees them; "" if it has none
    facts: dict[str, str] = {}  # noqa: RUF012 - from which the namespaces were computed
    seeded: dict[str, Seeded] = {}  # noqa: RUF012 - by profile; empty while they are being made: then nobody uses them
    left: list[str] = []  # noqa: RUF012 - profiles that are to be harvested, once the run has ended


class Run(NamedTuple):
    """One run of a job on one node. Steps of the prolog add to it."""

    run_id: str
    job_id: int
    view_id: int  # the job's id as its tasks see it
    uid: int
    gid: int
    user: str
    account: str
    partition: str
    cluster: str
    node: str
    nodelist: str = ""  # the job's nodes as a Slurm hostlist, if there are several: they publish as a whole
    restarts: int = 0  # which run of the job this is, on all of its nodes
    fresh: bool = False  # the job asked to start cold: what it builds takes the place of what is published
    workspace: str = ""  # the policy's workspace root at the time; "" until one is to be made
    apart: bool = False  # whether what an earlier job of that id left has its directory's name: it has one of its own
    images: dict[str, str] = {}  # noqa: RUF012 - reference → path
    environment: dict[str, str] = {}  # noqa: RUF012 - variables for the job, set by steps
    topics: list[str] = []  # noqa: RUF012 - of the board in the store, which this node takes down at the run's end
    wings: list[str] = []  # noqa: RUF012 - those whose step has run
    live: bool = False  # whether it is harvested while it runs, too (`harvest.live`)
    began: float = 0.0  # when its caches were shown, in seconds since the epoch
    own: Caches = Caches()  # of the job's own image, or of the host
    others: list[Caches] = []  # noqa: RUF012 - of images that only steps name
    moved: bool = False  # whether its directory has its last name: it waits to be harvested, or is removed

    @property
    def caches(self) -> list[Caches]:
        """The caches of all images."""
        return [self.own, *self.others]

    def with_caches(self, caches: Mapping[str, Caches]) -> Run:
        """Return the run with other caches in place of those with these keys."""
        own, *others = [caches.get(one.key, one) for one in self.caches]
        return self._replace(own=own, others=others)

    @property
    def head(self) -> bool:
        """Whether this is the first of the job's nodes."""
        return self.leads(Caches())

    def leads(self, caches: Caches) -> bool:
        """Return whether this is the first of the nodes that agree on what is in these caches."""
        return first(caches.nodes or self.nodelist) in {"", self.node}

    @property
    def left(self) -> list[str]:
        """The profiles that are still to be harvested."""
        return list(dict.fromkeys(name for caches in self.caches for name in caches.left))

    @property
    def job_labels(self) -> dict[str, object]:
        """The job, for `Log.for_job`."""
        return {"job_id": self.job_id, "uid": self.uid, "user": self.user, "cluster": self.cluster}

    @property
    def name(self) -> str:
        """Name of the run: `<jobid>.<run>`."""
        return f"{self.job_id}.{self.run_id}"

    @property
    def place(self) -> str:
        """Name of the run's directory, the same on all nodes of the job: the id that its tasks see, and which run."""
        if self.moved:
            return self.going
        return self.name if self.apart else f"{self.view_id}.{self.restarts:08x}"

    @property
    def mark(self) -> str:
        """Name of the empty file that says that a directory of that name is this run's on this node."""
        return f"{MARK}{self.name}"

    @property
    def going(self) -> str:
        """Name of the run's directory when it has ended, beside the others."""
        return f".{self.name}"

    @property
    def directory(self) -> str:
        """The job's workspace on this node: owned by root, with directories for the job in it."""
        return f"{self.workspace}/{self.place}"

    def directory_of(self, caches: Caches) -> str:
        """Return the directory of `cache/` and its overlays, which root owns."""
        return f"{self.directory}/{CACHES}/{caches.key}" if caches.key else self.directory


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
        with suppress(OSError):  # not empty: the run is still there
            os.rmdir(path)
        os.close(fd)


def _open_locked(path: str, job_id: int, deadline: Deadline) -> int:
    while True:
        ensure_dir(path, 0o700)
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


def save(state: str, run: Run) -> None:
    """Write the run. The caller holds the job's lock. Raises `FileSystemBroken` or `StateFull`.

    Does not fsync, which takes longer than the rest of a warm prolog. A power failure also ends the job, and leaves
    the file whole or unreadable.
    """
    data = encode(run)
    with using_state(state), opened_dir(os.path.join(state, str(run.job_id))) as fd:
        if len(data) > LONGEST:  # `load` would refuse it
            raise OSError(errno.EFBIG, f"it has {len(data)} bytes")
        replace_file(fd, NAME, data, 0o600, durable=False)


def load(state: str, job_id: int) -> Run | None:
    """Return the job's run, or None if there is none.

    Raises `RunUnreadable`, and `FileSystemBroken` or `StateFull` if the disk does not give it.
    """
    path = os.path.join(state, str(job_id), NAME)
    with using_state(path), suppress(FileNotFoundError), opened_dir(os.path.dirname(path)) as fd:
        return decode(path, read_small(NAME, LONGEST, fd))
    return None


def owner(state: str, job_id: int) -> int | None:
    """Return the uid of the job's run, None if there is none that can be read. Costs the same for any run."""
    with suppress(OSError, ValueError), open(os.path.join(state, str(job_id), NAME), "rb", buffering=0) as file:
        return int(file.read(_HEAD).partition(b'"uid":')[2].partition(b",")[0])
    return None


def encode(run: Run) -> bytes:
    """Return the JSON of a run."""
    # Caches as objects, too: releases may know other fields.
    caches = {"own": run.own._asdict(), "others": [other._asdict() for other in run.others]}
    return dumps({"format": FORMAT, **run._asdict(), **caches}).encode()


def decode(path: str, data: bytes) -> Run:
    """Parse what `encode` wrote. Raises `RunUnreadable`, which names `path`, for anything else."""
    try:
        raw = wire.parse(data)
        written = raw.pop("format")
        if written != FORMAT:
            raise ValueError(f"it has format {ascii(written)[:20]}, known is {FORMAT}")
        own, *others = [wire.from_object(Caches, caches) for caches in (raw.pop("own"), *raw.pop("others"))]
        return wire.from_object(Run, {**raw, "own": [*Caches()]})._replace(own=own, others=others)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunUnreadable(path=path, problem=str(error)) from error


def forget(state: str, job_id: int) -> None:
    """Remove the run's files, and temporary ones of killed writers. `job_lock` removes the directory.

    The run's own file goes last: it names the run to whoever goes on where this process dies.
    """
    with suppress(FileNotFoundError), opened_dir(os.path.join(state, str(job_id))) as fd:
        for name in sorted(os.listdir(fd), key=NAME.__eq__):
            unlink_if_there(name, fd)
