"""Images that only some jobs may read: fetched with the site's credentials, kept apart, handed to each job.

    <store>/private/<name>/           the store's owner, 0700: a store of images of its own, images/ and all
    <workspace>/<node>/<run>/<key>.sqsh   the job's copy, its uid's, 0400; gone with the workspace

Scope comes before digest (threats, row 10): a job that may not read `name` is never asked for there, so a hit of
another scope is a miss, and failures, locks and pointers of one scope are not another's. Nobody but the store's owner
can enter the directory: what a job reads is its own copy.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host.deadline import Deadline
from warmstart.host.files import ensure_dir, open_regular, opened_dir, unlink_if_there, write_all
from warmstart.host.worker import Worker
from warmstart.images.asked import Obtained, Site
from warmstart.images.lookup import IMAGE, key_of
from warmstart.images.reference import Reference
from warmstart.store.layout import store_errors

PRIVATE = "private"
CHUNK = 1 << 20


class ImageCopyFailed(ResourceError):
    """The job's own copy of a private image could not be made on this node."""

    code = "image-copy-failed"
    template = "image {image} could not be copied into the job's workspace: {problem}"
    hint = "free space where paths.workspace is: a private image is copied for each job"


class Heir(NamedTuple):
    """The job that gets a copy: its run directory, which is root's, and its ids."""

    run: str
    uid: int
    gid: int


def site_of(site: Site, name: str, deadline: Deadline) -> Site:
    """Return the site of the private images `name`: a store of their own, with nothing of other launchers."""
    with store_errors("the store of private images"):
        site.worker.call(ensure, site.store, name, deadline=deadline)
    rules = site.rules._replace(lock="private", names="", adopt=())
    return site._replace(store=f"{site.store}/{PRIVATE}/{name}", uses=f"{site.uses}-{PRIVATE}-{name}", rules=rules)


def ensure(store: str, name: str) -> None:
    """Make the store of `name`; the store itself is never made. Runs as the store's owner."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ensure_dir(PRIVATE, 0o700, fd)
        with opened_dir(PRIVATE, fd) as private:
            ensure_dir(name, 0o700, private)
    finally:
        os.close(fd)


def hand_over(image: Obtained, reference: Reference, heir: Heir, site: Site, deadline: Deadline) -> str:
    """Copy an image into a job's run directory; return the path there."""
    name = key_of(reference.canonical()) + IMAGE
    try:
        with opened_dir(heir.run) as directory:
            unlink_if_there(name, directory)
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
            try:
                # A worker of its own: the other one was forked before this descriptor was there.
                with store_errors("a private image"), Worker(site.worker.identity, keep=[fd]) as copier:
                    problem = copier.call(copy, image.path, fd, deadline=deadline)
                if problem:
                    raise ImageCopyFailed(image=reference.canonical(), problem=problem)
                os.fchown(fd, heir.uid, heir.gid)
                os.fchmod(fd, 0o400)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
                raise
            finally:
                os.close(fd)
    except OSError as error:
        raise ImageCopyFailed(image=reference.canonical(), problem=error.strerror) from error
    return f"{heir.run}/{name}"


def copy(path: str, target: int) -> str:
    """Copy a file into an open one; returns what is wrong with the target's disk. Runs as the store's owner."""
    source = open_regular(path)
    try:
        while data := os.read(source, CHUNK):
            try:
                write_all(target, data)
            except OSError as error:
                return error.strerror or "write failed"
    finally:
        os.close(source)
    return ""
