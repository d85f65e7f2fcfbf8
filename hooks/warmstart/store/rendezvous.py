"""Where the nodes of a job meet: one small file in the store, which the head node writes and the others read.

    <store>/rendezvous/                                  0700
        <cluster>.<jobid>.<restarts>.json                the answer of one run's head node

No node asks Slurm for it (design, rule 8): a prolog knows its cluster, its job's id (of a heterogeneous job
the leader's) and how often the job was restarted, and these are the same on all nodes of one run. An earlier
run's answer has another name. A job id that comes again (slurmctld's state was lost, or ids wrapped) finds
another user or other nodes in an answer that nobody withdrew, and waits on: readers compare.

Runs as the store's owner, in the worker. Hot path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there
from warmstart.store.layout import store_errors
from warmstart.store.publish import replace

DIRECTORY = "rendezvous"
LONGEST = 64 << 10
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def name_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's answer; the cluster's is one word of a file name there."""
    plain = "".join(character if character in _PLAIN else "_" for character in cluster)
    return f"{plain}.{job_id}.{restarts}.json"


def publish(store: str, name: str, owner: str, answer: dict[str, Any]) -> None:
    """Write the head node's answer, over one that an id's earlier job left; `StoreFailed`, `StoreFull`.

    `owner` tells whose temp file it is, as in `store.publish`.
    """
    with store_errors(f"publishing the rendezvous {name}"), _root(store) as root:
        ensure_dir(DIRECTORY, 0o700, root)
        with opened_dir(DIRECTORY, root) as fd:
            replace(fd, owner, name, json.dumps(answer).encode())


def look(store: str, name: str) -> dict[str, Any] | None:
    """Return the answer, None while there is none; `StoreFailed`.

    Opens the directory anew each time: on NFS that is what makes a client look again for a name that was not
    there (nfs(5), Directory entry caching).
    """
    with store_errors(f"reading the rendezvous {name}"), _root(store) as root:
        try:
            with opened_dir(DIRECTORY, root) as fd:
                answer = json.loads(read_small(name, LONGEST, fd))
        except (FileNotFoundError, ValueError):
            return None
    return answer if isinstance(answer, dict) else None


def withdraw(store: str, name: str) -> None:
    """Remove an answer, if it is there; `StoreFailed`."""
    with store_errors(f"withdrawing the rendezvous {name}"), _root(store) as root:
        try:
            with opened_dir(DIRECTORY, root) as fd:
                unlink_if_there(name, fd)
        except FileNotFoundError:
            return


@contextmanager
def _root(store: str) -> Iterator[int]:
    """Open the store itself: one that is not there is mostly a file system that is not mounted."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
