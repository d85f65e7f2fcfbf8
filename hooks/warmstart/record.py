"""What the prolog writes down for the epilog: `state/<jobid>/record.json`, readable by root alone.

The epilog reads nothing else about the job: comment, restart count and `SPANK_*` can differ between the two hooks, and
users can forge them (reference: Slurm's prolog_epilog.html; seen on 22.05). The record is written before the work that
it names, so whoever finds it after a crash knows what there may be to clean.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypedDict

from warmstart.errors import NodeError, ResourceError
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.host.files import (
    DIRECTORY,
    NODE_FAULTS,
    ensure_dir,
    is_at,
    opened_dir,
    read_small,
    replace_file,
    unlink_if_there,
    wait_flock,
)

FORMAT = 1
LONGEST = 64 << 20
NAME = "record.json"


class RecordUnreadable(ResourceError):
    """The record is not what warmstart wrote: a power failure, a damaged disk, or a downgrade."""

    code = "record-unreadable"
    template = "{path}: {problem}"
    hint = "it was removed; look for what the job left below the workspace, under its job id"


class JobBusy(ResourceError):
    """Another hook of the same job is still at work on this node."""

    code = "job-busy"
    template = "another hook of job {job_id} is still at work on this node"
    hint = "Slurm may repeat an epilog; this one left the job to the first"


class StateUnusable(NodeError):
    """The file system of warmstart's own state is broken or read-only."""

    code = "state-unusable"
    template = "cannot write warmstart's state {path}: {problem}"
    hint = "repair or remount the file system, then resume the node"


class StateFull(ResourceError):
    """No room for a job's record or view."""

    code = "state-full"
    template = "no room for warmstart's state {path}: {problem}"
    hint = "free space or inodes there; users should not be able to write that file system"


@contextmanager
def writing_state(path: str) -> Iterator[None]:
    """Say whose fault it is when our own state can't be written."""
    try:
        yield
    except OSError as error:
        cls = StateUnusable if error.errno in NODE_FAULTS else StateFull
        raise cls(path=path, problem=error.strerror or str(error)) from error


class Seeded(NamedTuple):
    """What one profile of the job was seeded with."""

    namespace: str
    entries: list[str]
    based_on: list[str] = []  # noqa: RUF012 - where the newest wins: scope and bundle that the job began with


class Record(NamedTuple):
    """One run of a job on one node; grows from step to step."""

    run_id: str
    boot_id: str
    job_id: int
    view_id: int
    uid: int
    gid: int
    user: str
    account: str
    partition: str
    cluster: str
    node: str
    head: bool  # whether this node harvests for the job
    workspace: str = ""  # the policy's workspace root at the time; "" until one is to be made
    image: str = ""  # digest of the job's first image, sha256:…
    images: dict[str, str] = {}  # noqa: RUF012 - reference → path; never mutated, only replaced
    facts: dict[str, str] = {}  # noqa: RUF012 - what the namespaces were computed from
    seeded: dict[str, Seeded] = {}  # noqa: RUF012 - by profile
    publish_scope: str = ""  # the scope's directory name in the store; "" = nothing is harvested
    read_scopes: list[str] = []  # noqa: RUF012
    cache: str = ""  # the path at which the job sees its cache; "": it has none
    environment: dict[str, str] = {}  # noqa: RUF012 - what else the job will see
    verdict: str = ""
    meeting: str = ""  # the store's file in which this node told the job's others the rendezvous
    keep: bool = False  # whether the job's TMPDIR stays after it
    deferred: list[str] = []  # noqa: RUF012 - profiles that the epilog had no time for

    @property
    def run_name(self) -> str:
        """Name of the run's directory: `<jobid>.<run>`."""
        return f"{self.job_id}.{self.run_id}"

    @property
    def run_directory(self) -> str:
        """The job's workspace on this node: root's directory, what lies in it is the job's."""
        return f"{self.workspace}/{self.node}/{self.run_name}"


class RecordChange(TypedDict, total=False):
    """Fields of `Record` that steps set."""

    cache: str
    image: str
    images: dict[str, str]
    facts: dict[str, str]
    seeded: dict[str, Seeded]
    meeting: str
    deferred: list[str]


def boot_id() -> str:
    """Return the id of the running kernel: of what a record of another boot names, only files are left."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@contextmanager
def job_lock(state: str, job_id: int, deadline: Deadline) -> Iterator[None]:
    """Keep other hooks of the job on this node out; `JobBusy` at the deadline.

    The lock is the job's state directory itself, so no lock file outlives the job. Who leaves removes the directory
    while it holds the lock, if it is empty; so who waited checks that it has locked the directory of that name.
    """
    path = os.path.join(state, str(job_id))
    fd = _open_locked(path, job_id, deadline)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty: there is a record, and the directory stays
            os.rmdir(path)
        os.close(fd)


def _open_locked(path: str, job_id: int, deadline: Deadline) -> int:
    while True:
        with writing_state(path):
            ensure_dir(path, 0o700)
        try:
            fd = os.open(path, DIRECTORY)
        except FileNotFoundError:  # removed between the two calls
            continue
        try:
            if not wait_flock(fd, deadline):
                raise JobBusy(job_id=job_id)
        except BaseException:
            os.close(fd)
            raise
        if is_at(fd, path):
            return fd
        os.close(fd)


def save(state: str, record: Record) -> None:
    """Write the record; `StateUnusable` or `StateFull`.

    Without fsync, which costs more than the rest of a warm prolog: a power failure ends the job as well, and the
    record is then whole or unreadable.
    """
    data = encode(record)
    with writing_state(state), opened_dir(os.path.join(state, str(record.job_id))) as fd:
        if len(data) > LONGEST:  # users choose the names of entries; what can't be read again is not written
            raise OSError(errno.EFBIG, f"the record has {len(data)} bytes")
        replace_file(fd, NAME, data, 0o600, durable=False)


def load(state: str, job_id: int) -> Record | None:
    """Return the job's record, None when there is none; `RecordUnreadable` when it is damaged."""
    path = os.path.join(state, str(job_id), NAME)
    try:
        with opened_dir(os.path.dirname(path)) as fd:
            return decode(path, read_small(NAME, LONGEST, fd))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise RecordUnreadable(path=path, problem=error.strerror) from error


def encode(record: Record) -> bytes:
    """Return a record as it is written down."""
    return json.dumps({"format": FORMAT, **record._asdict()}).encode()


def decode(path: str, data: bytes) -> Record:
    """Return what `encode` wrote; `RecordUnreadable`, which names `path`, for anything else."""
    try:
        raw = json.loads(data)
        if raw.pop("format") != FORMAT:
            raise RecordUnreadable(path=path, problem="written by another version of warmstart")
        return wire.from_object(Record, raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordUnreadable(path=path, problem=str(error)) from error


def forget(state: str, job_id: int) -> None:
    """Remove the record, and what killed writers of it left; `job_lock` removes the directory."""
    with suppress(FileNotFoundError), opened_dir(os.path.join(state, str(job_id))) as fd:
        for name in os.listdir(fd):
            unlink_if_there(name, fd)
