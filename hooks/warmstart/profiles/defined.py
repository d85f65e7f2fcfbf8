"""Profiles that a site defines in its policy, without code: variables, entry patterns, checks.

Entries are named by shell patterns instead of regular expressions: root matches them against names that jobs choose, so
no name may make a match slow (CPython translates `*` without backtracking, bpo-40480). Hot path: `profile_of`.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, NamedTuple, Sequence, fnmatchcase
from warmstart.profiles.contract import Fact, Profile, Relocation

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

# Left out by every policy: locks and work in progress of many tools.
_NEVER = ("*.lock", "*.tmp", "*.part", "*.incomplete", "lock", "locks", "tmp.*")
_HIDDEN = (".*",)
_NEVER_HIDDEN = (".lock", ".lockfile", ".nfs*", ".staging*", ".tmp*", ".*.swp")  # of those that are kept if asked for
FILES = "files"  # the profile of files that jobs declare; every policy has it
# What wings pack lies in the store in place of a profile, under such a name: a whole, which is one entry, and whose
# manifest names no files. So it can be verified, kept and promoted where its wing is gone.
WHOLE = "whole-"
OWNERS = "owners"  # the fact of a whole that may leave its user's scope: the uids of whom the policy names
SIDECAR = ".sha256"
IN_TMPDIR = "{TMPDIR:/tmp}"


class DefinedProfile(NamedTuple):
    """One profile as the policy defines it. Plain data, because it is sent to the validator as JSON.

    A pattern in `entries` is a path below the profile's directory. Its parts may have `*`, `?` and `[…]`, and one part
    may be `**` (any number of parts). With a trailing `/` it names directories: each is one entry with everything in
    it. Without, each file that matches is an entry. The first matching pattern decides. `never`, `needs` and the keys
    of `formats` are patterns of one part.
    """

    name: str
    variables: dict[str, str]
    relocation: Relocation
    facts: Sequence[Fact]
    entries: Sequence[str]
    never: Sequence[str]  # files with such a name in their path are left out
    needs: Sequence[str]  # an entry needs at least one file for each pattern
    formats: dict[str, str]  # pattern → a check of `formats.by_name`; the first that matches a file's name decides
    max_size: int  # bytes of one entry
    after_success: bool = False  # whether entries of failed jobs are left out
    in_step: bool = False  # whether a job is shown its entries on all its nodes or on none
    sidecars: bool = False  # whether NAME.sha256 belongs to the entry NAME and holds its checksum
    empty: bool = False  # whether an empty file is one, whatever its format
    hidden: bool = False  # whether names that begin with a dot are kept


def is_whole(profile: str) -> bool:
    """Return whether a name in the store stands for wholes, and for no profile."""
    return profile.startswith(WHOLE)


def profile_of(defined: DefinedProfile) -> Profile:
    """Make the profile of a definition."""

    def entry_of(path: str) -> str | None:
        return _entry_of(defined, path)

    def validate(files: EntryFiles) -> None:
        _validate(defined, files)

    return Profile(
        name=defined.name,
        variables=defined.variables,
        # A tool's own place is not known; what warmstart itself names has one that goes with the job.
        defaults={name: IN_TMPDIR for name in defined.variables if name.startswith("WARMSTART_")},
        relocation=defined.relocation,
        facts=tuple(defined.facts),
        entry_of=entry_of,
        validate=validate,
        after_success=defined.after_success,
        in_step=defined.in_step,
    )


def _entry_of(defined: DefinedProfile, path: str) -> str | None:
    parts = path.split("/")
    never = (*_NEVER, *(_NEVER_HIDDEN if defined.hidden else _HIDDEN), *defined.never)
    if not all(parts) or any(fnmatchcase(part, pattern) for part in parts for pattern in never):
        return None
    if defined.sidecars and path.endswith(SIDECAR):
        parts[-1] = parts[-1].removesuffix(SIDECAR)
    for pattern in defined.entries:
        length = _length(pattern, parts)
        if length:
            return "/".join(parts[:length])
    return None


def _length(pattern: str, parts: list[str]) -> int:
    """Return how many parts form the entry's name, 0 if the pattern does not match."""
    patterns = pattern.rstrip("/").split("/")
    if not pattern.endswith("/"):
        return len(parts) if _fit(patterns, parts) else 0
    # The shortest directory wins: an entry contains no further entries.
    return next((length for length in range(1, len(parts)) if _fit(patterns, parts[:length])), 0)


def _fit(patterns: list[str], parts: list[str]) -> bool:
    if "**" in patterns:
        at = patterns.index("**")
        after = len(patterns) - at - 1
        if len(parts) < at + after:
            return False
        patterns = [*patterns[:at], *patterns[at + 1 :]]
        parts = [*parts[:at], *parts[len(parts) - after :]]
    return len(patterns) == len(parts) and all(map(fnmatchcase, parts, patterns))


def _validate(defined: DefinedProfile, files: EntryFiles) -> None:
    """Check what the definition asks for and nothing else: needed files, total size, formats, checksums."""
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import by_name, plain

    names = {name: name.rpartition("/")[2] for name in files.names}
    if any(not any(fnmatchcase(base, pattern) for base in names.values()) for pattern in defined.needs):
        raise EntryInvalid("incomplete")
    plain.check_total(files, defined.max_size)
    for name, base in names.items():
        if defined.sidecars and name.endswith(SIDECAR):
            by_name.check_sidecar(files, name)
            continue
        if defined.empty and plain.is_empty(files, name):
            continue
        pattern = next((pattern for pattern in defined.formats if fnmatchcase(base, pattern)), "")
        by_name.check(defined.formats.get(pattern, "any"), files, name)
