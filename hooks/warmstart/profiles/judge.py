"""Judge staged entries. Runs in a child with only the validator's uid (docs/architecture.md, rule 3).

`profiles.client.Validator` is the caller. It accepts only "valid" or one of the fixed reasons for each entry.
"""

from __future__ import annotations

import signal

from warmstart.lean import Iterator, Sequence, contextmanager
from warmstart.profiles import naming, registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

Verdicts = dict[str, str | None]
# CPU time for one entry: small files can be made that take long to check (docs/threats.md, row 30).
LEAST_SECONDS = 2.0
BYTES_PER_SECOND = 8 << 20  # large entries have more


class _TooSlow(BaseException):  # no `except Exception` of a validator stops it
    """The entry's time is over."""


def judge(profile_name: str, stage: int, entries: dict[str, list[str]], defined: Sequence[Profile] = ()) -> Verdicts:
    """Return for each entry None (valid) or the reason why it is invalid, a key of `REASONS`.

    `stage` is a descriptor of the directory with the copies, searchable by this process. `entries` maps entry names to
    the names of their files, both relative to the profile's directory. `defined` are the policy's own profiles. Raises
    `ProfileUnknown`.
    """
    profile = registry.get(profile_name, defined)
    return {entry: _reason(profile, stage, entry, names) for entry, names in entries.items()}


def _reason(profile: Profile, stage: int, entry: str, names: list[str]) -> str | None:
    from warmstart.profiles import checks  # in this process alone, which takes foreign bytes apart

    try:
        if not names or any(naming.entry_of(profile, name) != entry for name in names):
            return "unexpected-file"
        files = EntryFiles(stage, entry, names)
        with _limited(LEAST_SECONDS + files.size() / BYTES_PER_SECOND):
            checks.validate(profile, files)
    except EntryInvalid as invalid:
        return invalid.reason
    except _TooSlow:
        return "too-slow"
    except OSError:
        return "unreadable"
    except Exception:  # noqa: BLE001 - hostile bytes hit a bug or a limit: this entry is invalid, others are judged
        return "validator-failed"
    return None


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
