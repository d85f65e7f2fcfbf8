"""Profiles that a policy defines: names to entries, in bounded time, and what makes an entry valid."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.profiles import registry
from warmstart.profiles.defined import DefinedProfile, profile_of
from warmstart.profiles.entry_files import EntryFiles
from warmstart.profiles.judge import judge

PLAIN = DefinedProfile({"MYTOOL_CACHE": "{dir}"}, ("*",), relocation="relocatable", max_size=1 << 20, name="mytool")


def entry_of(path: str, *patterns: str, **changes: Any) -> str | None:  # noqa: ANN401
    """Return the entry of a file by a definition with these patterns of entries."""
    return profile_of(PLAIN._replace(entries=patterns, **changes)).entry_of(path)


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
        # Locks and temporaries never.
        ("kernels/*/", "kernels/tmp.17/x", None),
        ("kernels/*/", "kernels/abc/locks/x", None),
        ("kernels/*/", "kernels/abc/.hidden", None),
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
    assert entry_of(path, "a/*/", "a/*/*.bin", "**", never=["*.log", "scratch*"]) == entry


@pytest.mark.parametrize("path", [".config/a", "a/.hidden/b", ".c"])
def test_hidden_files_are_entries_where_the_profile_says_so(path: str) -> None:
    assert (entry_of(path, "**"), entry_of(path, "**", hidden=True)) == (None, path)


@pytest.mark.parametrize("path", [".nfs0001", "a/.b.swp", ".lock", "a/.x.tmp"])
def test_leftovers_of_file_systems_and_editors_are_never_entries(path: str) -> None:
    assert entry_of(path, "**", hidden=True) is None


PARTS = st.text(alphabet="ab*?.[]-", min_size=1, max_size=12)


@given(st.lists(PARTS, min_size=1, max_size=4), st.booleans(), st.text(alphabet="ab./-", max_size=40))
def test_an_entry_always_begins_its_files_paths(parts: list[str], directory: bool, path: str) -> None:
    entry = entry_of(path, "/".join(parts) + "/" * directory)
    assert entry is None or (path.startswith(f"{entry}/") if directory else path == entry)


def test_a_name_can_not_make_a_pattern_slow() -> None:
    """A backtracking matcher would not end in this world's lifetime: a job's owner chooses the names."""
    assert entry_of("a" * 255, "*a" * 60 + "*b") is None


TOLD = f"{hashlib.sha256(b'engine').hexdigest()}  e.plan\n".encode()
TWO: dict[str, Any] = {"entries": ["*/"], "needs": ["meta.json", "*.so"]}
SUMS: dict[str, Any] = {"entries": ["**"], "sidecars": True, "formats": {"*.json": "json", "*": "written"}}


@pytest.mark.parametrize(
    ("changes", "files", "reason"),
    [
        (TWO, {"k/meta.json": b"{}", "k/x.so": b"x"}, None),
        (TWO, {"k/meta.json": b"{}"}, "incomplete"),
        ({"entries": ["*/"], "max_size": 10}, {"k/a": b"12345", "k/b": b"12345"}, None),
        ({"entries": ["*/"], "max_size": 10}, {"k/a": b"12345", "k/b": b"123456"}, "too-large"),
        (SUMS, {"e.plan": b"engine", "e.plan.sha256": TOLD}, None),
        (SUMS, {"e.plan": b"Engine", "e.plan.sha256": TOLD}, "hash-differs"),
        (SUMS, {"e.plan.sha256": TOLD}, "incomplete"),
        (SUMS, {"e.plan": b"anything"}, None),
        (SUMS, {"e.json": b"{"}, "json-malformed"),
        # An `__init__.py` is often empty; of a kernel that is what a crash leaves.
        (SUMS, {"a/__init__.py": b""}, "blob-empty"),
        ({**SUMS, "empty": True}, {"a/__init__.py": b""}, None),
        ({**SUMS, "empty": True}, {"a.py": b"", "a.py.sha256": TOLD}, "hash-differs"),
    ],
)
def test_what_makes_an_entry_valid(
    stage: Path, stage_fd: int, changes: dict[str, Any], files: dict[str, bytes], reason: str | None
) -> None:
    definition = PLAIN._replace(**changes)
    for name, content in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(content)
    entry = profile_of(definition).entry_of(next(iter(files)))
    assert entry
    assert judge("mytool", stage_fd, {entry: list(files)}, [definition]) == {entry: reason}


def test_a_definition_does_not_replace_a_profile_of_the_same_name() -> None:
    assert registry.get("mytool", [PLAIN]).environment("/c", str) == {"MYTOOL_CACHE": "/c/mytool"}
    assert registry.get("numba", [PLAIN._replace(name="numba")]).variables == registry.get("numba").variables
    assert {"mytool", "numba"} < {*registry.names([PLAIN])}


class Counted(str):
    """A name that counts how often any is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_directory_of_many_files_is_judged_in_linear_time(stage: Path, stage_fd: int) -> None:
    """Every file is opened; which of the entry's it is takes no walk over all of them."""
    names = [f"d/{number:03}{ending}" for number in range(200) for ending in ("", ".sha256")]
    (stage / "d").mkdir()
    for name in names:
        content = f"{hashlib.sha256(b'x').hexdigest()}  name\n" if name.endswith(".sha256") else "x"
        (stage / name).write_text(content)
    files = EntryFiles(stage_fd, "d", map(Counted, names))
    Counted.compared = 0
    profile_of(PLAIN._replace(entries=("d/",), sidecars=True, formats={"*": "written"})).validate(files)
    assert Counted.compared < 10 * len(names)
