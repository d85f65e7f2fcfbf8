"""Where the nodes of a job meet: one small file in the store, which the head node writes and the others read.

    <store>/rendezvous/                                  0700
        <cluster>.<jobid>.<restarts>.json                the answer of one run's head node

No node asks Slurm for it (docs/architecture.md, rule 8): a prolog knows its cluster, its job's id (of a heterogeneous
job the leader's) and how often the job was restarted, and these are the same on all nodes of one run. An earlier
run's answer has another name. A job id that comes again (slurmctld's state was lost, or ids wrapped) finds
another user or other nodes in an answer that nobody withdrew, and waits on: readers compare.

Runs as the store's owner. Hot path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there
from warmstart.host.wire import Json
from warmstart.store.atomic import replace
from warmstart.store.layout import store_errors

DIRECTORY = "rendezvous"
LONGEST = 64 << 10
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Answer(NamedTuple):
    """What the head node of a job's run tells the others."""

    uid: int
    cluster: str
    nodelist: str  # the job's nodes, as Slurm writes them
    address: str  # "" in what is not an answer of ours
    ports: list[int] | None = None
    refused: str | None = None  # why there are no ports


def name_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's answer; the cluster's is one word of a file name there."""
    plain = "".join(character if character in _PLAIN else "_" for character in cluster)
    return f"{plain}.{job_id}.{restarts}.json"


def publish(store: str, name: str, owner: str, answer: Answer) -> None:
    """Write the head node's answer, over one that an id's earlier job left; `StoreFailed`, `StoreFull`.

    `owner` tells whose temp file it is, as in `atomic.temp_file`.
    """
    with store_errors(f"publishing the rendezvous {name}"), _root(store) as root:
        ensure_dir(DIRECTORY, 0o700, root)
        with opened_dir(DIRECTORY, root) as fd:
            replace(fd, owner, name, _encode(answer))


def look(store: str, name: str) -> Answer | None:
    """Return the answer, None while there is none that says for whom it is; `StoreFailed`.

    Opens the directory anew each time: on NFS that is what makes a client look again for a name that was not
    there (nfs(5), Directory entry caching).
    """
    with store_errors(f"reading the rendezvous {name}"), _root(store) as root:
        try:
            with opened_dir(DIRECTORY, root) as fd:
                return _decode(json.loads(read_small(name, LONGEST, fd)))
        except (FileNotFoundError, ValueError):
            return None


def withdraw(store: str, name: str) -> None:
    """Remove an answer, if it is there; `StoreFailed`."""
    with store_errors(f"withdrawing the rendezvous {name}"), _root(store) as root:
        try:
            with opened_dir(DIRECTORY, root) as fd:
                unlink_if_there(name, fd)
        except FileNotFoundError:
            return


def _encode(answer: Answer) -> bytes:
    told = {key: value for key, value in answer._asdict().items() if value is not None}
    return json.dumps(told).encode()


def _decode(raw: Json) -> Answer | None:
    """Return an answer; what another release wrote into it in another form is left out."""
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
    """Open the store itself: one that is not there is mostly a file system that is not mounted."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
