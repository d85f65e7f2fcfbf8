"""What a job has built again is compared with what is published, and nothing else is done about it."""

from __future__ import annotations

from warmstart.harvest.sample import MOST_NAMED, Difference, Published, compare
from warmstart.profiles import registry
from warmstart.store.manifest import Entries, File

TRITON = registry.get("triton")
SAME, OTHER = "aa" * 32, "bb" * 32


def entry(key: str, cubin: str, group: str = SAME, suffix: str = "cubin") -> Entries:
    """Return an entry with a file and a group."""
    return {key: {f"{key}/k.{suffix}": File(4, cubin, 1), f"{key}/__grp__k.json": File(4, group, 1)}}


def test_entries_are_equal_different_or_not_comparable() -> None:
    """By the files that the tool makes alike: a group names paths. Only what both have; times do not count."""
    built = {**entry("a", SAME), **entry("b", SAME), **entry("c", SAME, suffix="autotune.json"), **entry("d", SAME)}
    there = {**entry("a", SAME, OTHER), **entry("b", OTHER), **entry("c", OTHER, suffix="autotune.json")}
    there["a"]["a/k.cubin"] = File(4, SAME, 99)
    there["b"]["b/k.ptx"] = File(4, OTHER, 1)
    result = compare(TRITON, built, [Published("site", "bundle", {**there, **entry("e", OTHER)})])
    assert result[:3] == (1, 1, 1)
    assert result.differences == [Difference("b", "b/k.cubin", "site", "bundle", SAME, OTHER)]


def test_what_is_named_is_bounded() -> None:
    """A job chooses how many there are."""
    keys = [str(number) for number in range(MOST_NAMED + 5)]
    built = {key: files for name in keys for key, files in entry(name, SAME).items()}
    there = {key: files for name in keys for key, files in entry(name, OTHER).items()}
    result = compare(TRITON, built, [Published("site", "bundle", there)])
    assert (result.different, len(result.differences)) == (MOST_NAMED + 5, MOST_NAMED)


def test_of_most_tools_nothing_repeats() -> None:
    """Numba's data names depend on what was compiled before; the time that it took is in JAX's entries."""
    for name in ("numba", "jax"):
        assert not registry.get(name).repeats("any/file.nbc")
