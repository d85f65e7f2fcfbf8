"""Job specs: facts about a job that the controller's hook knows and a node does not, and when a node trusts them.

The file is `<directory>/<cluster>.<job id>.json` on the shared file system. A node trusts it only if nobody but
SlurmUser and root can have written it, if it describes this run of this job, and if it is recent (docs/threats.md,
row 14). The store's owner reads it in a process of its own, so a file system that hangs does not hang the hook.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.files import REGULAR, Untrusted, read_up_to, weakness
from warmstart.host.trusted import opened_trusted
from warmstart.job import Job
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps, loads

FORMAT = 1
LONGEST = 64 << 10  # bytes
# Nodes may boot between PrologSlurmctld and the prolog (ResumeTimeout), and clocks may differ a little.
STALE_S = 3600.0
SKEW_S = 300.0
_IN_CLUSTER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class SpecUnusable(StoreError):
    """The job's spec is missing, not trusted, or cannot be written; rules that need it grant nothing."""

    code = "spec-unusable"
    template = "job spec {path}: {problem}"
    hint = "check that PrologSlurmctld runs as the policy's slurmctld.user (docs/wings/specs.md)"


class Spec(NamedTuple):
    """Facts about one run of a job. None means that the controller's hook did not know the value; "" is a value."""

    cluster: str
    job_id: int
    uid: int
    restarts: int
    written: float  # seconds since the epoch, by the controller's clock
    job_name: str | None
    array: str | None  # "" or JOBID_TASKID
    comment: str | None
    qos: str | None


def path_of(directory: str, cluster: str, job_id: int) -> str:
    """Return the path of a job's spec; `SpecUnusable` if `cluster` is not a plain name."""
    if not cluster or not _IN_CLUSTER.issuperset(cluster):
        raise SpecUnusable(path=directory, problem=f"{cluster!a} is not the name of a cluster")
    return f"{directory}/{cluster}.{job_id}.json"


def informed(job: Job, path: str, spec: Spec) -> Job:
    """Return the job with the facts of its spec, read from `path`; `SpecUnusable` if that is of another run or old."""
    if problem := _mismatch(job, spec, time.time()):
        raise SpecUnusable(path=path, problem=problem)
    return job._replace(
        qos=spec.qos if job.qos is None else job.qos,
        job_name=spec.job_name,
        array=spec.array,
        comment=job.comment if job.comment_known else spec.comment or "",
    )


def read(path: str, owner: int) -> Spec:
    """Return the spec at `path`; `SpecUnusable` if it is malformed, or others than uid `owner` and root could write it.

    Runs as the store's owner.
    """
    try:
        return _decode(_read(path, owner))
    except OSError as error:
        raise SpecUnusable(path=path, problem=error.strerror or "unreadable") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SpecUnusable(path=path, problem="is not what the controller's hook writes") from error


def _read(path: str, owner: int) -> bytes:
    directory, name = os.path.split(path)
    with opened_directory(directory, owner) as folder:
        fd = os.open(name, REGULAR, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _refusal("is not a regular file")
        if status.st_nlink != 1:
            raise _refusal(f"has {status.st_nlink} links")
        if status.st_uid != owner:
            raise _refusal(f"belongs to uid {status.st_uid}, not to slurmctld.user")
        if problem := weakness(status, (owner,)):
            raise _refusal(problem)
        if status.st_size > LONGEST:
            raise _refusal(f"is larger than {LONGEST} bytes")
        return read_up_to(fd, LONGEST)
    finally:
        os.close(fd)


@contextmanager
def opened_directory(directory: str, owner: int) -> Iterator[int]:
    """Open the directory of specs; `OSError` if its path has a link, or others can write it or a directory above."""
    try:
        with opened_trusted(directory, (0, owner)) as fd:
            yield fd
    except Untrusted as error:
        raise _refusal(f"its directory {error.filename} {error.strerror}") from error


def as_json(spec: Spec) -> str:
    """Return the content of the spec's file."""
    return dumps({"format": FORMAT, **spec._asdict()})


def _decode(data: bytes) -> Spec:
    try:
        value = loads(data)
    except (ValueError, RecursionError) as error:
        raise _refusal("is not JSON") from error
    if not isinstance(value, dict):
        raise _refusal("is not a JSON object")
    if value.pop("format") != FORMAT:
        raise ValueError("another version wrote it")
    return wire.from_object(Spec, value)


def _mismatch(job: Job, spec: Spec, now: float) -> str:
    """Return why a well-formed spec does not describe this run; "" if it does."""
    if (spec.cluster, spec.job_id, spec.uid) != (job.cluster, job.id, job.uid):
        return f"is of job {spec.job_id} of uid {spec.uid} in cluster {spec.cluster!a}"
    if spec.restarts != job.restarts:
        return f"is of run {spec.restarts} of the job, and this is run {job.restarts}"
    age = now - spec.written
    # Not `age > STALE_S or …`: a NaN must not pass.
    return "" if -SKEW_S <= age <= STALE_S else f"was written {age:.0f} s ago"


def _refusal(problem: str) -> OSError:
    return OSError(errno.EPERM, problem)
