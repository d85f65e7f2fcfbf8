"""Inductor's entries: content that its name proves, ELF structure, whole builds."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import STEM, letters, relocatable, shared
from tests.lib.judging import SAME_STAGE, Judge
from warmstart.profiles import registry
from warmstart.profiles.entry_files import REASONS

SOURCE = b"// AOT ID\n#include <Python.h>\nextern void kernel();\n"
SHARED = shared()
BUILT = {f"{STEM}.main.cpp": SOURCE, f"{STEM}.main.so": SHARED}


def graph(content: bytes) -> str:
    """Return the name of an fxgraph file with this content."""
    return f"fxgraph/ab/fab{'c' * 49}/{letters(content)}"


def python_source(content: str) -> str:
    """Return the name of a generated Python file with this content."""
    hashed = letters(content.strip().encode())
    return f"{hashed[:2]}/c{hashed}.py"


@pytest.mark.parametrize(
    "files",
    [
        {graph(b"pickle"): b"pickle"},
        {graph(b"pickle"): b"pickle", graph(b"other guards"): b"other guards"},
        {f"aotautograd/a{'c' * 51}/{letters(b'x')}": b"x"},
        {python_source("\n\nimport torch  # é\n"): "\n\nimport torch  # é\n".encode()},
        {f"{STEM}.cpp": SOURCE, f"{STEM}.so": SHARED},
        BUILT,
        {**BUILT, f"{STEM}.main.o": relocatable()},
        {f"ab/c{'d' * 51}.optimized.o": relocatable()},
        {f"ab/{'0' * 64}.best_config": b'{"XBLOCK": 128, "num_warps": 4}'},
    ],
    ids=lambda files: min(files).rpartition("/")[2][-14:],
)
def test_whole_entries_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """Each kind of entry in the form that torch writes."""
    assert verdict("inductor", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({graph(b"pickle"): b"pickled"}, "name-not-hash"),
        ({graph(b"pickle"): b""}, "name-not-hash"),
        ({graph(b"pickle"): b"pickle", graph(b"x"): b"y"}, "name-not-hash"),
        ({python_source("import torch"): b"import torchs"}, "name-not-hash"),
        ({python_source("import torch"): b""}, "name-not-hash"),
        ({python_source("import torch"): b"\xff"}, "text-malformed"),
        ({f"{STEM}.main.cpp": SOURCE}, "incomplete"),
        ({f"{STEM}.main.so": SHARED}, "incomplete"),
        ({f"{STEM}.main.cpp": SOURCE, f"{STEM}.main.o": relocatable()}, "incomplete"),
        ({**BUILT, f"{STEM}.py": b""}, "name-not-hash"),
        ({**BUILT, f"{STEM}.cpp": SOURCE}, "incomplete"),
        ({**BUILT, f"{STEM}.main.cpp": b" \n"}, "text-malformed"),
        ({**BUILT, f"{STEM}.main.cpp": SOURCE + b"\0"}, "text-malformed"),
        ({**BUILT, f"{STEM}.main.so": b""}, "elf-truncated"),
        ({**BUILT, f"{STEM}.main.so": bytes(len(SHARED))}, "elf-malformed"),
        ({**BUILT, f"{STEM}.main.so": relocatable()}, "elf-malformed"),
        ({f"ab/c{'d' * 51}.optimized.o": SHARED}, "elf-malformed"),
        ({f"ab/c{'d' * 51}.optimized.o": relocatable()[:-1]}, "elf-truncated"),
        ({f"ab/{'0' * 64}.best_config": b"[1]"}, "json-malformed"),
        ({f"ab/{'0' * 64}.best_config": b'{"XBLOCK": 12'}, "json-malformed"),
        ({f"ab/{'0' * 64}.best_config": b"[" * 500_000}, "json-malformed"),
        ({f"ab/{'0' * 64}.best_config": b" " * (2 << 20)}, "too-large"),
    ],
)
def test_what_a_job_would_fail_on_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """Content that its name denies, builds that were killed, files of the wrong kind."""
    assert verdict("inductor", files) == reason


def test_no_truncated_library_passes(verdict: Judge) -> None:
    """The section headers are last: a library cut anywhere has lost some of them."""
    step = max(1, len(SHARED) // 100)
    for length in [*range(0, len(SHARED), step), len(SHARED) - 1]:
        assert verdict("inductor", {**BUILT, f"{STEM}.main.so": SHARED[:length]}) is not None, length


@SAME_STAGE
@given(at=st.integers(0, len(relocatable()) - 1), value=st.integers(0, 255))
def test_a_changed_object_gets_a_documented_reason(verdict: Judge, at: int, value: int) -> None:
    """Damage anywhere in an object ends in a verdict in fixed words."""
    content = bytearray(relocatable(b"\x90" * 64))
    content[at % len(content)] = value
    answer = verdict("inductor", {f"ab/c{'d' * 51}.optimized.o": bytes(content)})
    assert answer in {None, *REASONS} - {"validator-failed"}


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (4, "B", 1),  # 32 bit
        (5, "B", 2),  # big-endian
        (16, "H", 2),  # an executable
        (18, "H", 3),  # another machine
        (40, "Q", 1 << 63),  # section headers far outside
        (56, "H", 0),  # a library without segments
        (58, "H", 40),  # section headers of 32 bit
        (62, "H", 0xFFF0),  # the names' section does not exist
    ],
)
def test_an_unfit_header_is_refused(verdict: Judge, offset: int, layout: str, value: int) -> None:
    """Each field of the ELF header that a loader relies on is looked at."""
    content = bytearray(SHARED)
    struct.pack_into("<" + layout, content, offset, value)
    reason = verdict("inductor", {**BUILT, f"{STEM}.main.so": bytes(content)})
    assert reason in {"elf-malformed", "elf-truncated"}


def test_no_job_builds_headers_that_go_with_it() -> None:
    """Torch puts them below TMPDIR: with its default a job that compiles nothing would build them."""
    variables = registry.get("inductor").environment("/cache", str)
    assert variables == {
        "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
