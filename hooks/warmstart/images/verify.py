"""Proof that an image is whole, in three depths; docs/images.md says what each one catches.

`superblock` is `layout.what_is_wrong`: 96 bytes and the size, at every use.
`list`: every inode and directory can be read, before publishing. The parser is unsquashfs, under the validating
account, without network, privileges or files of its own, on a descriptor of the inode that will be copied.
`full`: the bytes are those that were published, by the recorded SHA-256. As the store's owner; hashing parses nothing.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import copy_hashed, open_regular, read_small
from warmstart.host.identity import Identity
from warmstart.images.layout import CHECKED, IMAGE, IMAGES, META, what_is_wrong
from warmstart.images.published import FORMAT, known_of, opened_folder
from warmstart.images.squashfs import ImageInvalid
from warmstart.store.atomic import replace

UNSQUASHFS = "/usr/bin/unsquashfs"
PRLIMIT = "/usr/bin/prlimit"
MOST_MEMORY = 4 << 30
LONGEST_CHECK = 4096


class ByteCheck(NamedTuple):
    """The result of depth `full`."""

    problem: str  # "" for a whole image
    inode: int
    remembered: bool  # not read again: the file has not changed since it was


def check_listing(fd: int, validator: Identity, deadline: Deadline) -> None:
    """Raise `ImageInvalid` with unsquashfs's last words unless it can list all of the image.

    The name in /proc opens the inode itself; its mode is 0444.
    """
    completed = process.run_alone(
        [
            *(PRLIMIT, f"--as={MOST_MEMORY}", "--fsize=0", "--core=0", "--"),
            *(UNSQUASHFS, "-processors", "1", "-lls", f"/proc/self/fd/{fd}"),
        ],
        deadline=deadline,
        identity=validator,
        env={},
        cwd="/",
        keep=[fd],
    )
    if completed.status != 0:
        raise ImageInvalid(problem=f"unsquashfs can't list it: {completed.complaint()}")


def check_bytes(store: str, name: str, owner: str, again: bool = False) -> ByteCheck:
    """Compare every byte of a published image with its recorded SHA-256, once for each state of its file.

    A good result is remembered by inode, size, mtime and ctime, and read again only if `again`. An image whose
    producer died before it wrote down the hash gets it now. `FileNotFoundError` if there is no such image.
    """
    with opened_folder(store) as images:
        fd = open_regular(name + IMAGE, images)
        try:
            status = os.fstat(fd)
            answer = ByteCheck(what_is_wrong(fd, status), status.st_ino, remembered=False)
            if answer.problem:
                return answer
            if not again and _is_checked(store, name, status):
                return answer._replace(remembered=True)
            sha256 = copy_hashed(fd).sha256
        finally:
            os.close(fd)
        known = known_of(os.path.join(store, IMAGES, name + META))
        if "sha256" not in known:
            late = {"format": FORMAT, **known, "size": status.st_size, "sha256": sha256, "recorded_late": True}
            replace(images, owner, name + META, json.dumps(late).encode())
        elif known["sha256"] != sha256:
            return answer._replace(problem=f"its SHA-256 is {sha256} and not {known['sha256']}")
    with opened_folder(store, CHECKED) as folder:
        data = {"stamp": _stamp(status), "at": time.time()}
        replace(folder, owner, name + META, json.dumps(data).encode())
    return answer


def _is_checked(store: str, name: str, status: os.stat_result) -> bool:
    with opened_folder(store, CHECKED) as folder:
        try:
            found = json.loads(read_small(name + META, LONGEST_CHECK, folder))
        except (FileNotFoundError, ValueError):
            return False
    return isinstance(found, dict) and found.get("stamp") == _stamp(status)


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
