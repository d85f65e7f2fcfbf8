"""Random bytes that resemble what a parser is made for, and the corpus of those that once failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

CORPUS = Path(__file__).parents[2] / "faults" / "corpus"
# What parsers tend to forget: ends, signs, huge numbers, deep nesting, surrogates, line ends of other kinds.
TOKENS = (
    b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"[" * 3000, b'{"":' * 3000, b"1e999", b"9" * 5000, b"-1", b"NaN",
    b"null", b"[]", b"{}", b'""', b'"\\ud800"', b"\xed\xa0\x80", b"\r", b"\x1c", b"\xe2\x80\xa8", b"../", b"%00", b"\n",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


class Edit(NamedTuple):
    """One change of a sample."""

    at: int  # modulo its length
    removed: int  # bytes
    inserted: bytes


EDITS = st.lists(
    st.builds(Edit, st.integers(0, 1 << 20), st.integers(0, 64), st.binary(max_size=8) | st.sampled_from(TOKENS)),
    min_size=1,
    max_size=4,
)


def inputs(samples: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Return inputs: samples that are changed, their JSON with other values in it, and bytes without any form."""
    changed = st.builds(_edited, st.sampled_from(samples), EDITS)
    documents = [document for document in map(_document, samples) if document is not None]
    if not documents:
        return changed | st.binary(max_size=300)
    replaced = st.builds(_replaced, st.sampled_from(documents), st.integers(0, 1 << 16), JSON)
    return changed | replaced | st.builds(_dumped, JSON) | st.binary(max_size=100)


def _edited(sample: bytes, edits: list[Edit]) -> bytes:
    for edit in edits:
        at = edit.at % (len(sample) + 1)
        sample = sample[:at] + edit.inserted + sample[at + edit.removed :]
    return sample


def _document(sample: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(sample)
    except ValueError:
        return None


def _dumped(value: Any) -> bytes:  # noqa: ANN401 - JSON
    return json.dumps(value).encode()


def _replaced(document: Any, number: int, value: Any) -> bytes:  # noqa: ANN401 - JSON
    """Return the document with another value in one place."""
    places = list(_places(document))
    return _dumped(_with(document, places[number % len(places)], value))


def _places(document: Any, path: tuple[object, ...] = ()) -> Any:  # noqa: ANN401 - JSON
    yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, below in items:
        yield from _places(below, (*path, key))


def _with(document: Any, path: tuple[object, ...], value: Any) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = _with(document[path[0]], path[1:], value)
    return copy
