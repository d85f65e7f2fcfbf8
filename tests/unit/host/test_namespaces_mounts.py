"""The mount of a path is found without asking the file system."""

from __future__ import annotations

import io

import pytest

from warmstart.host import namespaces

MOUNTS = b"""\
22 1 8:1 / / rw,relatime shared:1 - rootfs none rw
23 22 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 23 0:41 / /shared rw shared:2 master:3 - nfs4 server:/w rw,hard
41 40 0:42 / /shared/with\\040space rw - nfs server:/x rw
42 23 0:43 / /sharedother rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/shared/warmstart", ("nfs4", "/shared")),
        ("/shared", ("nfs4", "/shared")),
        ("/shared/with space/a", ("nfs", "/shared/with space")),
        ("/sharedother/x", ("tmpfs", "/sharedother")),
        ("/etc", ("ext4", "/")),
    ],
)
def test_the_longest_mount_point_counts(monkeypatch: pytest.MonkeyPatch, path: str, expected: tuple[str, str]) -> None:
    monkeypatch.setattr(namespaces, "open", lambda *_: io.BytesIO(MOUNTS), raising=False)
    assert namespaces.mount_of(path) == expected


def test_a_chroot_without_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "open", lambda *_: io.BytesIO(MOUNTS[-45:]), raising=False)
    assert namespaces.mount_of("/etc").kind == "unknown"
