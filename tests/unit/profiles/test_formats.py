"""Checks of single files: each takes what it is named after, and finds what a kill or a crash leaves of it."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.built_entries import SHARED
from tests.lib.cache_files import CONTENT, TRITON_RELEASES, ZSTD, cubin, letters, of_tool, relocatable, zstd
from tests.lib.judging import SAME_STAGE
from warmstart.profiles import elf
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import FORMATS, PAGE

Refused = Callable[[str, bytes], "str | None"]
NAMES = {"base32-name": letters(b"x")}
SAMPLES = {
    "any": [b""],
    "base32-name": [b"x"],
    "compressed": [zlib.compress(CONTENT), ZSTD, zstd(b"01234", b"56789")],
    "cubin": [cubin(release) for release in TRITON_RELEASES],
    "empty-or-written": [b"", b"x"],
    "hsaco": [data for name, data in of_tool("triton-amd").items() if name.endswith(".hsaco")],
    "json": [b"[1]"],
    "library": [SHARED],
    "object": [relocatable()],
    "pickle": [pickle.dumps({"a": [1, 2.5, None]}, protocol) for protocol in (0, 2, 4, 5)],
    "text": ["größe".encode()],
    "written": [b"x", b"x" + bytes(4095), bytes(9000) + b"x"],
}
# What is walked to its last byte, so that no cut passes.
WHOLE = ["compressed", "cubin", "hsaco", "library", "object", "pickle", "base32-name"]


@pytest.fixture
def refused(stage: Path, stage_fd: int) -> Refused:
    """Give a function that checks a file of a format and returns why it is refused, None if it is not."""

    def check(kind: str, content: bytes) -> str | None:
        name = f"e/{NAMES.get(kind, 'f')}"
        (stage / "e").mkdir(exist_ok=True)
        (stage / name).write_bytes(content)
        try:
            FORMATS[kind](EntryFiles(stage_fd, "e", [name]), name)
        except EntryInvalid as error:
            return error.reason
        return None

    return check


def test_every_format_has_a_sample() -> None:
    assert {*SAMPLES} == {*FORMATS}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_file_of_its_format_passes_and_another_does_not(refused: Refused, kind: str) -> None:
    for content in SAMPLES[kind]:
        assert refused(kind, content) is None
    others = {"text": b"\xff", "written": b"RTX" + bytes(4096), "empty-or-written": bytes(7)}
    assert (refused(kind, others.get(kind, b"other")) is None) is (kind == "any")
    if kind in elf.KINDS:
        wrong = [content for other in elf.KINDS if other != kind for content in SAMPLES[other]]
        assert {refused(kind, content) for content in wrong} == {"elf-malformed"}


@SAME_STAGE
@given(st.sampled_from([(kind, content) for kind in WHOLE for content in SAMPLES[kind]]), st.data())
def test_no_file_that_was_cut_passes(refused: Refused, sample: tuple[str, bytes], data: st.DataObject) -> None:
    kind, content = sample
    assert refused(kind, content[: data.draw(st.integers(0, len(content) - 1))]) is not None


@SAME_STAGE
@given(st.sampled_from([*elf.KINDS, "compressed", "pickle"]), st.data())
def test_no_file_whose_end_was_not_written_passes(refused: Refused, kind: str, data: st.DataObject) -> None:
    """A file system that crashes leaves pages of zeroes."""
    content = SAMPLES[kind][0]
    length = data.draw(st.integers(0, (len(content) - 1) // PAGE)) * PAGE
    assert refused(kind, content[:length] + bytes(len(content) - length)) is not None


@pytest.mark.threat(30)
@pytest.mark.parametrize("count", [0, 1, 6_000])
def test_a_library_has_one_dynamic_segment(refused: Refused, count: int) -> None:
    (at,) = struct.unpack_from("<Q", SHARED, 32)
    (segments,) = struct.unpack_from("<H", SHARED, 56)
    table = [SHARED[at + 56 * number :][:56] for number in range(segments)]
    (dynamic,) = (segment for segment in table if segment[0] == 2)
    longer = bytearray(SHARED + b"".join([*table, *([dynamic] * count)]))
    struct.pack_into("<Q", longer, 32, len(SHARED))
    struct.pack_into("<H", longer, 56, segments + count)
    assert refused("library", bytes(longer)) == ("elf-malformed" if count else None)


@pytest.mark.threat(30)
def test_no_file_takes_more_than_its_share(refused: Refused) -> None:
    """Time is bounded for all of them alike: a number that takes long to read, a length that nothing has."""
    assert refused("pickle", b"\x80\x04L" + b"9" * 5000 + b"L\n.") == "pickle-malformed"
    assert refused("pickle", b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.") == "pickle-malformed"


@pytest.mark.parametrize("kind", ["compressed", "pickle"])
def test_nothing_follows(refused: Refused, kind: str) -> None:
    assert [refused(kind, content + b"x") for content in SAMPLES[kind]] == [f"{kind}-malformed"] * len(SAMPLES[kind])


@pytest.mark.parametrize(("space", "expected"), [("", None), (" \n", None), ("x", "hash-differs")])
def test_a_generated_source_is_hashed_without_the_space_around_it(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, space: str, expected: str | None
) -> None:
    monkeypatch.setitem(NAMES, "base32-name", f"c{letters(b'import torch')}.py")
    assert refused("base32-name", f"{space}import torch{space}".encode()) == expected
