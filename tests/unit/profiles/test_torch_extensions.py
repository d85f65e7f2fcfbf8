"""What ninja built for `torch.utils.cpp_extension.load`: whole, ended, and made where the next job sees it."""

from __future__ import annotations

import pytest

from tests.lib.built_entries import BUILT, BUILT_ELSEWHERE, NINJA_DEPS, NINJA_LOG, SHARED
from tests.lib.cache_files import relocatable
from tests.lib.judging import Judge


def extension(**changes: bytes | None) -> dict[str, bytes]:
    """Return an extension `x` as torch builds it, with changed files (`main_o` is `main.o`); None takes one away."""
    files: dict[str, bytes | None] = {**BUILT, "main.cpp": b"int x;\n"}
    files |= {name if name[0] == "." else name.replace("_", "."): content for name, content in changes.items()}
    return {f"x/{name}": content for name, content in files.items() if content is not None}


@pytest.mark.parametrize("files", [extension(), extension(main_cpp=None)])
def test_builds_that_ended_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """A library, its objects and what ninja needs to find them up to date; sources are not needed."""
    assert verdict("torch-extensions", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (extension(x_so=None), "incomplete"),
        (extension(main_o=None), "incomplete"),
        (extension(build_ninja=None), "incomplete"),
        (extension(**{".ninja_log": None}), "incomplete"),
        (extension(**{".ninja_log": NINJA_LOG[: NINJA_LOG.rindex(b"36721")]}), "build-unfinished"),
        (extension(**{".ninja_log": NINJA_LOG[:-1]}), "build-unfinished"),
        (extension(**{".ninja_log": b""}), "build-unfinished"),
        (extension(**{".ninja_deps": NINJA_DEPS[:-1]}), "build-unfinished"),
        (extension(**{".ninja_deps": b"# ninjadeps\n"}), "build-unfinished"),
        (extension(x_so=SHARED[: len(SHARED) // 2]), "elf-truncated"),
        (extension(x_so=b""), "elf-truncated"),
        (extension(main_o=SHARED), "elf-malformed"),
        (extension(other_o=relocatable()), "build-unfinished"),
        (extension(other_so=SHARED), "incomplete"),
        (extension(main_cpp=b""), "text-malformed"),
    ],
)
def test_builds_that_were_killed_are_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """Without a line in ninja's log an output was being written; ninja itself would take a cut library."""
    assert verdict("torch-extensions", files) == reason


@pytest.mark.parametrize("changes", BUILT_ELSEWHERE)
def test_what_was_built_at_a_runs_own_path_is_refused(verdict: Judge, changes: dict[str, bytes]) -> None:
    """Nobody has that path again; kept, it would keep those out that were built at the constant path."""
    assert verdict("torch-extensions", extension(**changes)) == "made-elsewhere"


def test_sources_may_lie_anywhere_else(verdict: Judge) -> None:
    """In a user's home, or in a run's other directories: the constant path is where the cache is."""
    for path in (b"/home/a/17.0a1b2c3d/main.cpp", b"/x/cache/torch-extensions/x/main.cpp", b"/t/17.0a1b2c3d/tmp/x.cpp"):
        built = {"build.ninja": b"build main.o: compile " + path + b"\nbuild x.so: link main.o\n"}
        assert verdict("torch-extensions", extension(**built)) is None
