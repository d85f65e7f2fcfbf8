"""A run's clones of the unpacked images that its containers start from: one for each image. Runs as root.

    <run>/mounted/KEY/tree/    the clone, below an overlay of root's: read-only, and the job's own (`mounted.mount_for`)
    <run>/ready-roots/         the job's, for its containers
    <run>/shown                has a line for each clone: device and inode of the image's file, and no target

enroot's hook finds the clone by the file that a container was started with. A key says nothing of the image, because
all users see what is mounted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host import linux
from warmstart.host.client import attach_in_namespace
from warmstart.host.files import opened_dir
from warmstart.images import choice
from warmstart.images.query import query_by_rules
from warmstart.images.reference import parse
from warmstart.images.store.layout import image_name
from warmstart.images.unpacked import ImageKey, Unpacked
from warmstart.paths import NOTHING, Shown
from warmstart.policy.keys import Policy
from warmstart.run import mounted
from warmstart.run.shown import NotShown, show, shown_by
from warmstart.step_image import StepImage
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import stored
from warmstart.wings.ready_roots.settings import NAME, OWN

MOST = 9  # of a run on a node: the job's image, and eight more
ATTACHING_S = 5.0
STORE_S = 5.0
NOT_UNPACKED, TOO_MANY = "not unpacked on this node", f"not shown: the run has {MOST} trees"


class Given(NamedTuple):
    """What a run has of an image: the clone's path in its directory, or why it has none."""

    source: str
    reason: str = ""


def give(context: Context, image: StepImage, namespaces: list[int], tree: Unpacked) -> Given:
    """Show the run the tree of an image, once, also in open mount `namespaces`. Raises `OSError`, `StoreError`.

    The caller keeps the run from being ended meanwhile.
    """
    run = context.run
    owner = (run.uid, run.gid)
    file = _file(context, image)
    with opened_dir(run.directory) as base:
        known = [item for item in shown_by(run.directory) if item.target == NOTHING]
        for item in known:
            if item.seen == file:
                return Given(item.source)
        if len(known) >= MOST:
            return Given("", TOO_MANY)
        fd = tree.open()
        try:
            clone = linux.clone_as(fd, (tree.uid, tree.gid), owner)
        finally:
            os.close(fd)
        try:
            source = mounted.mount_for(base, os.urandom(4).hex(), clone, owner)
        finally:
            os.close(clone)
        # A namespace that follows the node's mounts has the outer one by now, which became private before the inner.
        mounts = [os.path.dirname(source), source]
        for namespace in namespaces:
            attach_in_namespace(namespace, run.directory, mounts, context.deadline.within(ATTACHING_S))
        show(base, Shown("ro", "root", source, file, NOTHING, NOTHING), run.uid)
    return Given(source)


def prepare(context: Context) -> None:
    """Make the run's directory for what containers write, and say. Raises `OSError`."""
    run = context.run
    with opened_dir(run.directory) as base, suppress(FileExistsError):
        os.mkdir(OWN, 0o700, dir_fd=base)
        os.chown(OWN, run.uid, run.gid, dir_fd=base, follow_symlinks=False)


def key_of(policy: Policy, image: StepImage) -> ImageKey:
    """Return what an image's tree is kept under."""
    kind = query_by_rules(parse(image.reference), policy.images, choice.recipe(policy.images.importer)).kind
    return ImageKey(image_name(image.digest, kind), image.private)


def tell(context: Context, image: StepImage, given: Given) -> None:
    """Log what a run has of an image."""
    context.audit.put("told", NAME, **{image.reference: given.reason or "unpacked on this node"})


def failure(image: StepImage, error: OSError | WarmstartError) -> WarmstartError:
    """Return an error that a job can do with."""
    if isinstance(error, WarmstartError):
        return error
    return NotShown(what=f"the unpacked image {image.reference} for the job", problem=error.strerror or str(error))


def _file(context: Context, image: StepImage) -> str:
    """Return device and inode of an image's file. A private image's is in the run's directory."""
    if image.private:
        return stored.file_of("", image.path)
    return context.store.run(context.deadline.within(STORE_S), stored.file_of, image.path)
