"""The form of a listing: what is damaged or hostile is refused, in whole and by its head."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.caches.store import listing
from warmstart.caches.store.layout import Damaged, sealed
from warmstart.caches.store.listing import HarvestTooLarge, Listing, OfOtherFormat, Row, decode, encode

ROWS = [Row("a" * 64, 5, 2, "alice", 1, 7, 100), Row("b" * 64, 6, 1, "bob", 2, 8, 200)]
LISTING, TEXT = encode(
    Listing(7, "", "c" * 64, ROWS, ["x/y"], ["gone"], names=[["e", "\udcff é"], ["f"]], lost=[["g"], []])
)
Edit = Callable[[dict[str, Any]], object]


def edited(edit: Edit, lines: bytes | None = None) -> bytes:
    """Return the text with another head, sealed as if its writer had written it."""
    head, _, content = TEXT[65:].partition(b"\n")
    raw = json.loads(head)
    edit(raw)
    if lines is not None:
        content = lines
        raw["content"] = sealed(b"\n" + content)[:64].decode()
    return sealed(json.dumps(raw).encode()) + b"\n" + content


def test_it_comes_back_whole_and_by_its_head() -> None:
    assert decode(TEXT, "here", named=True) == LISTING
    head = b"\n".join(TEXT.split(b"\n")[:2])
    for text in (TEXT, head, head + b'\n[["e'):
        assert decode(text, "here", named=False) == LISTING._replace(names=[], lost=[])


@given(st.integers(0, len(TEXT) - 1), st.integers(1, 255))
def test_each_other_byte_is_damage(place: int, by: int) -> None:
    changed = bytearray(TEXT)
    changed[place] ^= by
    for text in (bytes(changed), TEXT[:place]):
        with pytest.raises(Damaged):
            decode(text, "here", named=True)


@given(st.binary(max_size=300))
def test_any_bytes_are_damage(data: bytes) -> None:
    for named in (False, True):
        with pytest.raises(Damaged):
            decode(data, "here", named=named)
        with pytest.raises((Damaged, OfOtherFormat)):
            decode(sealed(data), "here", named=named)


@pytest.mark.threat(7, 24)
@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw["rows"][0].__setitem__(0, "../../etc/passwd"),
        lambda raw: raw["rows"][0].__setitem__(0, "A" * 64),
        lambda raw: raw["rows"][0].__setitem__(1, -1),
        lambda raw: raw["rows"][0].__setitem__(2, -1),
        lambda raw: raw["rows"][0].pop(),
        lambda raw: raw["rows"].append(raw["rows"][0]),
        lambda raw: raw.__setitem__("rows", "none"),
        lambda raw: raw.__setitem__("number", -1),
        lambda raw: raw.__setitem__("hidden", ["../x"]),
        lambda raw: raw.__setitem__("hidden", ["/etc"]),
        lambda raw: raw.__setitem__("hide", ["x\n"]),
        lambda raw: raw.__setitem__("hidden", ["x" * 300]),
        lambda raw: raw.pop("content"),
    ],
)
def test_what_root_could_not_use_is_refused(edit: Edit) -> None:
    with pytest.raises(Damaged):
        decode(edited(edit), "here", named=True)


@pytest.mark.parametrize(
    "lines",
    [
        b'[["e"],["g"]]\n[["f"],[]]',
        b'[["e","f"],["g"]]\n[["f"],[]]',  # two rows provide one
        b'[["e","../h"],["g"]]\n[["f"],[]]',
        b'[["e",7],["g"]]\n[["f"],[]]',
        b'[["e","h"],["g"]]',
        b'[["e","h"],["g"]]\n[["f"],[]]\n[[],[]]',
    ],
)
def test_names_that_are_not_those_of_the_rows_are_refused(lines: bytes) -> None:
    text = edited(dict, lines)
    assert decode(text, "here", named=False).rows == ROWS
    with pytest.raises(Damaged):
        decode(text, "here", named=True)


def test_another_format_is_none_that_may_be_passed_over() -> None:
    with pytest.raises(OfOtherFormat, match="9, known is 1"):
        decode(edited(lambda raw: raw.__setitem__("format", 9)), "here", named=False)


def test_fields_that_a_newer_release_adds_are_ignored() -> None:
    assert decode(edited(lambda raw: raw.__setitem__("more", 1)), "here", named=True).rows == ROWS


@pytest.mark.threat(24)
def test_a_listing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LARGEST", len(TEXT) - 1)
    with pytest.raises(HarvestTooLarge, match="are allowed"):
        encode(LISTING)
