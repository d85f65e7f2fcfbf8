"""Judge staged entries. Runs in a child with only the validator's uid (docs/architecture.md, rule 3).

`profiles.client.Validator` is the caller. It accepts only "valid" or one of the fixed reasons for each entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.defined import DefinedProfile
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

Verdicts = dict[str, str | None]


def judge(
    profile_name: str, stage: int, entries: dict[str, list[str]], defined: Sequence[DefinedProfile] = ()
) -> Verdicts:
    """Return for each entry None (valid) or the reason why it is invalid, a key of `REASONS`.

    `stage` is a descriptor of the directory with the copies, searchable by this process. `entries` maps entry names to
    the names of their files, both relative to the profile's `subdir`. `defined` are the policy's own profiles. Raises
    `ProfileUnknown`.
    """
    profile = registry.get(profile_name, defined)
    return {entry: _reason(profile, stage, entry, names) for entry, names in entries.items()}


def _reason(profile: Profile, stage: int, entry: str, names: list[str]) -> str | None:
    try:
        if not names or any(profile.entry_of(name) != entry for name in names):
            return "unexpected-file"
        profile.validate(EntryFiles(stage, entry, names))
    except EntryInvalid as invalid:
        return invalid.reason
    except OSError:
        return "unreadable"
    except Exception:  # noqa: BLE001 - hostile bytes hit a bug or a limit: this entry is invalid, others are judged
        return "validator-failed"
    return None
