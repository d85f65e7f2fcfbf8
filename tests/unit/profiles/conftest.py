"""A stage on disk and the judge over it, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.judging import MTIME, Judge
from warmstart.profiles.judge import judge


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    path = tmp_path / "stage"
    path.mkdir()
    return path


@pytest.fixture
def stage_fd(stage: Path) -> Iterator[int]:
    fd = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def verdict(stage: Path, stage_fd: int) -> Judge:
    """Give a function that stages one entry's files and returns what the judge says of it."""
    from warmstart.profiles import naming, registry

    def judged(profile: str, files: dict[str, bytes]) -> str | None:
        for name, content in files.items():
            path = stage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, ns=(MTIME, MTIME))
        entries = {naming.entry_of(registry.get(profile), name) for name in files}
        assert len(entries) == 1
        entry = entries.pop()
        assert entry is not None
        return dict(judge(profile, stage_fd, {entry: list(files)}))[entry]

    return judged
