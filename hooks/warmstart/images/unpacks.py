"""Asking a node to unpack an image, and waiting for it. Runs as root.

An item of the queue for each image (`attempts.unpacks`). It stays while it fails, so that no later job waits in vain,
and says why. Whoever waits holds a lock on a file beside the tree's place: while one does, the image is unpacked
at full speed, otherwise idly.

    <shelf>/<name>.waiting              0600; a shared flock of each who waits
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from warmstart import shelf as shelves
from warmstart.errors import ResourceError
from warmstart.host import files, namespaces
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.images.unpacked import FOLDER, ImageKey, Unpacked, find, shelf_of, take
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.queue import Asker, Kind, Queue, is_at_work
from warmstart.run.state import Run

UNPACKS = Kind("unpacks", most=16, parallel=2, hook="unpack", is_idle=False)  # each uses all processors
WAITING = ".waiting"
PAUSE_S = 0.02
START_S = 2.0  # after which a program that was started is at work
TOO_LONG = "it takes longer than the job waits"
NO_DISKS = frozenset({"tmpfs", "ramfs", "overlay", "rootfs"})


class ImageNotUnpacked(ResourceError):
    """An image could not be unpacked on this node."""

    code = "image-not-unpacked"
    template = "image {image} is not unpacked on this node: {problem}"
    hint = "jobs start from it as without: see docs/reference/images.md, Unpacked once; `warmstart images unpacked`"


class UnpackRequest(NamedTuple):
    """An image that a node is to unpack. The key of its item is the tree's name."""

    reference: str  # canonical, for people
    image: str
    private: str
    job: Asker
    problem: str = ""  # how the last attempt failed


def ask(policy: Policy, paths: NodePaths, reference: str, key: ImageKey, job: Asker) -> str:
    """Have an image unpacked, and return at once: "", or why it will not be soon.

    Raises `OSError`, `Untrusted` if others could change what lies on the shelf.
    """
    queue, node = Queue(paths, UNPACKS), paths.node
    shelf, rules = shelf_of(policy, node), policy.images.unpack
    if not shelf:
        return "the policy names no shelf (paths.shelf)"
    shelves.make(policy, node, FOLDER)
    kind = namespaces.mount_of(os.path.realpath(shelf)).kind
    if kind in NO_DISKS and not rules.any_disk:
        return f"{policy.paths.shelf} is on {kind}, and images.unpack.any_disk is not set"
    item = queue.find(key.tree)
    known = queue.read(item, UnpackRequest) if item else None
    if known is None and not queue.add(str(job.uid), key.tree, UnpackRequest(reference, *key, job)):
        return f"{queue.count(str(job.uid))} images of {job.user or 'the policy'} wait on node {node} already"
    queue.start_due()
    return known.problem if known else ""


def obtain(  # noqa: PLR0917 - which image, for whom, where
    policy: Policy, key: ImageKey, reference: str, paths: NodePaths, run: Run, deadline: Deadline
) -> Unpacked | str:
    """Return the tree of an image as `take` does; have it unpacked if there is none, and wait until the deadline.

    Returns why the run has none, in words, if it takes longer or fails. `reference` is what people read. Raises what
    `take` and `ask` raise.
    """
    shelf = shelf_of(policy, run.node)
    if found := take(shelf, key, paths, run, deadline):
        return found
    problem = ask(policy, paths, reference, key, Asker.of(run)) or wait(shelf, paths, key, deadline)
    return problem or take(shelf, key, paths, run, deadline) or "it went at once"


def wait(shelf: str, paths: NodePaths, key: ImageKey, deadline: Deadline) -> str:
    """Wait until an image that was asked for is unpacked: return "", or why it is not. Raises `OSError`."""
    queue, start_at = Queue(paths, UNPACKS), time.monotonic() + START_S
    with opened_dir(shelf) as fd, _waiting(fd, key.tree, deadline):
        while not deadline.expired():
            item = queue.find(key.tree)
            request = queue.read(item, UnpackRequest) if item else None
            if find(fd, key.tree):  # before its item goes
                return ""
            if item and request is None and queue.find(key.tree) != item:
                continue  # its attempt began meanwhile, or it is done
            if item is None or request is None:
                return "nobody is at it any more"
            if request.problem:
                return request.problem
            if time.monotonic() >= start_at and not is_at_work(paths, UNPACKS.name):
                if not item.is_due():
                    return "its process has died"
                queue.start_due()
                start_at = time.monotonic() + START_S
            time.sleep(PAUSE_S)
    return TOO_LONG


@contextmanager
def _waiting(shelf: int, name: str, deadline: Deadline) -> Iterator[None]:
    fd = os.open(name + WAITING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=shelf)
    try:
        files.wait_flock(fd, deadline, shared=True)  # whoever looks has it for a moment
        yield
    finally:
        os.close(fd)


def is_awaited(shelf: int, name: str) -> bool:
    """Return whether anybody waits for a tree."""
    try:
        fd = os.open(name + WAITING, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=shelf)
    except FileNotFoundError:
        return False
    try:
        return not files.try_flock(fd)
    finally:
        os.close(fd)
