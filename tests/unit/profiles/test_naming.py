"""Patterns of a profile: names to entries, in bounded time, and what makes an entry valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warmstart.profiles import naming
from warmstart.profiles.contract import Profile
from warmstart.profiles.judge import judge

PLAIN = Profile({"MYTOOL_CACHE": "{dir}"}, {"*": ()}, name="mytool", relocation="relocatable")


def entry_of(path: str, *patterns: str, **changes: Any) -> str | None:  # noqa: ANN401
    """Return the entry of a file by a profile with these patterns of entries."""
    return naming.entry_of(PLAIN._replace(entries=dict.fromkeys(patterns, ()), **changes), path)


@pytest.mark.parametrize(
    ("pattern", "path", "entry"),
    [
        ("*.bin", "a.bin", "a.bin"),
        ("*.bin", "d/a.bin", None),
        ("*.bin", "a.bin.lock", None),
        ("**/*.bin", "a.bin", "a.bin"),
        ("**/*.bin", "d/e/a.bin", "d/e/a.bin"),
        ("**", "d/e/a.bin", "d/e/a.bin"),
        ("v*/**/k*.so", "v1/x/y/k7.so", "v1/x/y/k7.so"),
        ("v*/**/k*.so", "v1/k7.so", "v1/k7.so"),
        ("v*/**/k*.so", "v1/x/l7.so", None),
        # A `/` at the end takes the shortest directory whole.
        ("kernels/*/", "kernels/abc/deep/er/x", "kernels/abc"),
        ("kernels/*/", "kernels/abc", None),
        ("kernels/*/", "other/abc/x", None),
        ("**/*.d/", "a/b.d/c/e.d/x", "a/b.d"),
        # What stands in braces is no part of the entry's name; of several ends the shortest counts.
        ("k/*{.a,.b.c}", "k/x.y.a", "k/x.y"),
        ("k/*{.a,.b.c}", "k/x.b.c", "k/x"),
        ("k/*{.a,.*.c}", "k/x.y.1.c", "k/x.y"),
        ("k/*{.a,.*.c}", "k/x.c", None),
        ("k/*{.a,.*.c}", "k/.a", None),
        ("k/{pre-,}*{.a,.b}", "k/pre-x.a", "k/x"),
        ("k/{pre-,}*{.a,.b}", "k/x.b", "k/x"),
        ("k/*/{.log,*.so}", "k/x/.log", "k/x"),
        ("k/*/{.log,*.so}", "k/x/y.so", "k/x"),
        ("k/*/{.log,*.so}", "k/x/.y.so", None),
        ("k/*/{.log,*.so}", "k/x/z/y.so", None),
        # Locks and temporaries never.
        ("kernels/*/", "kernels/tmp.17/x", None),
        ("kernels/*/", "kernels/abc/locks/x", None),
        ("kernels/*/", "kernels/abc/lock", None),
        ("kernels/*/", "kernels/abc/.hidden", None),
        ("kernels/*/", "kernels/abc/.hidden/x", None),
        ("**", ".config/a", None),
        ("**", "a/.hidden/b", None),
        # A pattern that begins with the dot names it.
        (".config/**", ".config/a/b", ".config/a/b"),
        (".c*", ".cc", ".cc"),
        ("kernels/*/", "kernels/abc/part.tmp", None),
        # Paths that no directory holds.
        *(("**", path, None) for path in ("../a", "a/../b", "/a", "a/", "./a", "a//b")),
        # Names are the user's; those with control characters are left to the scan.
        *(("*", path, path) for path in ("a b", "x=1,seed=2", "[exp]", "größe", "\udcff", "#a", "a\\b")),
    ],
)
def test_patterns_name_entries(pattern: str, path: str, entry: str | None) -> None:
    assert entry_of(path, pattern) == entry


@pytest.mark.parametrize(
    ("path", "entry"), [("a/x/y.bin", "a/x"), ("b/y.bin", "b/y.bin"), ("k/a.log", None), ("scratch1/a.bin", None)]
)
def test_the_first_pattern_counts_and_what_the_site_never_wants_is_left(path: str, entry: str | None) -> None:
    assert entry_of(path, "a/*/", "a/*/*.bin", "**", never=("*.log", "scratch*")) == entry


@pytest.mark.parametrize("path", [".nfs0001", ".b.swp", ".lock", ".x.tmp", ".x.part", ".x.incomplete", ".staging-1"])
def test_leftovers_of_file_systems_and_editors_are_never_entries(path: str) -> None:
    assert entry_of(path, ".*") is None


def test_a_name_can_not_make_a_pattern_slow() -> None:
    """A backtracking matcher would not end in this world's lifetime: a job's owner chooses the names."""
    assert entry_of("a" * 255, "*a" * 60 + "*b") is None


def test_the_shortest_end_of_a_name_is_found_in_bounded_time() -> None:
    assert entry_of("." * 255, "*{.*a,.*b}") is None
    assert entry_of("a." * 120, "*{.*.*.*.*c,*}") is not None


def test_an_entry_of_a_cache_in_a_cache_is_named_by_its_own_profile() -> None:
    nested = PLAIN._replace(nested={"caches/*/": "deepgemm"})
    kernel = "cache/kernel.f.01/kernel.cu"
    assert naming.entry_of(nested, f"caches/a/{kernel}") == "caches/a/cache/kernel.f.01"
    assert naming.entry_of(nested, f"caches/{kernel}") is None
    assert naming.entry_of(nested._replace(never=("a",)), f"caches/a/{kernel}") is None


TWO: dict[str, Any] = {"entries": {"*/": ("meta.json", "*.so")}}
KINDS: dict[str, Any] = {"entries": {"**": ()}, "formats": {"d/*": "written", "*.json": "json", "*": "any"}}


@pytest.mark.parametrize(
    ("changes", "files", "reason"),
    [
        (TWO, {"k/meta.json": b"{}", "k/x.so": b"x"}, None),
        (TWO, {"k/meta.json": b"{}"}, "incomplete"),
        ({"entries": {"*/": ()}, "max_size": 10}, {"k/a": b"12345", "k/b": b"12345"}, None),
        ({"entries": {"*/": ()}, "max_size": 10}, {"k/a": b"12345", "k/b": b"123456"}, "too-large"),
        (KINDS, {"e.json": b"{"}, "json-malformed"),
        (KINDS, {"d/e/f.json": b"{"}, None),  # the first pattern of formats that fits, with a `/` of the path
        (KINDS, {"d/e/f.json": b""}, "not-written"),
        (KINDS, {"e": b""}, None),
    ],
)
def test_what_makes_an_entry_valid(
    stage: Path, stage_fd: int, changes: dict[str, Any], files: dict[str, bytes], reason: str | None
) -> None:
    definition = PLAIN._replace(**changes)
    for name, content in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(content)
    entry = naming.entry_of(definition, next(iter(files)))
    assert entry
    assert dict(judge("mytool", stage_fd, {entry: list(files)}, [definition])) == {entry: reason}
