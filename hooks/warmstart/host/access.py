"""Let one user read what is ours, by access control lists (acl(5)). All functions raise plain `OSError`."""

from __future__ import annotations

import errno
import os

_ACL = "system.posix_acl_access"
# Tags of entries, as the kernel's posix_acl_xattr.h numbers them; only USER has an id.
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_ACL_VERSION, _NO_ID = 2, 0xFFFFFFFF
_READ, _WRITE, _ENTER = 4, 2, 1


def allow_reading(fd: int, uid: int, gid: int) -> None:
    """Let a user read our own file, which nobody else may, and not change it.

    Sets the access control list `user::r-- user:UID:r-- group::--- mask::r-- other::---` (acl(5)). If the file system
    has none, the file becomes the user's own, mode 0400.
    """
    os.fchmod(fd, 0o400)
    try:
        _allow(fd, uid, _READ, _READ)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.fchown(fd, uid, gid)


def share_reading(fd: int, uid: int) -> None:
    """Let a user read our own file, which stays ours to write: all users, if the file system has no such lists."""
    try:
        _allow(fd, uid, _READ | _WRITE, _READ)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.fchmod(fd, 0o644)


def allow_entering(fd: int, uid: int) -> None:
    """Let a user list and enter our own directory, which nobody else may, and not change it.

    `EOPNOTSUPP` if the file system has no access control lists.
    """
    _allow(fd, uid, _READ | _WRITE | _ENTER, _READ | _ENTER)


def _allow(fd: int, uid: int, ours: int, theirs: int) -> None:
    """Set the access control list `user::OURS user:UID:THEIRS group::--- mask::THEIRS other::---` (acl(5))."""
    entries = ((_USER_OBJ, ours, _NO_ID), (_USER, theirs, uid), (_GROUP_OBJ, 0, _NO_ID), (_MASK, theirs, _NO_ID))
    acl = _ACL_VERSION.to_bytes(4, "little")
    for tag, permissions, identifier in (*entries, (_OTHER, 0, _NO_ID)):
        acl += tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + identifier.to_bytes(4, "little")
    os.setxattr(fd, _ACL, acl)
