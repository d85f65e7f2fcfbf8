"""What doctor says of the directories below which jobs may name what they read from copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.doctor import prefixes
from warmstart.errors import WarmstartError
from warmstart.host.identity import WorkerSilent
from warmstart.host.namespaces import Mount
from warmstart.host.worker import Worker


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))
    return tmp_path


def found(*paths: object) -> list[tuple[str, str]]:
    return [(finding.status, finding.found) for finding in prefixes.check("wing", [*map(str, paths)])]


def test_what_gives_nobody_a_copy(prefix: Path) -> None:
    """What a job names is compared with them by its path without links."""
    (prefix / "link").symlink_to(prefix)
    nothing = "no job gets a copy of anything there"
    assert found(prefix, prefix / "link", prefix / "gone") == [
        ("wrong", f"wing.prefixes: {prefix}/link leads to {prefix}: {nothing}"),
        ("wrong", f"wing.prefixes: {prefix}/gone: No such file or directory: {nothing}"),
    ]


def test_a_disk_of_the_nodes_own(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("xfs", "/"))
    ((status, text),) = found(prefix)
    assert (status, "is on xfs (/)" in text) == ("advice", True)


@pytest.mark.parametrize(
    ("error", "status"), [(WorkerSilent(what="it", problem="no answer"), ["unknown"]), (PermissionError(1, "no"), [])]
)
def test_what_root_cannot_see(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, error: WarmstartError | OSError, status: list[str]
) -> None:
    """Root may be nobody there: that is fine; a file system that hangs is not."""

    def run(*_: object) -> str:
        raise error

    monkeypatch.setattr(Worker, "run", run)
    assert [finding[0] for finding in found(prefix)] == status
