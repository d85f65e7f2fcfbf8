"""Profiles that a site defines in its policy: variables, which files are entries, how they are checked. No code.

Entry rules are shell patterns and no regular expressions: root matches them against names that a job's owner
chooses, so the time that a match takes must not depend on what the name is. Hot path: `profile_of`; patterns are
compiled when the first name is looked at, by an epilog or a judge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from warmstart.profiles.contract import Fact, Profile, Relocation

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

# Whatever the policy says: locks and work in progress of many tools (docs/cache-formats.md, Work in progress).
_NEVER = ("*.lock", "*.tmp", "*.part", "*.incomplete", "lock", "locks", ".*", "tmp.*")
FILES = "files"  # the profile of what a job declares; every policy has one
SIDECAR = ".sha256"
# What `formats.by_name` checks; here because the policy's loader needs the names alone.
Format = Literal[
    "any",
    "compressed",
    "cubin",
    "json",
    "library",
    "not-empty",
    "object",
    "pickle",
    "sha256-name",
    "text",
    "written",
]
FORMATS: tuple[str, ...] = get_args(Format)
# What every name of an entry is made of (store-format.md); nothing else is looked at.
_PLAIN = re.compile(r"[A-Za-z0-9_.+@%=,~-]{1,255}(/[A-Za-z0-9_.+@%=,~-]{1,255}){0,15}")


class DefinedProfile(NamedTuple):
    """One profile as the policy has it. Plain data: it travels to the judge as JSON.

    A pattern of `entries` is a path below the profile's directory, of parts with `*`, `?` and `[…]`; one part may
    be `**` (any number of parts). With a `/` at its end it names directories, each an entry with all that is in it;
    without, files, each an entry. Of several patterns the first that fits counts. `never`, `needs` and the keys of
    `formats` are patterns of one part.
    """

    name: str
    variables: dict[str, str]
    relocation: Relocation
    facts: Sequence[Fact]
    entries: Sequence[str]
    never: Sequence[str]  # names that no part of a file's path may have
    needs: Sequence[str]  # of each, an entry has at least one file
    formats: dict[str, str]  # pattern → one of `FORMATS`; the first that fits a file's name
    max_size: int  # bytes of one entry
    after_success: bool = False  # whether a failed job's entries are left out
    sidecars: bool = False  # whether NAME.sha256 belongs to the entry NAME, and is compared with it


def profile_of(defined: DefinedProfile) -> Profile:
    """Return the profile that a definition makes."""

    def entry_of(path: str) -> str | None:
        return _entry_of(defined, path)

    def validate(files: EntryFiles) -> None:
        _validate(defined, files)

    return Profile(
        name=defined.name,
        subdir=defined.name,
        variables=defined.variables,
        relocation=defined.relocation,
        facts=tuple(defined.facts),
        entry_of=entry_of,
        validate=validate,
        after_success=defined.after_success,
    )


def _entry_of(defined: DefinedProfile, path: str) -> str | None:
    if not _PLAIN.fullmatch(path):
        return None
    parts = path.split("/")
    if any(_fits(pattern, part) for part in parts for pattern in (*_NEVER, *defined.never)):
        return None
    if defined.sidecars and path.endswith(SIDECAR):
        parts[-1] = parts[-1].removesuffix(SIDECAR)
    for pattern in defined.entries:
        length = _length(pattern, parts)
        if length:
            return "/".join(parts[:length])
    return None


def _length(pattern: str, parts: list[str]) -> int:
    """Return how many of the parts are the entry's name, 0 where the pattern does not fit."""
    patterns = pattern.rstrip("/").split("/")
    if not pattern.endswith("/"):
        return len(parts) if _fit(patterns, parts) else 0
    # The shortest directory: what lies in an entry is never an entry of its own.
    return next((length for length in range(1, len(parts)) if _fit(patterns, parts[:length])), 0)


def _fit(patterns: list[str], parts: list[str]) -> bool:
    if "**" in patterns:
        at = patterns.index("**")
        after = len(patterns) - at - 1
        if len(parts) < at + after:
            return False
        patterns = [*patterns[:at], *patterns[at + 1 :]]
        parts = [*parts[:at], *parts[len(parts) - after :]]
    return len(patterns) == len(parts) and all(map(_fits, patterns, parts))


def _fits(pattern: str, part: str) -> bool:
    return _compiled(pattern).match(part) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    # CPython translates `*` so that it never goes back (bpo-40480), and a part has at most 255 letters.
    from fnmatch import translate

    return re.compile(translate(pattern))


def _validate(defined: DefinedProfile, files: EntryFiles) -> None:
    """Prove what the definition asks for: needed files, sizes, formats, checksums. Anything else is not looked at."""
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import by_name, plain

    names = {name: name.rpartition("/")[2] for name in files.names}
    if any(not any(_fits(pattern, base) for base in names.values()) for pattern in defined.needs):
        raise EntryInvalid("incomplete")
    plain.check_total(files, defined.max_size)
    for name, base in names.items():
        if defined.sidecars and name.endswith(SIDECAR):
            by_name.check_sidecar(files, name)
            continue
        pattern = next((pattern for pattern in defined.formats if _fits(pattern, base)), "")
        by_name.check(defined.formats.get(pattern, "any"), files, name)
