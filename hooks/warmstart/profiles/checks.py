"""What makes the files of an entry valid, by a profile's data. Runs in the validator's process (`judge`)."""

from __future__ import annotations

import re
import sys

from warmstart.lean import fnmatchcase
from warmstart.profiles import formats, naming
from warmstart.profiles.contract import Profile
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

# `Run.directory`: a job that did not see its cache at the constant path, e.g. because a plugin was missing, has
# written down its run's own path, which no other job has.
_OF_A_RUN = re.compile(rb"/[0-9]{1,10}\.[0-9a-f]{8}/cache/")
_TEXTS = ("json", "text")


def validate(profile: Profile, files: EntryFiles) -> None:
    """Require the files that complete the entry, its size, the format of each file, and what `profile.check` adds.

    An entry of a nested cache is what its own profile says. Never runs or imports content. Raises `EntryInvalid`.
    """
    named = naming.find(profile, files.names[0])
    assert named
    owner, files = named.profile, files.below(named.below)
    names = {name: name.rpartition("/")[2] for name in files.names}
    if not all(any(fnmatchcase(base, pattern) for base in names.values()) for pattern in named.needed):
        raise EntryInvalid("incomplete")
    if files.size() > owner.max_size:
        raise EntryInvalid("too-large")
    for name, base in names.items():
        kind = next((kind for pattern, kind in owner.formats.items() if _is_for(pattern, name, base)), "any")
        formats.FORMATS[kind](files, name)
        is_bound = kind in _TEXTS and owner.relocation == "constant-path"
        if is_bound and _OF_A_RUN.search(files.read(name, formats.LARGEST_TEXT)):
            raise EntryInvalid("made-elsewhere")
    if owner.check:
        __import__(f"warmstart.profiles.{owner.check}")
        sys.modules[f"warmstart.profiles.{owner.check}"].check(files)


def _is_for(pattern: str, name: str, base: str) -> bool:
    return fnmatchcase(name if "/" in pattern else base, pattern)
