"""Which files belong to which entry, by a profile's patterns. Sees names only, which jobs choose.

Patterns have `*` alone: root matches them against these names, so no name may make a match slow.
"""

from __future__ import annotations

from warmstart.lean import NamedTuple, Sequence, fnmatchcase
from warmstart.profiles.contract import Profile

# Left out of every profile: locks and work in progress of many tools, leftovers of editors and file systems.
_NEVER = {"lock", "locks"}
_NEVER_BEFORE = ("tmp.", ".tmp", ".nfs", ".staging")
_NEVER_AFTER = (".lock", ".tmp", ".part", ".incomplete", ".swp")


class _Pattern(NamedTuple):
    """A pattern of paths, taken apart."""

    is_directory: bool
    parts: list[str]  # of braces' patterns those above the last one
    starts: tuple[str, ...] = ()
    stem: str = ""
    ends: tuple[str, ...] = ()  # not empty: it has braces


_patterns: dict[str, _Pattern] = {}


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
    if any(map(_is_never, parts)) or any(fnmatchcase(part, pattern) for pattern in profile.never for part in parts):
        return None
    if found := _own(profile, "", parts):
        return found
    for pattern, name in profile.nested.items():
        if length := _length(_taken_apart(pattern).parts, parts):
            from warmstart.profiles import registry

            return _own(registry.get(name), "/".join([*parts[:length], ""]), parts[length:])
    return None


def _is_never(part: str) -> bool:
    return not part or part in _NEVER or part.startswith(_NEVER_BEFORE) or part.endswith(_NEVER_AFTER)


def _own(profile: Profile, below: str, parts: Sequence[str]) -> Named | None:
    for text, needed in profile.entries.items():
        pattern = _taken_apart(text)
        if pattern.ends:
            entry = _between_braces(pattern, parts)
        elif pattern.is_directory:
            length = _length(pattern.parts, parts)
            entry = "" if any(map(_is_hidden, parts[length:])) else "/".join(parts[:length])
        else:
            entry = "/".join(parts) if _fit(pattern.parts, parts) else ""
        if entry:
            return Named(profile, below, entry, needed)
    return None


def _taken_apart(text: str) -> _Pattern:
    pattern = _patterns.get(text)
    if pattern is None:
        *above, last = text.rstrip("/").split("/")
        if last.endswith("}"):
            first, _, ends = last[:-1].rpartition("{")
            starts, _, stem = first.rpartition("}")
            pattern = _Pattern(False, above, tuple(starts[1:].split(",")), stem, tuple(ends.split(",")))
        else:
            pattern = _Pattern(text.endswith("/"), [*above, last])
        _patterns[text] = pattern
    return pattern


def _between_braces(pattern: _Pattern, parts: Sequence[str]) -> str:
    """Return the path without what stands in braces: a beginning and the shortest end; "" if it does not fit."""
    *above, last = parts
    if not _fit(pattern.parts, above):
        return ""
    if not pattern.stem:  # the whole name is the end, and the directory is the entry
        return "/".join(above) if any(_fits(last, end) for end in pattern.ends) else ""
    last = last[max(len(start) for start in (*pattern.starts, "") if last.startswith(start)) :]
    at = max(_end_of(last, end) for end in pattern.ends)
    return "/".join([*above, last[:at]]) if at > 0 and _fits(last[:at], pattern.stem) else ""


def _end_of(name: str, end: str) -> int:
    """Return where the shortest end of a name begins that the pattern fits, -1 if it fits none."""
    first, star, _ = end.partition("*")
    if not star:
        return len(name) - len(end) if name.endswith(end) else -1
    fitting = (at for at in range(len(name), -1, -1) if name.startswith(first, at) and fnmatchcase(name[at:], end))
    return next(fitting, -1)


def _length(patterns: Sequence[str], parts: Sequence[str]) -> int:
    """Return how many parts are the shortest directory that patterns name; 0 if there is none."""
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
