"""ninja's log and dependencies: whole ones only, whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.built_entries import BUILT, NINJA_DEPS, NINJA_LOG
from tests.lib.judging import SAME_STAGE, Reason
from warmstart.profiles.entry_files import REASONS, EntryFiles
from warmstart.profiles.formats import ninja


def check(files: EntryFiles) -> None:
    ninja.check_build(files, "e", "x.so")


def build(**changes: bytes) -> dict[str, bytes]:
    """Return a build with changed files: `log`, `deps`."""
    names = {"log": ninja.LOG, "deps": ninja.DEPS}
    changed = {**BUILT, **{names[name]: content for name, content in changes.items()}}
    return {f"e/{name}": content for name, content in changed.items()}


def test_a_build_that_ended(reason: Reason) -> None:
    """With dependencies, or without; what lies elsewhere is not looked at."""
    assert reason(build(), check) is None
    assert reason({name: content for name, content in build().items() if "deps" not in name}, check) is None
    assert reason(build() | {"e/sub/y.so": b"", "y.so": b""}, check) is None


@pytest.mark.parametrize("version", [b"5", b"6", b"7", b"12"])
def test_every_version_of_the_log(reason: Reason, version: bytes) -> None:
    assert reason(build(log=NINJA_LOG.replace(b"v5", b"v" + version)), check) is None


@SAME_STAGE
@given(st.integers(0, len(NINJA_LOG) - 1))
def test_a_log_that_was_cut_is_found(reason: Reason, length: int) -> None:
    """An output without a line was being written when the job died; a cut between two lines is one of those."""
    assert reason(build(log=NINJA_LOG[:length]), check) == "build-unfinished"


@SAME_STAGE
@given(st.integers(0, len(NINJA_DEPS) - 1))
def test_dependencies_that_were_cut_are_found(reason: Reason, length: int) -> None:
    """But between two records, where ninja itself would not mind."""
    ends = {len(b"# ninjadeps\n") + 4, len(NINJA_DEPS) - 16}
    assert reason(build(deps=NINJA_DEPS[:length]), check) == (None if length in ends else "build-unfinished")


@SAME_STAGE
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_get_a_documented_reason(reason: Reason, content: bytes, with_header: bool) -> None:
    for name, header in (("log", b"# ninja log v5\n"), ("deps", b"# ninjadeps\n\4\0\0\0")):
        found = reason(build(**{name: (header if with_header else b"") + content}), check)
        assert found in {None, *REASONS} - {"validator-failed"}


def test_an_object_that_the_log_has_is_there(reason: Reason) -> None:
    files = build()
    del files["e/main.o"]
    assert reason(files, check) == "incomplete"
