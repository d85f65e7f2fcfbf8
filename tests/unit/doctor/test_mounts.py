"""The mount of a path is found without asking the file system."""

from __future__ import annotations

import io

import pytest

from warmstart.doctor import mounts

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/w /shared nfs4 rw,hard 0 0
server:/x /shared/with\\040space nfs rw 0 0
tmpfs /sharedother tmpfs rw 0 0
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
    """By whole names, with the escapes of proc(5)."""
    monkeypatch.setattr(mounts, "open", lambda *_, **__: io.StringIO(MOUNTS), raising=False)
    assert mounts.mount_of(path) == expected
