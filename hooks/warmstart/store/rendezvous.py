"""The rendezvous of a job's nodes: a small file in the store that the head node writes and the others read.

    <store>/rendezvous/                                  0700
        <cluster>.<jobid>.<restarts>.json                the answer of one run's head node
        <cluster>.<jobid>.<restarts>.over.json           that this run is over (images/imports/job_end.py)

The name needs no query to Slurm (docs/architecture.md, rule 8). A prolog knows its cluster, its job's id (the
leader's in a heterogeneous job) and the number of restarts; all are the same on all nodes of a run, and the answer of
an earlier run has another name. A job id can come again (slurmctld lost its state, or ids wrapped). Readers therefore
compare user and nodes, and ignore an answer that an earlier job left.

Runs as the store's owner. Hot path.
"""

from __future__ import annotations

import os

from warmstart.host import wire
from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there
from warmstart.host.wire import Json
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps
from warmstart.store.atomic import replace
from warmstart.store.layout import store_errors

DIRECTORY = "rendezvous"
LONGEST = 64 << 10
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Answer(NamedTuple):
    """The answer of the head node to the other nodes of its job's run."""

    uid: int
    cluster: str
    nodelist: str  # the job's nodes as a Slurm hostlist
    address: str  # of the head node; "" if the file has none
    ports: list[int] | None = None
    refused: str | None = None  # why no ports were reserved


def name_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the file name of a run's answer; other characters than A-Z, a-z, 0-9, _ and - of `cluster` become _."""
    plain = "".join(character if character in _PLAIN else "_" for character in cluster)
    return f"{plain}.{job_id}.{restarts}.json"


def over_name_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the file name in which a run's head node says that the run is over."""
    return f"{name_of(cluster, job_id, restarts).removesuffix('.json')}.over.json"


def publish(store: str, name: str, writer: str, answer: Answer) -> None:
    """Write the head node's answer; replaces one that an earlier job of the same id left.

    `writer` (node and run id) is part of the temp file's name. Raises `StoreFull` or `StoreFailed`.
    """
    with store_errors(f"publishing the rendezvous {name}"), _root(store) as root:
        ensure_dir(DIRECTORY, 0o700, root)
        with opened_dir(DIRECTORY, root) as fd:
            replace(fd, writer, name, _encode(answer))


def look(store: str, name: str) -> Answer | None:
    """Return the answer; None while there is none with a user, a cluster and nodes. Raises `StoreFailed`.

    Opens the directory again each time, because an NFS client only then revalidates a cached negative lookup (nfs(5),
    Directory entry caching).
    """
    with store_errors(f"reading the rendezvous {name}"), _root(store) as root:
        try:
            with opened_dir(DIRECTORY, root) as fd:
                data = read_small(name, LONGEST, fd)
        except FileNotFoundError:
            return None
    try:
        return _decode(wire.parse(data))
    except ValueError:
        return None


def withdraw(store: str, name: str) -> None:
    """Remove an answer, if there is one; raises `StoreFailed`."""
    with store_errors(f"withdrawing the rendezvous {name}"), _root(store) as root:
        try:
            with opened_dir(DIRECTORY, root) as fd:
                unlink_if_there(name, fd)
        except FileNotFoundError:
            return


def _encode(answer: Answer) -> bytes:
    told = {key: value for key, value in answer._asdict().items() if value is not None}
    return dumps(told).encode()


def _decode(raw: Json) -> Answer | None:
    """Decode an answer; fields in a form of another release are left out."""
    if not isinstance(raw, dict):
        return None
    uid, cluster, nodelist, address, ports, refused = map(raw.get, Answer._fields)
    if type(uid) is not int or not isinstance(cluster, str) or not isinstance(nodelist, str):
        return None
    return Answer(
        uid,
        cluster,
        nodelist,
        address if isinstance(address, str) else "",
        [port for port in ports if type(port) is int] if isinstance(ports, list) else None,
        None if refused is None else str(refused),
    )


@contextmanager
def _root(store: str) -> Iterator[int]:
    """Open the store's directory; never create it, because a missing one is usually not mounted."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
