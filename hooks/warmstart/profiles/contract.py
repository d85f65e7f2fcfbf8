"""What a profile says about one tool's cache: variables, entries, validator (docs/reference/profiles.md).

Hot path: a warm prolog reads `name` and `variables`. What opens content is imported by `validate`
itself, in the process that judges the stage.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, Callable, Literal, NamedTuple

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

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


class Profile(NamedTuple):
    """One tool's cache.

    `name` is also that of its directory below the job's cache root. `variables` maps names to templates in which
    `{dir}` is the directory's absolute path, and `{home}` the user's home; one without either is a switch of the tool.
    `defaults` are what the tool takes without them, by its source: `~` is the home, `{VARIABLE:PATH}` what a variable
    says, or if it is not set a path, `{user}` the user's name, and "" what the tool reads as not set. `facts` are what
    a namespace of this profile must contain besides its name.

    `entry_of` maps the path of a regular file, relative to the directory and with `/` between parts, to the
    entry that it belongs to, or to None for what is never harvested. It sees names only, any string
    that a directory may hold (undecodable bytes as surrogates). Names with control characters are not
    harvested whatever it says (`store.layout.is_plain_path`), and no file belongs to two entries.

    `validate` raises `EntryInvalid` unless the staged files are a complete, well-formed entry; it runs
    under the validator's uid, never runs, imports or unpickles content, and holds bounded memory.

    `lock` is what the tool of a single-file cache appends to the file's name for its flock(2) lock file: the file is
    copied under that lock, shared. `after_success`: what a job leaves that failed or was killed is not harvested, for
    nothing tells that it is whole.

    `refers_to` are the profiles, itself among them, whose entries its own name: a tool writes what it names first. Of a
    job that runs its entries are taken only where none of these changes, and all of these were taken
    (docs/adr/0061).

    `leaves_trace`: below an overlay the tool writes something wherever it hits, a lock or a directory: a cache without
    a trace was not used. `looked_up` maps such a trace's path to the entry that the tool looked up, "" if that is not
    known: a job that looked up what it was not given compiled something that is no entry, and is no hit.

    `in_step`: the tool compiles in step with its job's other ranks, which hang or time out where some find their
    entries and others do not. So a job on several nodes is shown them on all or on none.

    `exact_times`: the tool compares mtimes to the nanosecond, or sets them: its entries are extracted, not mounted.

    `follows_links` (relocation "constant-path"): the tool resolves its cache's path before it writes it down, so a
    link at the constant path does not do.

    `user_scope`: the tool's own key tells too little apart for entries of several users: they are seeded and published
    in the user's own scope alone. A job that publishes into a shared one is left without the profile.

    `experimental`: it was never run with its tool (docs/reference/profiles.md, What was tried).

    `revision`: raised to begin new namespaces, where entries that earlier releases published must not be seeded any
    more: `entry_of` divided a cache otherwise, or `validate` accepted what ends jobs.
    """

    name: str
    variables: dict[str, str]
    defaults: dict[str, str]
    relocation: Relocation
    facts: tuple[Fact, ...]
    entry_of: Callable[[str], str | None]
    validate: Callable[[EntryFiles], None]
    lock: str = ""
    after_success: bool = False
    refers_to: tuple[str, ...] = ()
    leaves_trace: bool = False
    looked_up: Callable[[str], str] | None = None
    in_step: bool = False
    exact_times: bool = False
    follows_links: bool = False
    user_scope: bool = False
    experimental: bool = False
    revision: int = 1

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


def named_by(*patterns: str) -> Callable[[str], str | None]:
    """Return an `entry_of` that answers with group 1 of the first pattern that matches the whole path."""

    def entry_of(path: str) -> str | None:
        import re  # not needed by callers that only read the variables

        for pattern in patterns:
            if match := re.fullmatch(pattern, path):
                return match[1]
        return None

    return entry_of
