"""Helion's tuned configurations, one as Helion wrote it without a GPU."""

from __future__ import annotations

import json

import pytest

from tests.lib.built_entries import below
from tests.lib.cache_files import of_tool, triton_kernel
from tests.lib.judging import Judge

((NAME, BEST),) = of_tool("helion").items()


def edited(**changes: object) -> bytes:
    """Return the configuration with other values."""
    return json.dumps(json.loads(BEST) | changes).encode()


def test_what_helion_wrote_is_valid(verdict: Judge) -> None:
    """In its own cache, and below Inductor's, where it lies without the profile."""
    assert verdict("helion", {NAME: BEST}) is None
    assert verdict("inductor", {f"helion/{NAME}": BEST}) is None


def test_tritons_kernels_are_judged_as_tritons(verdict: Judge) -> None:
    """Helion gives Triton a directory in its own cache where the job has none."""
    assert verdict("helion", below("triton/0/", triton_kernel("3.9"))) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "json-malformed"),
        (BEST[:-1], "json-malformed"),
        (b"[]", "json-malformed"),
        (edited(config="{"), "json-malformed"),
        (edited(config="[" * 100_000), "json-malformed"),
        (edited(config="[1]"), "json-malformed"),
        (edited(config={"block_sizes": [16]}), "field-malformed"),
        (edited(key=None), "field-malformed"),
        (edited(key={"fields": {}}), "field-malformed"),
        (edited(key={"fields": {"hardware": "x", "backend": 7}}), "field-malformed"),
    ],
)
def test_what_helion_would_skip_is_refused(verdict: Judge, content: bytes, reason: str) -> None:
    """Half a file, and files of another form."""
    assert verdict("helion", {NAME: content}) == reason
    assert verdict("inductor", {f"helion/{NAME}": content}) == reason
