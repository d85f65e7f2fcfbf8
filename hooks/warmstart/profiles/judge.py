"""Judge staged entries. Runs in a child with only the validator's uid (docs/architecture.md, rule 3).

`profiles.client.judged` is the caller. It accepts only "valid" or one of the fixed reasons for each entry. What
takes foreign bytes apart is imported in the child alone.
"""

from __future__ import annotations

import signal
import sys

from warmstart.lean import Iterator, Sequence, contextmanager, fnmatchcase
from warmstart.profiles import naming, registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

# CPU time for one entry: small files can be made that take long to check (docs/threats.md, row 30).
LEAST_SECONDS = 2.0
BYTES_PER_SECOND = 8 << 20  # large entries have more


class _TooSlow(BaseException):  # no `except Exception` of a validator stops it
    """The entry's time is over."""


def judge(
    profile_name: str, stage: int, entries: dict[str, list[str]], defined: Sequence[Profile] = ()
) -> Iterator[tuple[str, str | None]]:
    """Yield with each entry, in order, None (valid) or the reason why it is invalid, a key of `REASONS`.

    `stage` is a descriptor of the directory with the copies, searchable by this process. `entries` maps entry names to
    the names of their files, both relative to the profile's directory. `defined` are the policy's own profiles. Raises
    `ProfileUnknown`.
    """
    profile = registry.get(profile_name, defined)
    for entry, names in entries.items():
        yield entry, _reason(profile, stage, entry, names)


def _reason(profile: Profile, stage: int, entry: str, names: list[str]) -> str | None:
    try:
        named = naming.find(profile, names[0]) if names else None
        if named is None or any(naming.entry_of(profile, name) != entry for name in names):
            return "unexpected-file"
        files = EntryFiles(stage, entry, names, named.below)
        with _limited(LEAST_SECONDS + files.size / BYTES_PER_SECOND):
            validate(named.profile, named.needed, files)
    except EntryInvalid as invalid:
        return invalid.reason
    except _TooSlow:
        return "too-slow"
    except OSError:
        return "unreadable"
    except Exception:  # noqa: BLE001 - hostile bytes hit a bug or a limit: this entry is invalid, others are judged
        return "validator-failed"
    return None


def validate(profile: Profile, needed: Sequence[str], files: EntryFiles) -> None:
    """Require the files that complete the entry, its size, the format of each file, and what `profile.check` adds.

    Never runs or imports content. Raises `EntryInvalid`.
    """
    from warmstart.profiles import formats

    names = {name: name.rpartition("/")[2] for name in files.names}
    if not all(any(fnmatchcase(base, pattern) for base in names.values()) for pattern in needed):
        raise EntryInvalid("incomplete")
    if files.size > profile.max_size:
        raise EntryInvalid("too-large")
    for name, base in names.items():
        kind = next((kind for pattern, kind in profile.formats.items() if _is_for(pattern, name, base)), "any")
        formats.FORMATS[kind](files, name)
        if profile.relocation == "constant-path" and kind in formats.TEXTS:
            formats.require_no_run(files, name)
    if profile.check:
        __import__(f"warmstart.profiles.{profile.check}")
        sys.modules[f"warmstart.profiles.{profile.check}"].check(files)


def _is_for(pattern: str, name: str, base: str) -> bool:
    return fnmatchcase(name if "/" in pattern else base, pattern)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `_TooSlow` in this thread, the main one, after so many seconds of CPU time."""

    def end(*_: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
