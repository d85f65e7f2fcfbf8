"""Checks that a policy names: each is there, and each says what it proves."""

from __future__ import annotations

import hashlib
import pickle
import zlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.built_entries import SHARED
from tests.lib.cache_files import cubin, relocatable
from tests.lib.judging import SAME_STAGE, Reason
from warmstart.policy.values import Format
from warmstart.profiles.entry_files import REASONS
from warmstart.profiles.formats import by_name

HASH = hashlib.sha256(b"x").hexdigest()
SAMPLES = {
    "any": b"",
    "compressed": zlib.compress(b"x"),
    "cubin": cubin(),
    "json": b"[1]",
    "library": SHARED,
    "not-empty": b"\0",
    "object": relocatable(),
    "pickle": pickle.dumps({"a": 1}, protocol=5),
    "sha256-name": b"x",
    "text": b"x",
    "written": b"x",
}
OTHERS = {"not-empty": b"", "text": b"\xff", "written": b"\0", "sha256-name": b"y"}


def test_every_format_of_the_policy_has_a_sample() -> None:
    assert {*get_args(Format)} == {*SAMPLES}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_file_of_its_format_passes_and_another_does_not(reason: Reason, kind: str) -> None:
    name = HASH if kind == "sha256-name" else "f"
    assert reason({name: SAMPLES[kind]}, lambda files: by_name.check(kind, files, name)) is None
    refused = reason({name: OTHERS.get(kind, b"other")}, lambda files: by_name.check(kind, files, name))
    assert (refused is None) is (kind == "any")


@SAME_STAGE
@given(st.sampled_from(sorted(SAMPLES)), st.binary(max_size=200))
def test_any_bytes_get_a_documented_reason(reason: Reason, kind: str, content: bytes) -> None:
    found = reason({"f": content}, lambda files: by_name.check(kind, files, "f"))
    assert found in {None, *REASONS} - {"validator-failed"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"f": b"x", "f.sha256": f"{HASH}  f\n".encode()}, None),
        ({"f": b"x", "f.sha256": HASH.upper().encode()}, None),
        ({"f": b"y", "f.sha256": HASH.encode()}, "hash-differs"),
        ({"f": b"x", "f.sha256": b""}, "hash-differs"),
        ({"f": b"x", "f.sha256": b"\xff" * 64}, "hash-differs"),
        ({"f.sha256": HASH.encode()}, "incomplete"),
        ({"f": b"x", "f.sha256": b"0" * 5000}, "too-large"),
    ],
)
def test_a_sidecar_describes_its_file(reason: Reason, files: dict[str, bytes], said: str | None) -> None:
    assert reason(files, lambda entry: by_name.check_sidecar(entry, "f.sha256")) == said
