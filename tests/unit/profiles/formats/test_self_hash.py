"""Hashes that entries carry of themselves, in the forms of the tools that write them."""

from __future__ import annotations

import hashlib

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.lib.built_entries import SGLANG_LEAF, SGLANG_ROWS
from tests.lib.cache_files import letters
from tests.lib.judging import SAME_STAGE, Reason
from warmstart.profiles.formats import self_hash


@SAME_STAGE
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_name_is_the_hash_of_its_content(reason: Reason, content: bytes, other: bytes) -> None:
    assume(content != other)
    name, digits = letters(content), hashlib.sha256(content).hexdigest() + ".bin"
    for data, expected in ((content, None), (other, "name-not-hash")):
        assert reason({f"d/{name}": data}, lambda files: self_hash.check_content(files, f"d/{name}")) == expected
        assert reason({digits: data}, lambda files: self_hash.check_hex_name(files, digits)) == expected


@SAME_STAGE
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.sampled_from(["", " ", "\n\n"]))
def test_a_source_is_hashed_without_the_space_around_it(reason: Reason, text: str, space: str) -> None:
    name = f"c{letters(text.strip().encode())}.py"
    source = space + text + space
    assert reason({name: source.encode()}, lambda files: self_hash.check_source(files, name)) is None
    assert reason({name: b"x" + source.encode()}, lambda files: self_hash.check_source(files, name)) == "name-not-hash"


def test_a_source_that_is_no_text(reason: Reason) -> None:
    assert reason({"c.py": b"\xff"}, lambda files: self_hash.check_source(files, "c.py")) == "text-malformed"


def test_sizes_and_digests_are_of_the_file(reason: Reason) -> None:
    found = []
    assert reason({"f": b"abc"}, lambda files: found.append(self_hash.size_and_sha256(files, "f"))) is None
    assert found == [(3, hashlib.sha256(b"abc").hexdigest())]


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=4))
def test_a_list_has_another_hash_in_another_order(rows: list[tuple[str, str]]) -> None:
    """SGLang's: sixteen digits, of each row and where it ends."""
    assert self_hash.of_parts([tuple(row) for row in SGLANG_ROWS]) == SGLANG_LEAF.rpartition("-")[2]
    found = self_hash.of_parts(rows)
    assert len(found) == 16
    assert rows == rows[::-1] or self_hash.of_parts(rows[::-1]) != found
