"""The judge opens only the stage's own regular files and answers in fixed words."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import NUMBA_BASE, NUMBA_DATA, NUMBA_INDEX, numba_files
from tests.lib.judging import SAME_STAGE, Judge
from warmstart.profiles import judge as judging
from warmstart.profiles import numba
from warmstart.profiles.contract import Profile
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.judge import judge

pytestmark = pytest.mark.threat(7)


def write_entry(stage: Path) -> dict[str, list[str]]:
    files = numba_files(signatures=1)
    for name, content in files.items():
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).write_bytes(content)
    return {NUMBA_BASE: list(files)}


def test_good_and_bad_entries_are_answered_side_by_side(stage: Path, stage_fd: int) -> None:
    entries = write_entry(stage)
    other = NUMBA_BASE.replace("-17", "-18")
    entries[other] = [f"{other}.nbi", f"{other}.1.nbc"]
    assert dict(judge("numba", stage_fd, entries)) == {NUMBA_BASE: None, other: "not-a-file"}


def endless(_files: EntryFiles) -> None:
    while True:
        with suppress(Exception):
            while True:
                pass


@pytest.mark.threat(30)
def test_an_entry_that_takes_too_long_is_invalid(stage: Path, stage_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = write_entry(stage)
    other = NUMBA_BASE.replace("-17", "-18")
    (stage / f"{other}.nbi").write_bytes(b"x")
    validate = judging.validate

    def busy(profile: Profile, needed: Sequence[str], files: EntryFiles) -> None:
        (endless if files.entry == other else partial(validate, profile, needed))(files)

    monkeypatch.setattr(judging, "validate", busy)
    monkeypatch.setattr(judging, "LEAST_SECONDS", 0.5)
    assert dict(judge("numba", stage_fd, {other: [f"{other}.nbi"], **entries})) == {other: "too-slow", NUMBA_BASE: None}
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


@pytest.mark.parametrize("hostile", ["link", "fifo", "directory"])
def test_what_is_not_a_regular_file_is_refused(stage: Path, stage_fd: int, hostile: str) -> None:
    entries = write_entry(stage)
    data = stage / NUMBA_DATA
    data.rename(stage / "elsewhere")
    if hostile == "link":
        data.symlink_to(stage / "elsewhere")
    elif hostile == "fifo":
        os.mkfifo(data)
    else:
        data.mkdir()
    assert dict(judge("numba", stage_fd, entries)) == {NUMBA_BASE: "not-a-file"}


def test_a_linked_directory_is_not_entered(stage: Path, stage_fd: int) -> None:
    entries = write_entry(stage)
    directory = (stage / NUMBA_INDEX).parent
    directory.rename(stage / "elsewhere")
    directory.symlink_to(stage / "elsewhere")
    assert dict(judge("numba", stage_fd, entries)) == {NUMBA_BASE: "not-a-file"}


@pytest.mark.parametrize(
    "name", ["../x.nbi", "/etc/passwd", f"{NUMBA_BASE}.nbi.lock", NUMBA_INDEX.replace("-17", "-18")]
)
def test_a_file_of_another_entry_is_refused(stage: Path, stage_fd: int, name: str) -> None:
    entries = write_entry(stage)
    entries[NUMBA_BASE].append(name)
    assert dict(judge("numba", stage_fd, entries)) == {NUMBA_BASE: "unexpected-file"}


def test_an_entry_without_files_is_refused(stage_fd: int) -> None:
    assert dict(judge("numba", stage_fd, {NUMBA_BASE: []})) == {NUMBA_BASE: "unexpected-file"}


def test_a_huge_sparse_file_costs_nothing(stage: Path, stage_fd: int) -> None:
    entries = write_entry(stage)
    os.truncate(stage / NUMBA_DATA, 1 << 40)
    assert dict(judge("numba", stage_fd, entries)) == {NUMBA_BASE: "too-large"}


@SAME_STAGE
@given(st.text("a./", max_size=8))
def test_no_name_leads_out_of_the_stage(stage_fd: int, name: str) -> None:
    with pytest.raises(EntryInvalid) as caught:
        EntryFiles(stage_fd, "e", [name])
    parts = name.split("/")
    odd = not all(parts) or {".", ".."} & {*parts}
    assert caught.value.reason == ("unexpected-file" if odd else "not-a-file")


def test_a_validator_that_fails_proves_nothing(verdict: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(numba, "walk_pickles", fail)
    assert verdict("numba", numba_files()) == "validator-failed"
