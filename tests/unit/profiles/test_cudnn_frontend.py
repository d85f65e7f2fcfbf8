"""The cuDNN frontend's plans and FlexAttention's objects, as it wrote them without a GPU."""

from __future__ import annotations

import json

import pytest

from tests.lib.cache_files import of_tool, relocatable
from tests.lib.judging import Judge

ENTRIES = of_tool("cudnn-frontend")
MANIFEST, RECORD, KERNEL, OBJECT = (
    next(name for name in ENTRIES if part in name)
    for part in ("manifest.json", "entry.json", "kernel.o", "flex-attention")
)
PLAN = {name: ENTRIES[name] for name in (RECORD, KERNEL)}


def record(**changes: object) -> dict[str, bytes]:
    """Return the plan with other fields in its record."""
    return PLAN | {RECORD: json.dumps(json.loads(ENTRIES[RECORD]) | changes).encode()}


@pytest.mark.parametrize("files", [PLAN, {MANIFEST: ENTRIES[MANIFEST]}, {OBJECT: ENTRIES[OBJECT]}])
def test_what_the_frontend_wrote_is_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """A plan, the environment's manifest, and an object of FlexAttention's cache."""
    assert verdict("cudnn-frontend", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({KERNEL: ENTRIES[KERNEL]}, "incomplete"),
        ({RECORD: ENTRIES[RECORD]}, "incomplete"),
        (PLAN | {RECORD: ENTRIES[RECORD][:-1]}, "json-malformed"),
        (record(schema="v1"), "field-malformed"),
        (record(key=None), "field-malformed"),
        (record(symbol=7), "field-malformed"),
        (record(wrapper=[]), "field-malformed"),
        (record(symbol="other"), "other-function"),
        (PLAN | {KERNEL: relocatable()}, "other-function"),
        (PLAN | {KERNEL: ENTRIES[KERNEL][:-1]}, "elf-truncated"),
        ({MANIFEST: ENTRIES[MANIFEST].replace(b"13000", b"13010")}, "name-not-hash"),
        ({MANIFEST: b"[]"}, "json-malformed"),
        ({OBJECT: ENTRIES[OBJECT][:9000]}, "elf-truncated"),
        ({OBJECT: ENTRIES[KERNEL]}, "other-function"),
    ],
)
def test_what_is_damaged_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """A writer that died before the record, files that were cut short, and another environment's manifest."""
    assert verdict("cudnn-frontend", files) == reason
