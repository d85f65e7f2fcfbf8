"""FlashInfer's kernels, built by ninja, with their generated sources."""

from __future__ import annotations

import pytest

from tests.support.built_entries import BUILT, BUILT_ELSEWHERE, NINJA_LOG, OPS, operation
from tests.support.judging import Judge


def test_an_operation_is_its_build_and_its_sources(verdict: Judge) -> None:
    """Both of one entry."""
    assert verdict("flashinfer", operation(BUILT)) is None


def test_an_operation_that_was_killed_is_refused(verdict: Judge) -> None:
    """As ninja's other builds are; an empty source, too."""
    assert verdict("flashinfer", operation({**BUILT, ".ninja_log": NINJA_LOG[:-1]})) == "build-unfinished"
    assert verdict("flashinfer", operation(BUILT) | {f"{OPS}/generated/x/x.cu": b""}) == "text-malformed"


@pytest.mark.parametrize("changes", BUILT_ELSEWHERE)
def test_what_was_built_at_a_runs_own_path_is_refused(verdict: Judge, changes: dict[str, bytes]) -> None:
    """Nobody has that path again; kept, it would keep those out that were built at the constant path."""
    assert verdict("flashinfer", operation({**BUILT, **changes})) == "made-elsewhere"


def test_generated_sources_alone_are_no_operation(verdict: Judge) -> None:
    """FlashInfer generates before it builds."""
    assert verdict("flashinfer", {f"{OPS}/generated/x/x.cu": b"x"}) == "incomplete"
