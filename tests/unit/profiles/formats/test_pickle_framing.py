"""Pickles are walked and never loaded: whole ones pass, and what they would make is told as inert parts."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import relocatable
from tests.lib.judging import SAME_STAGE, Reason
from warmstart.profiles.entry_files import REASONS, EntryFiles
from warmstart.profiles.formats import pickle_framing

# Bytes that begin as an ELF image does are checked as one.
BYTES = st.binary(max_size=8).filter(lambda data: not data.startswith(b"\x7fELF"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | BYTES
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)


def check(files: EntryFiles) -> None:
    pickle_framing.check(files, "f", pickles=1)


@SAME_STAGE
@given(VALUES, st.sampled_from([4, 5]), st.binary(max_size=2))
def test_a_pickle_is_whole_and_alone(reason: Reason, value: object, protocol: int, more: bytes) -> None:
    """Any value; behind it nothing, and of it nothing missing."""
    data = pickle.dumps(value, protocol)
    assert reason({"f": data + more}, check) == ("pickle-trailing" if more else None)
    assert reason({"f": data[:-1]}, check) in ("pickle-truncated", "pickle-malformed")


@SAME_STAGE
@given(st.lists(VALUES, min_size=1, max_size=3), st.integers(1, 3))
def test_as_many_as_there_have_to_be(reason: Reason, values: list[object], wanted: int) -> None:
    data = b"".join(pickle.dumps(value, 5) for value in values)
    found = reason({"f": data}, lambda files: pickle_framing.check(files, "f", pickles=wanted))
    expected = {len(values) < wanted: "pickle-truncated", len(values) > wanted: "pickle-trailing"}.get(True)
    assert found == expected


class Sample:
    """A class whose instances are pickled with their state."""

    def __init__(self, name: str) -> None:
        self.name = name


@SAME_STAGE
@given(st.lists(st.text(max_size=8), max_size=5))
def test_what_a_pickle_would_make_is_told_as_parts(reason: Reason, names: list[str]) -> None:
    """Texts, tuples, lists and dictionaries as they are; of an instance the class's name and the state."""
    found: list[Any] = []

    def read(files: EntryFiles) -> None:
        found.extend(each.value for each in pickle_framing.check(files, "f", pickles=1))

    value = (names, {"key": tuple(names)}, [Sample(name) for name in names])
    assert reason({"f": pickle.dumps(value, 5)}, read) is None
    texts, items, samples = found[0]
    assert (texts, items) == (names, [("key", tuple(names))])
    assert [sample.callable for sample in samples] == [(__name__, "Sample")] * len(names)
    assert [sample.state for sample in samples] == [[("name", name)] for name in names]


@SAME_STAGE
@given(st.lists(st.sampled_from(pickletools.opcodes).map(lambda opcode: opcode.code.encode("latin-1")), max_size=12))
def test_any_opcodes_get_a_documented_reason(reason: Reason, opcodes: list[bytes]) -> None:
    for data in (b"".join(opcodes), b"\x80\x05" + b"".join(opcodes) + b"."):
        assert reason({"f": data}, check) in {None, *REASONS} - {"validator-failed"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "pickle-truncated"),
        (b"N.", "pickle-malformed"),
        (pickle.dumps(1, 3), "pickle-malformed"),
        (pickle.dumps(1, 0), "pickle-malformed"),
        (b"\x80\x05NN.", "pickle-malformed"),
        (b"\x80\x05\x80\x05N.", "pickle-malformed"),
        (b"\x80\x05K\x01K\x02\x93.", "pickle-malformed"),  # a global from numbers
        (b"\x80\x05cos\nsystem\n.", "pickle-malformed"),  # protocol 0's global
        (b"\x80\x05\x95\x01" + bytes(7) + b"K\x01.", "pickle-malformed"),  # an argument across its frame's end
        (b"\x80\x05h\x00.", "pickle-malformed"),
        (b"\x80\x05).", None),
        (b"\x80\x05(t.", None),
        (b"\x80\x05t.", "pickle-malformed"),
        (b"\x80\x05\x8c\x01\xff.", "pickle-malformed"),
        (b"\x80\x05\x95" + (9).to_bytes(8, "little") + b"N.", "pickle-truncated"),
        (b"\x80\x05\x95" + (1).to_bytes(8, "little") + b"N.", None),
        (b"\x80\x05\x95" + (3).to_bytes(8, "little") + b"N..", "pickle-malformed"),
        (pickle.dumps(relocatable()[:-1], 5), "elf-truncated"),
        (pickle.dumps(relocatable(), 5), None),
    ],
)
def test_the_framing_is_followed(reason: Reason, data: bytes, said: str | None) -> None:
    """Frames, marks, memo, stack; and objects among its bytes are checked as such."""
    assert reason({"f": data}, check) == said


def test_what_is_read_is_bounded(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(list(range(50)), 5)
    monkeypatch.setattr(pickle_framing, "MOST_OPCODES", 20)
    assert reason({"f": data}, check) == "too-large"
    monkeypatch.undo()
    monkeypatch.setattr(pickle_framing, "LARGEST", len(data) - 1)
    assert reason({"f": data}, check) == "too-large"
