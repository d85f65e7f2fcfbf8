"""Profiles that a site defines in its policy, without code: variables, entry patterns, checks.

Entries are named by shell patterns instead of regular expressions: root matches them against names that jobs choose, so
no name may make a match slow (CPython translates `*` without backtracking, bpo-40480). Hot path: `profile_of`.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, NamedTuple, fnmatchcase
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

# Types of the policy's values (`policy.values`), as they are once they are checked.
Facts = tuple[Fact, ...]
Formats = dict[str, str]  # pattern of a name → a check of `formats.by_name`
NamePatterns = tuple[str, ...]  # of one part
PathPatterns = tuple[str, ...]
Size = int  # bytes
Variables = dict[str, str]


class DefinedProfile(NamedTuple):
    """[A profile of the site's own](profiles.md#a-profile-of-your-own). `NAME` is the profile's name."""

    variables: Variables
    """Variables that point the tool at its cache. `{dir}` is the profile's directory in the job's cache; at least one
    value has it."""
    entries: PathPatterns
    """What is published whole: `PATTERN/` is a directory with everything in it, `PATTERN` a file. The first that fits
    counts; what fits none is never harvested."""
    never: NamePatterns = ()
    """Names of files and directories that are left out, besides `*.lock`, `*.tmp`, `*.part`, `*.incomplete`, `lock`,
    `locks`, `tmp.*` and names that begin with a dot."""
    needs: NamePatterns = ()
    """Names of files. An entry without at least one of each is `incomplete`."""
    formats: Formats = {}  # noqa: RUF012 - never mutated
    """[Formats](profiles.md#formats) of files, by name. The first pattern that fits counts; files that fit none are not
    opened."""
    facts: Facts = ()
    """What must be the same besides the image."""
    relocation: Relocation = "constant-path"
    """`relocatable` if entries work at another path: try it with a copy of a warm cache."""
    max_size: Size = 1 << 30
    """Bytes of one entry. Larger entries are refused."""
    in_step: bool = False
    """The tool compiles in step with its job's other ranks ([jobs on several
    nodes](profiles.md#jobs-on-several-nodes))."""
    only_successful: bool = False
    """Harvest it only from jobs that [ended well](#which-jobs-count-as-successful)."""
    name: str = ""
    sidecars: bool = False  # whether NAME.sha256 belongs to the entry NAME and holds its checksum
    empty: bool = False  # whether an empty file is one, whatever its format
    hidden: bool = False  # whether names that begin with a dot are kept


class Files(NamedTuple):
    """Files that jobs declare with `files=NAME` and leave in `$WARMSTART_FILES` ([profiles](profiles.md))."""

    include: PathPatterns = ("**",)
    """What is kept: `PATTERN/` is a directory with everything in it, `PATTERN` a file."""
    never: NamePatterns = ()
    """Names of files and directories that are left out, besides locks and temporary files."""
    hidden: bool = False
    """Keep files, too, whose name or a directory's name above them begins with a dot; never leftovers."""
    facts: Facts = ("gpu",)
    """What must be the same besides the image and the declared name."""
    max_size: Size = 1 << 30
    """Bytes of one file, or of one directory that is kept whole; at most 8 GiB."""
    only_successful: bool = True
    """Keep only files of jobs that [ended well](#which-jobs-count-as-successful)."""

    @property
    def profile(self) -> DefinedProfile:
        """The profile of such files."""
        return DefinedProfile(
            {"WARMSTART_FILES": "{dir}"},
            self.include,
            never=self.never,
            formats={"*": "written"},
            facts=("declared", *self.facts),
            relocation="relocatable",
            max_size=self.max_size,
            only_successful=self.only_successful,
            name=FILES,
            sidecars=True,
            empty=True,
            hidden=self.hidden,
        )


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
        facts=tuple(dict.fromkeys(("image", *defined.facts))),
        entry_of=entry_of,
        validate=validate,
        after_success=defined.only_successful,
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
