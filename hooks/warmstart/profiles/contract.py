"""What a profile says about one tool's cache: variables, entries, checks (docs/reference/profiles.md).

A profile is data. Those that come with warmstart are in `shipped`, in the form in which a site writes its own in the
policy. Hot path. What names entries is in `naming`, what opens files in `formats`.
"""

from __future__ import annotations

from warmstart.lean import Callable, Literal, NamedTuple, Sequence

# "declared": a name that the job itself gives; it chooses among its user's own entries and grants nothing.
Fact = Literal["cpu", "declared", "driver", "gpu", "image", "machine"]
# "constant-path": entries are of use only at the path where they were made. To put another path into each of them would
# take each job time for each entry.
Relocation = Literal["relocatable", "constant-path"]

# What a job did with a profile's cache (`use` in the audit; docs/reference/profiles.md, Seen hits).
BUILT = "built"  # it made entries
HIT = "hit"  # it was seeded, made none, and left a trace of its use
UNKNOWN = "unknown"  # it was seeded and left no trace, of a tool that leaves none
UNTOUCHED = "untouched"  # not used, as far as can be seen
AROUND = "around"  # it left nothing to see, and says that a variable of the profile had another value than ours
USES = (HIT, BUILT, UNKNOWN, UNTOUCHED, AROUND)
UNUSED = frozenset({UNTOUCHED, AROUND})  # of such a cache it does not matter whether it was cold

FILES = "files"  # the profile of files that jobs declare; every policy has it
# What wings pack lies in the store in place of a profile, under such a name: a whole, which is one entry, and whose
# manifest names no files. So it can be verified, kept and promoted where its wing is gone.
WHOLE = "whole-"
OWNERS = "owners"  # the fact of a whole that may leave its user's scope: the uids of whom the policy names


# Types of the policy's values (`policy.types`), as they are once they are checked.
Entries = dict[str, Sequence[str]]  # pattern of paths → patterns of names: an entry of this kind has a file for each
Facts = tuple[Fact, ...]
Formats = dict[str, str]  # pattern of names, or of paths if it has a `/` → a check of `formats`; the first one counts
LockEnd = str
NamePatterns = tuple[str, ...]  # of one part
PathPatterns = tuple[str, ...]
Size = int  # bytes
Variables = dict[str, str]


class Profile(NamedTuple):
    """One tool's cache: [a profile of the site's own](profiles.md#a-profile-of-your-own), `NAME` is its name."""

    variables: Variables
    """Variables that point the tool at its cache. `{dir}` is the profile's directory in the job's cache; at least one
    value has it."""
    entries: Entries
    """What is published whole: `PATTERN/` is a directory with everything in it, `PATTERN{.a,.b}` files that differ in
    their ends alone, `PATTERN` a file. The first that fits counts; what fits none is never harvested. Each has a list
    of names of files: an entry that lacks one is `incomplete`."""
    never: NamePatterns = ()
    """Names of files and directories that are left out, besides `*.lock`, `*.tmp`, `*.part`, `*.incomplete`, `lock`,
    `locks`, `tmp.*`, and names that begin with a dot that no pattern has."""
    formats: Formats = {}  # noqa: RUF012 - never mutated, like the rest
    """[Formats](profiles.md#formats) of files, by name, or with a `/` by path. The first pattern that fits counts."""
    facts: Facts = ()
    """What must be the same besides the image."""
    relocation: Relocation = "constant-path"
    """`relocatable` if entries work at another path: try it with a copy of a warm cache."""
    max_size: Size = 1 << 30
    """Bytes of one entry. Larger entries are refused."""
    lock: LockEnd = ""
    """Of a cache that is a single file: what is appended to its name for the name of its lock, under which it is read:
    flock(2), shared, for at most two seconds. The lock file is not made."""
    in_step: bool = False
    """The tool compiles in step with its job's other ranks ([jobs on several
    nodes](profiles.md#jobs-on-several-nodes))."""
    only_successful: bool = False
    """Harvest it only from jobs that [ended well](#which-jobs-count-as-successful)."""

    name: str = ""
    # A site cannot write the rest.
    # What the tool takes without the variables, by its source: `~` is the home, `{VARIABLE:PATH}` what a variable says,
    # or if it is not set a path, `{user}` the user's name, and "" what the tool reads as not set.
    defaults: dict[str, str] = {}  # noqa: RUF012
    nested: dict[str, str] = {}  # noqa: RUF012 - pattern of directories → whose entries are in them, as another tool's
    check: str = ""  # the module with a `check` of its own, for what no pattern says
    exact_times: bool = False  # the tool compares mtimes to the nanosecond: entries are extracted, not mounted
    # The tool resolves its cache's path before it writes it down, so a link at the constant path does not do.
    follows_links: bool = False
    # Below an overlay the tool writes something wherever it hits: a cache without a trace was not used.
    leaves_trace: bool = False
    # The tool's key tells too little apart for entries of several users: they stay in the user's own scope.
    user_scope: bool = False
    experimental: bool = False  # never run with its tool (docs/reference/profiles.md, What was tried)

    @property
    def all_facts(self) -> tuple[Fact, ...]:
        """What a namespace has besides the profile's name."""
        return "image", *self.facts

    @property
    def suits_overlay(self) -> bool:
        """Whether an overlay serves it: no exact times are needed, and one file that is made anew gains nothing."""
        return not self.exact_times and not self.lock

    def environment(self, cache_root: str, home: Callable[[], str]) -> dict[str, str]:
        """Return the variables with their values for a job whose cache root is `cache_root`.

        One that names the home is left out for a user without one: `home` returns "" then.
        """
        directory = f"{cache_root}/{self.name}"
        values = {name: value.replace("{dir}", directory) for name, value in self.variables.items()}
        for name in [name for name, value in values.items() if "{home}" in value]:
            if found := home():
                values[name] = values[name].replace("{home}", found)
            else:
                del values[name]
        return values


class Files(NamedTuple):
    """Files that jobs declare with `files=NAME` and leave in `$WARMSTART_FILES` ([profiles](profiles.md))."""

    include: PathPatterns = ("**",)
    """What is kept: `PATTERN/` is a directory with everything in it, `PATTERN` a file."""
    never: NamePatterns = ()
    """Names of files and directories that are left out, besides locks and temporary files."""
    facts: Facts = ("gpu",)
    """What must be the same besides the image and the declared name."""
    max_size: Size = 1 << 30
    """Bytes of one file, or of one directory that is kept whole; at most 8 GiB."""
    only_successful: bool = True
    """Keep only files of jobs that [ended well](#which-jobs-count-as-successful)."""

    @property
    def profile(self) -> Profile:
        """The profile of such files."""
        return Profile(
            {"WARMSTART_FILES": "{dir}"},
            {pattern: [] for pattern in self.include},
            never=self.never,
            formats={"*": "empty-or-written"},
            facts=("declared", *self.facts),
            relocation="relocatable",
            max_size=self.max_size,
            only_successful=self.only_successful,
            name=FILES,
            defaults={"WARMSTART_FILES": "{TMPDIR:/tmp}"},
        )


def is_whole(profile: str) -> bool:
    """Return whether a name in the store stands for wholes, and for no profile."""
    return profile.startswith(WHOLE)
