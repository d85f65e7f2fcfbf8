"""Files of an entry `e` for the formats' checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.judging import Reason
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid


@pytest.fixture
def reason(stage: Path, stage_fd: int) -> Reason:
    """Give a function that stages files and returns why a check refuses them; None where it does not."""

    def refused(files: dict[str, bytes], check: Callable[[EntryFiles], object]) -> str | None:
        for name, content in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_bytes(content)
        try:
            check(EntryFiles(stage_fd, "e", files))
        except EntryInvalid as error:
            return error.reason
        return None

    return refused
