"""Which files belong to which entry, by a profile's patterns. Sees names only, which jobs choose.

Patterns have `*` alone: root matches them against these names, so no name may make a match slow.
"""

from __future__ import annotations

from warmstart.lean import NamedTuple, Sequence, fnmatchcase
from warmstart.profiles.contract import Profile

# Left out of every profile: locks and work in progress of many tools, leftovers of editors and file systems.
_NEVER = (
    "*.lock", "*.tmp", "*.part", "*.incomplete", "lock", "locks", "tmp.*", ".nfs*", ".staging*", ".tmp*", "*.swp",
)  # fmt: skip


class Named(NamedTuple):
    """Where a file belongs."""

    profile: Profile  # whose entry it is: that of a nested cache, or the one that was asked
    below: str  # the nested cache's directory, with a `/` at its end, or ""
    entry: str  # in there
    needed: Sequence[str]  # patterns of names: what completes it


def entry_of(profile: Profile, path: str) -> str | None:
    """Return the entry of a regular file, the profile's own or of a nested cache; None for what is never harvested.

    `path` is relative to the profile's directory, any string that a directory may hold (undecodable bytes as
    surrogates). Names with control characters are not harvested whatever this says (`store.layout.is_plain_path`).
    """
    named = find(profile, path)
    return named.below + named.entry if named else None


def find(profile: Profile, path: str) -> Named | None:
    """Return where a file belongs, None if it is no entry's."""
    parts = path.split("/")
    never = (*_NEVER, *profile.never)
    if not all(parts) or any(fnmatchcase(part, pattern) for part in parts for pattern in never):
        return None
    if found := _own(profile, "", parts):
        return found
    for pattern, name in profile.nested.items():
        if length := _length(pattern, parts):
            from warmstart.profiles import registry

            return _own(registry.get(name), "/".join([*parts[:length], ""]), parts[length:])
    return None


def _own(profile: Profile, below: str, parts: Sequence[str]) -> Named | None:
    for pattern, needed in profile.entries.items():
        if pattern.endswith("}"):
            entry = _between_braces(pattern, parts)
        elif pattern.endswith("/"):
            length = _length(pattern, parts)
            entry = "" if any(map(_is_hidden, parts[length:])) else "/".join(parts[:length])
        else:
            entry = "/".join(parts) if _fit(pattern.split("/"), parts) else ""
        if entry:
            return Named(profile, below, entry, needed)
    return None


def _between_braces(pattern: str, parts: Sequence[str]) -> str:
    """Return the path without what stands in braces: a beginning and the shortest end; "" if it does not fit."""
    *above, last = parts
    *patterns, of_last = pattern.split("/")
    if not _fit(patterns, above):
        return ""
    of_last, _, ends = of_last[:-1].rpartition("{")
    if not of_last:  # the whole name is the end, and the directory is the entry
        return "/".join(above) if any(_fits(last, end) for end in ends.split(",")) else ""
    if of_last.startswith("{"):
        starts, _, of_last = of_last[1:].partition("}")
        last = last[max((len(start) for start in starts.split(",") if last.startswith(start)), default=0) :]
    at = max(_end_of(last, end) for end in ends.split(","))
    return "/".join([*above, last[:at]]) if at > 0 and _fits(last[:at], of_last) else ""


def _end_of(name: str, end: str) -> int:
    """Return where the shortest end of a name begins that the pattern fits, -1 if it fits none."""
    first, star, _ = end.partition("*")
    if not star:
        return len(name) - len(end) if name.endswith(end) else -1
    at = name.rfind(first)
    while at >= 0 and not fnmatchcase(name[at:], end):
        at = name.rfind(first, 0, at + len(first) - 1) if at else -1
    return at


def _length(pattern: str, parts: Sequence[str]) -> int:
    """Return how many parts are the shortest directory that a pattern with a `/` at its end names; 0: none are."""
    patterns = pattern.rstrip("/").split("/")
    return next((length for length in range(1, len(parts)) if _fit(patterns, parts[:length])), 0)


def _fit(patterns: Sequence[str], parts: Sequence[str]) -> bool:
    if "**" in patterns:
        at = patterns.index("**")
        after = len(patterns) - at - 1
        if len(parts) < at + after or any(map(_is_hidden, parts[at : len(parts) - after])):
            return False
        patterns = [*patterns[:at], *patterns[at + 1 :]]
        parts = [*parts[:at], *parts[len(parts) - after :]]
    return len(patterns) == len(parts) and all(map(_fits, parts, patterns))


def _fits(name: str, pattern: str) -> bool:
    """Match one name; as in a shell, no `*` stands for the dot that a name begins with."""
    return fnmatchcase(name, pattern) and not (_is_hidden(name) and pattern.startswith("*"))


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
