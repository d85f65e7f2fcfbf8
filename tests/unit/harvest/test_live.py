"""Which jobs are harvested while they run, of what, and what is remembered of it; when is in errands/test_rounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.runs import a_policy, a_record
from warmstart.harvest import live
from warmstart.harvest.live import Taken
from warmstart.record import Record, Seeded
from warmstart.store.manifest import File

NAMES = ("numba", "inductor", "triton", "trt-rtx", "files", "vllm", "no-more")


def test_which_profiles_wait_for_the_end(tmp_path: Path) -> None:
    policy = a_policy(tmp_path)
    record = a_record(seeded={name: Seeded("ns") for name in NAMES})
    assert live.profiles(policy, record) == ["numba", "triton", "inductor", "vllm"]


def test_which_jobs_wait_for_the_end(tmp_path: Path) -> None:
    policy, record = a_policy(tmp_path), a_record(publish_scope="user-1-a")
    choosy = policy._replace(harvest=policy.harvest._replace(only_successful=True))
    told = [
        live.why_not(policy, record._replace(fresh=True)),
        live.why_not(choosy, record),
        live.why_not(policy, record._replace(publish_scope="")),
    ]
    assert (live.why_not(policy, record), all(told), len({*told})) == ("", True, 3)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    made = a_record(workspace=str(tmp_path))
    os.makedirs(made.set_directory)
    return made


def test_what_was_taken_is_remembered(record: Record) -> None:
    files = {"a": {"a/f": File(3, "ab" * 32, 7)}}
    live.note(record, "toy", whole := Taken("b", files, {"c": {"c/f": File(4, "cd" * 32, 8)}}))
    assert (live.taken(record, "toy"), live.taken(record, "other")) == (whole, Taken())
    (name,) = os.listdir(record.set_directory)
    assert os.stat(f"{record.set_directory}/{name}").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"entries": 3}'])
def test_what_cannot_be_read_was_not_taken(record: Record, content: bytes) -> None:
    Path(record.set_directory, ".taken-toy").write_bytes(content)
    assert live.taken(record, "toy") == Taken()
