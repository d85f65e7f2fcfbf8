"""Compare what a job built with what is published under the same names: a share of jobs starts cold for it.

No validator tells a wrong entry that is well-formed; another job that builds the same does (`seed.verify`). What is
found is told and nothing else: on one job's word nothing is withdrawn, or whoever compiles something odd under a name
could unseat what is good.
"""

from __future__ import annotations

from warmstart.lean import Iterable, NamedTuple
from warmstart.profiles.contract import Profile
from warmstart.store.manifest import Entries, File

MOST_NAMED = 20


class Published(NamedTuple):
    """What readers of one bundle have."""

    scope: str
    bundle: str
    entries: Entries


class Difference(NamedTuple):
    """A file that is another one than the job built. Hashes are SHA-256."""

    entry: str
    file: str
    scope: str
    bundle: str
    built: str
    published: str


class Compared(NamedTuple):
    """The result of one profile."""

    equal: int  # entries
    different: int
    incomparable: int  # nothing of them is the same each time that the tool makes it
    differences: list[Difference]  # of each different entry the first, at most `MOST_NAMED`


def compare(profile: Profile, built: Entries, published: Iterable[Published]) -> Compared:
    """Compare the entries that both have, by the files that the tool makes alike each time (`Profile.repeats`)."""
    equal = different = incomparable = 0
    differences: list[Difference] = []
    for known in published:
        for entry in built.keys() & known.entries.keys():
            there = known.entries[entry]
            both = [path for path in sorted(built[entry].keys() & there.keys()) if profile.repeats(path)]
            unlike = [path for path in both if _content(built[entry][path]) != _content(there[path])]
            equal += bool(both) and not unlike
            different += bool(unlike)
            incomparable += not both
            if unlike and len(differences) < MOST_NAMED:
                hashes = built[entry][unlike[0]].sha256, there[unlike[0]].sha256
                differences.append(Difference(entry, unlike[0], known.scope, known.bundle, *hashes))
    return Compared(equal, different, incomparable, differences)


def _content(file: File) -> tuple[int, str]:
    return file.size, file.sha256
