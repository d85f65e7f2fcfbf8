"""Numba's entries: whole pickles, and an index whose data is there."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import NUMBA_DATA, NUMBA_INDEX, numba_files, of_tool, relocatable
from tests.lib.judging import SAME_STAGE, Judge
from warmstart.profiles.entry_files import REASONS
from warmstart.profiles.formats import pickle_framing

BINARY = st.binary().filter(lambda data: not data.startswith(b"\x7fELF"))  # those are checked as objects
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | BINARY,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.sets(st.text()),
)


def test_a_function_with_two_signatures_is_valid(verdict: Judge) -> None:
    """What Numba writes is accepted."""
    assert verdict("numba", numba_files(signatures=2)) is None


@SAME_STAGE
@given(value=JSON, protocol=st.sampled_from([4, 5]))
def test_every_pickle_of_a_current_protocol_is_well_formed(verdict: Judge, value: object, protocol: int) -> None:
    """The walk has no complaint about anything that the standard pickler writes."""
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: pickle.dumps(value, protocol)}) is None


@pytest.mark.parametrize("name", [NUMBA_INDEX, NUMBA_DATA])
def test_no_truncated_file_passes(verdict: Judge, name: str) -> None:
    """A file cut anywhere is refused; Numba would kill the job with it."""
    files = numba_files(1)
    lengths = [*range(min(400, len(files[name]))), *range(len(files[name]) - 200, len(files[name]))]
    for length in lengths:
        assert verdict("numba", {**files, name: files[name][:length]}) is not None, length


@SAME_STAGE
@given(st.data())
def test_any_bytes_get_a_documented_reason(verdict: Judge, data: st.DataObject) -> None:
    """Damage of any kind ends in a verdict in fixed words, never in an exception of another kind."""
    files = numba_files(1)
    content = bytearray(files[NUMBA_INDEX])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert verdict("numba", {**files, NUMBA_INDEX: bytes(content)}) in {None, *REASONS} - {"validator-failed"}


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (pickle.dumps("0.68") + pickle.dumps(("stamp", {})), "incomplete"),
        (pickle.dumps("0.68") + pickle.dumps(("stamp", {1: "f.1.nbc", 2: "f.2.nbc"})), "incomplete"),
        (pickle.dumps("0.68"), "pickle-truncated"),
        (b"", "pickle-truncated"),
        (numba_files(1)[NUMBA_INDEX] + b"\0", "pickle-trailing"),
        (numba_files(1)[NUMBA_INDEX] + pickle.dumps(1), "pickle-trailing"),
        (pickle.dumps("0.68", 3) + pickle.dumps(1, 3), "pickle-malformed"),
        (pickle.dumps("0.68", 0) + pickle.dumps(1, 0), "pickle-malformed"),
    ],
)
def test_an_index_that_is_not_two_pickles_with_their_data_is_refused(verdict: Judge, index: bytes, reason: str) -> None:
    """An empty index, one whose data is missing, one pickle, three pickles, old protocols."""
    assert verdict("numba", {**numba_files(1), NUMBA_INDEX: index}) == reason


@pytest.mark.parametrize("missing", [NUMBA_INDEX, NUMBA_DATA])
def test_half_of_an_entry_is_refused(verdict: Judge, missing: str) -> None:
    """Published, it would keep every later, whole one out."""
    files = numba_files(1)
    del files[missing]
    assert verdict("numba", files) == "incomplete"


def raw(body: bytes) -> bytes:
    """Return a protocol 5 pickle without a frame."""
    return b"\x80\x05" + body + b"."


@pytest.mark.parametrize(
    "body",
    [
        b"NN",  # two values at STOP
        b"",  # none
        b"(N",  # a mark at STOP
        b"t",  # a tuple without its mark
        b"h\x07",  # a memo that was never filled
        b"\x94",  # memoize nothing
        b"]K\x01N\x86s",  # SETITEM on a list
        b"K\x01K\x02\x93",  # a global from numbers
        b"\x80\x05N",  # PROTO twice
        b"cos\nsystem\n",  # protocol 0's global
        b"Pid\n",  # protocol 0's persistent id
        b"\x95" + bytes(8) + b"\x95" + bytes([255] * 8) + b"N",  # a frame beyond the end
        b"\x95\x03" + bytes(7) + b"N.",  # STOP before the end of its frame
        b"\x95\x01" + bytes(7) + b"K\x01",  # an argument across the end of its frame
        b"\x8c\x02\xff\xfe",  # text that is not UTF-8
        b"\xff",  # no opcode
    ],
)
def test_a_malformed_pickle_is_refused(verdict: Judge, body: bytes) -> None:
    """Opcodes that follow each other in a way that no pickler writes."""
    reason = verdict("numba", {**numba_files(1), NUMBA_DATA: raw(body)})
    assert reason in {"pickle-malformed", "pickle-truncated"}


def test_nothing_is_executed(verdict: Judge, tmp_path: Path) -> None:
    """A pickle that would run a command is walked like any other: a validator does not make it safe."""

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    assert verdict("numba", {**numba_files(1), NUMBA_DATA: pickle.dumps(Payload(), 5)}) is None
    assert not (tmp_path / "ran").exists()


def test_a_bomb_of_opcodes_is_bounded(verdict: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of opcodes has a limit far above real files."""
    most = sum(1 for _ in pickletools.genops(numba_files(1)[NUMBA_DATA]))
    monkeypatch.setattr(pickle_framing, "MOST_OPCODES", 10 * most)
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: raw(b"N0" * 6 * most + b"N")}) == "too-large"


def test_a_damaged_object_in_a_pickle_is_refused(verdict: Judge) -> None:
    """The ELF object inside the data is checked as one: here its section headers are gone."""
    data = pickle.dumps((b"key", relocatable()[:-64]), 5)
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: data}) == "elf-truncated"


CUDA = of_tool("numba-cuda")
CUDA_INDEX, CUDA_DATA = (next(name for name in CUDA if name.endswith(end)) for end in (".nbi", ".nbc"))


def test_a_kernel_for_a_gpu_is_valid(verdict: Judge) -> None:
    """numba-cuda keeps it in the same files, with a cubin in the place of an object for the CPU."""
    assert verdict("numba", CUDA) is None


def test_the_cubin_inside_has_to_be_whole(verdict: Judge) -> None:
    """It is judged as other tools' cubins are."""
    at = CUDA[CUDA_DATA].index(b"\x7fELF")
    headless = CUDA[CUDA_DATA][: at + 40] + bytes(8) + CUDA[CUDA_DATA][at + 48 :]  # where the section headers are
    assert verdict("numba", CUDA | {CUDA_DATA: headless}) == "elf-malformed"
    for name in CUDA:
        assert verdict("numba", CUDA | {name: CUDA[name][:-1]}) == "pickle-truncated"


def test_a_kernel_for_other_types_than_the_index_says_is_refused(verdict: Judge) -> None:
    """Two processes wrote it."""
    other = CUDA[CUDA_INDEX].replace(b"array(float32, 1d, C)", b"array(float64, 1d, C)")
    assert other != CUDA[CUDA_INDEX]
    assert verdict("numba", CUDA | {CUDA_INDEX: other}) == "two-writers"
