"""Private images, fetched with the site's credentials: a store for each scope, a copy for each job. Runs as root.

    <store>/private/<name>/                     the store's owner, 0700: a complete image store, with its own images/
    <workspace>/<jobid>.<restarts>/<key>.sqsh   the job's uid, 0400: its copy, removed with the workspace

The scope is checked before the digest (docs/threats.md, row 10): for a job that may not read `name`, nothing is looked
up there. So an image in another scope is a miss, and each scope has its own failures, locks and pointers. Only the
store's owner can enter the directory; a job reads its own copy.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed, disk_errors, opened_dir, unlink_if_there
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference
from warmstart.images.store import published
from warmstart.images.store.layout import IMAGE, key_of


class JobOwner(NamedTuple):
    """The job that gets a copy: its run directory (root's) and its ids."""

    run_directory: str
    uid: int
    gid: int


def site_of(site: Site, name: str, deadline: Deadline) -> Site:
    """Return the site for the private images `name`: a store of their own, without places where others have images."""
    uses = f"{site.uses}-private-{name}"
    return site._replace(store=site.store.private(name, deadline), uses=uses, private=name, places=tuple)


def hand_over(image: Obtained, reference: Reference, owner: JobOwner, site: Site, deadline: Deadline) -> str:
    """Copy an image into a job's run directory, owned by the job; return the path of the copy.

    Raises `DiskFailed`, and what `ImageStoreClient` raises if the store fails.
    """
    name = key_of(reference.canonical()) + IMAGE
    what = f"image {reference.canonical()} could not be copied into the job's workspace"
    with disk_errors(what), opened_dir(owner.run_directory) as directory:
        unlink_if_there(name, directory)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            if problem := site.store.run_with(fd, deadline, published.copy_out, image.path, fd):
                raise DiskFailed(what=what, problem=problem)
            os.fchown(fd, owner.uid, owner.gid)
            os.fchmod(fd, 0o400)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise
        finally:
            os.close(fd)
    return f"{owner.run_directory}/{name}"
