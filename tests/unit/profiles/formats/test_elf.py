"""ELF files by their headers: whole ones of the wanted type, and no other bytes raise anything else."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.lib.built_entries import SHARED
from tests.lib.cache_files import TRITON_RELEASES, cubin, relocatable
from tests.lib.judging import SAME_STAGE, Reason
from warmstart.profiles.entry_files import REASONS, EntryFiles, EntryInvalid
from warmstart.profiles.formats import elf

OBJECT = relocatable(b"\x90" * 64)
CUBIN = cubin()
DOCUMENTED = {None, *REASONS} - {"validator-failed"}


def check(kind: int, files: EntryFiles) -> None:
    elf.check(files, "f", kind)


def test_each_type_is_only_its_own(reason: Reason) -> None:
    for content, kind in ((OBJECT, elf.RELOCATABLE), (SHARED, elf.SHARED)):
        for wanted in (elf.RELOCATABLE, elf.SHARED):
            expected = None if wanted == kind else "elf-malformed"
            assert reason({"f": content}, lambda files, wanted=wanted: check(wanted, files)) == expected  # type: ignore[misc]
    for wanted in (elf.RELOCATABLE, elf.SHARED):
        assert reason({"f": CUBIN}, lambda files, wanted=wanted: check(wanted, files)) == "elf-malformed"  # type: ignore[misc]
    assert reason({"f": OBJECT}, lambda files: elf.check_cubin(files, "f")) == "elf-malformed"


def with_more_segments(library: bytes, count: int) -> bytes:
    """Return a library whose dynamic segment is listed `count` more times; the table stands at the end."""
    (at,) = struct.unpack_from("<Q", library, 32)
    (segments,) = struct.unpack_from("<H", library, 56)
    table = [library[at + 56 * number :][:56] for number in range(segments)]
    (dynamic,) = (segment for segment in table if segment[0] == 2)
    longer = bytearray(library + b"".join([*table, *([dynamic] * count)]))
    struct.pack_into("<Q", longer, 32, len(library))
    struct.pack_into("<H", longer, 56, segments + count)
    return bytes(longer)


@pytest.mark.threat(30)
@pytest.mark.parametrize("count", [1, 6_000])
def test_a_library_has_one_dynamic_segment(reason: Reason, count: int) -> None:
    assert reason({"f": with_more_segments(SHARED, 0)}, lambda files: check(elf.SHARED, files)) is None
    found = with_more_segments(SHARED, count)
    assert reason({"f": found}, lambda files: check(elf.SHARED, files)) == "elf-malformed"


@SAME_STAGE
@given(st.data())
def test_no_file_that_was_cut_passes(reason: Reason, data: st.DataObject) -> None:
    """Linkers write the section headers last; a cubin ends with its program headers."""
    content, kind = data.draw(st.sampled_from([(OBJECT, elf.RELOCATABLE), (SHARED, elf.SHARED), (CUBIN, 0)]))
    length = data.draw(st.integers(0, len(content) - 1))
    found = reason({"f": content[:length]}, lambda files: check(kind, files) if kind else elf.check_cubin(files, "f"))
    assert found in ("elf-truncated", "elf-malformed")


@SAME_STAGE
@given(st.sampled_from([OBJECT, CUBIN]), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_changed_headers_get_a_documented_reason(
    reason: Reason, content: bytes, changes: list[tuple[int, int]]
) -> None:
    """Whatever numbers are in them: no read leaves the file."""
    damaged = bytearray(content)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    assert reason({"f": bytes(damaged)}, lambda files: check(elf.RELOCATABLE, files)) in DOCUMENTED
    assert reason({"f": bytes(damaged)}, lambda files: elf.check_cubin(files, "f")) in DOCUMENTED


@pytest.mark.parametrize("release", TRITON_RELEASES)
def test_a_cubin_says_for_what_it_is(reason: Reason, release: str) -> None:
    """The architecture's place in the header depends on the ABI; the kernel is a section."""
    arch = {"3.1": 80, "3.2": 90, "3.4": 90, "3.9": 120}[release]
    files = {"f": cubin(release)}
    assert reason(files, lambda entry: elf.check_cubin(entry, "f", arch=arch, kernel="add_kernel")) is None
    assert reason(files, lambda entry: elf.check_cubin(entry, "f", arch=arch + 1)) == "other-target"
    assert reason(files, lambda entry: elf.check_cubin(entry, "f", kernel="mul_kernel")) == "other-target"


@given(st.binary(max_size=100), st.integers(0, 20))
@example(OBJECT, 0)
@example(OBJECT[:-1], 0)
@example(OBJECT, 7)
def test_bytes_inside_of_another_file(content: bytes, before: int) -> None:
    """Checked only if they begin as an ELF image does, and never beyond their end."""
    file = io.BytesIO(b"x" * before + content + b"more")
    try:
        elf.check_if_object(file, before, len(content))
    except EntryInvalid as error:
        problem = error.reason
        assert content.startswith(b"\x7fELF") and problem.startswith("elf-")  # noqa: PT018 - either is fine
    else:
        assert not content.startswith(b"\x7fELF") or content == OBJECT
