"""Profiles that a policy defines: names to entries, in bounded time, and what makes an entry valid."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import ClassVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import cubin, relocatable, shared
from warmstart.policy.schema import Format
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.defined import DefinedProfile, profile_of
from warmstart.profiles.entry_files import EntryFiles
from warmstart.profiles.judge import judge


def defined(*entries: str, **changes: object) -> DefinedProfile:
    """Return a definition with these patterns of entries."""
    plain = DefinedProfile(
        name="mytool",
        variables={"MYTOOL_CACHE": "{dir}"},
        relocation="relocatable",
        facts=["image"],
        entries=entries,
        never=[],
        needs=[],
        formats={},
        max_size=1 << 20,
    )
    return plain._replace(**changes)  # type: ignore[arg-type]


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
        ("kernels/*/", "kernels/abc/meta.json", "kernels/abc"),
        ("kernels/*/", "kernels/abc/deep/er/x", "kernels/abc"),
        ("kernels/*/", "kernels/abc", None),
        ("kernels/*/", "other/abc/x", None),
        ("**/*.d/", "a/b.d/c/e.d/x", "a/b.d"),
        ("kernels/*/", "kernels/tmp.17/x", None),
        ("kernels/*/", "kernels/abc/locks/x", None),
        ("kernels/*/", "kernels/abc/.hidden", None),
        ("kernels/*/", "kernels/abc/part.tmp", None),
    ],
)
def test_patterns_name_entries(pattern: str, path: str, entry: str | None) -> None:
    """Parts match parts; a `/` at the end takes the shortest directory whole; locks and temporaries never."""
    assert profile_of(defined(pattern)).entry_of(path) == entry


def test_the_first_pattern_that_fits_counts() -> None:
    """So no file belongs to two entries."""
    rule = profile_of(defined("a/*/", "a/*/*.bin", "**/*.bin")).entry_of
    assert [rule("a/x/y.bin"), rule("b/y.bin"), rule("a/y.bin")] == ["a/x", "b/y.bin", "a/y.bin"]


def test_what_the_site_never_wants() -> None:
    """`never` is compared with every part of a path."""
    rule = profile_of(defined("*/", never=["*.log", "scratch*"])).entry_of
    assert [rule("k/a.bin"), rule("k/a.log"), rule("k/scratch1/a.bin")] == ["k", None, None]


@pytest.mark.parametrize("path", ["../a", "a/../b", "/a", "a/", "./a", "a//b"])
def test_paths_that_no_directory_holds_belong_nowhere(path: str) -> None:
    """Whatever the patterns say, no entry leads elsewhere."""
    for pattern in ("**", "*/", "**/*"):
        assert profile_of(defined(pattern)).entry_of(path) is None


@pytest.mark.parametrize("path", ["a b", "x=1,seed=2", "[exp]", "größe", "\udcff", "#a", "a\\b"])
def test_any_name_can_be_an_entry(path: str) -> None:
    """Names are the user's; those with control characters are left to the scan."""
    assert profile_of(defined("*")).entry_of(path) == path
    assert profile_of(defined("*/")).entry_of(f"{path}/x") == path


PARTS = st.text(alphabet="ab*?.[]-", min_size=1, max_size=12)


@given(st.lists(PARTS, min_size=1, max_size=4), st.booleans(), st.text(alphabet="ab./-", max_size=40))
def test_an_entry_always_begins_its_files_paths(parts: list[str], directory: bool, path: str) -> None:
    """Any pattern, any path: the contract's rules hold."""
    entry = profile_of(defined("/".join(parts) + "/" * directory)).entry_of(path)
    assert entry is None or path == entry or path.startswith(f"{entry}/")
    assert entry is None or (directory and path != entry) or (not directory and path == entry)


def test_a_name_can_not_make_a_pattern_slow() -> None:
    """A backtracking matcher would not end in this world's lifetime: a job's owner chooses the names."""
    rule = profile_of(defined("*a" * 60 + "*b")).entry_of
    assert rule("a" * 255) is None


def verdict(profile: DefinedProfile, stage: Path, files: dict[str, bytes]) -> str | None:
    """Return what the judge says of one entry."""
    for name, content in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(content)
    entry = profile_of(profile).entry_of(next(iter(files)))
    assert entry
    fd = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return judge(profile.name, fd, {entry: list(files)}, [profile])[entry]
    finally:
        os.close(fd)


def test_needed_files(tmp_path: Path) -> None:
    """An entry without one of them is half written."""
    profile = defined("*/", needs=["meta.json", "*.so"])
    assert verdict(profile, tmp_path / "1", {"k/meta.json": b"{}", "k/x.so": b"x"}) is None
    assert verdict(profile, tmp_path / "2", {"k/meta.json": b"{}"}) == "incomplete"


def test_the_size_of_an_entry(tmp_path: Path) -> None:
    """All files of an entry count together."""
    profile = defined("*/", max_size=10)
    assert verdict(profile, tmp_path / "1", {"k/a": b"12345", "k/b": b"12345"}) is None
    assert verdict(profile, tmp_path / "2", {"k/a": b"12345", "k/b": b"123456"}) == "too-large"


def test_a_checksum_beside_a_file(tmp_path: Path) -> None:
    """What the job says of its own file has to be true, and the file has to be there."""
    profile = defined("**", sidecars=True)
    told = f"{hashlib.sha256(b'engine').hexdigest()}  e.plan\n".encode()
    assert verdict(profile, tmp_path / "1", {"e.plan": b"engine", "e.plan.sha256": told}) is None
    assert verdict(profile, tmp_path / "2", {"e.plan": b"Engine", "e.plan.sha256": told}) == "hash-differs"
    assert verdict(profile, tmp_path / "3", {"e.plan": b"engine", "e.plan.sha256": b"\xff"}) == "hash-differs"
    assert verdict(profile, tmp_path / "4", {"e.plan.sha256": told}) == "incomplete"
    assert verdict(profile, tmp_path / "5", {"e.plan": b"anything"}) is None


GOOD = {
    "any": b"",
    "compressed": b"x\x9cKLJ\x06\x00\x02M\x01'",
    "cubin": cubin(),
    "json": b"[1]",
    "library": shared(),
    "not-empty": b"\0",
    "object": relocatable(),
    "pickle": b"\x80\x04N.",
    "text": b"words\n",
    "written": b"words",
}
BAD = {
    "compressed": ("compressed-malformed", GOOD["compressed"][:-1]),
    "cubin": ("elf-truncated", cubin()[:-100]),
    "json": ("json-malformed", b"[1"),
    "library": ("elf-malformed", relocatable()),
    "not-empty": ("blob-empty", b""),
    "object": ("elf-malformed", shared()),
    "pickle": ("pickle-truncated", b"\x80\x04N"),
    "sha256-name": ("name-not-hash", b"other"),
    "text": ("text-malformed", b"\xff"),
    "written": ("blob-zeroes", b"words" + bytes(8192)),
}


@pytest.mark.parametrize("kind", sorted({*GOOD, *BAD}))
def test_every_format_tells_good_from_bad(kind: str, tmp_path: Path) -> None:
    """The names that a policy may use, each with a file that is well-formed and one that is not."""
    content = GOOD.get(kind, b"content")
    name = hashlib.sha256(content).hexdigest() + ".x"
    profile = defined("*", formats={"*.txt": "text", "*": kind})
    assert verdict(profile, tmp_path / "good", {name: content}) is None
    if kind != "any":
        reason, damaged = BAD[kind]
        assert verdict(profile, tmp_path / "bad", {name: damaged}) == reason


def test_an_empty_file_is_one_where_the_profile_says_so(tmp_path: Path) -> None:
    """An `__init__.py` often is; of a kernel it is what a crash leaves."""
    for empty, reason in ((True, None), (False, "blob-empty")):
        profile = defined("**", formats={"*": "written"}, sidecars=True, empty=empty)
        assert verdict(profile, tmp_path / str(empty), {"a/__init__.py": b""}) == reason
        wrong = hashlib.sha256(b"x").hexdigest().encode()
        bad = verdict(profile, tmp_path / f"{empty}-sidecar", {"a.py": b"", "a.py.sha256": wrong})
        assert bad == ("hash-differs" if empty else "blob-empty")


def test_hidden_files_are_entries_where_the_profile_says_so() -> None:
    """But no leftovers of file systems and editors."""
    profile, shown = profile_of(defined("**")), profile_of(defined("**", hidden=True))
    for path in (".config/a", "a/.hidden/b", ".c"):
        assert (profile.entry_of(path), shown.entry_of(path)) == (None, path)
    for path in (".nfs0001", "a/.b.swp", ".lock", "a/.x.tmp"):
        assert shown.entry_of(path) is None


def test_the_table_has_every_format() -> None:
    """What the policy's loader takes, the validator knows."""
    assert {*GOOD, *BAD} == {*get_args(Format)}


def test_the_registry_knows_both_kinds() -> None:
    """Those that come with warmstart can't be replaced by a definition of the same name."""
    mine, shadow = defined("*"), defined("*", name="numba")
    assert isinstance(registry.get("mytool", [mine]), Profile)
    assert registry.get("numba", [shadow]).name == "numba"
    assert registry.get("numba", [shadow]).variables == registry.get("numba").variables
    assert {"mytool", "numba"} < {*registry.names([mine])}
    assert registry.get("mytool", [mine]).environment("/c", str) == {"MYTOOL_CACHE": "/c/mytool"}


class Counted(str):
    """A name that counts how often any is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_directory_of_many_files_is_judged_in_linear_time(tmp_path: Path) -> None:
    """Every file is opened; which of the entry's it is takes no walk over all of them."""
    names = [f"d/{number:03}{ending}" for number in range(200) for ending in ("", ".sha256")]
    (tmp_path / "d").mkdir()
    for name in names:
        content = f"{hashlib.sha256(b'x').hexdigest()}  name\n" if name.endswith(".sha256") else "x"
        (tmp_path / name).write_text(content)
    rule = defined("d/", sidecars=True, formats={"*": "written"})
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    files = EntryFiles(fd, "d", map(Counted, names))
    Counted.compared = 0
    try:
        profile_of(rule).validate(files)
    finally:
        os.close(fd)
    assert Counted.compared < 10 * len(names)
