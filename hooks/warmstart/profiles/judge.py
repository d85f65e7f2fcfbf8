"""Judge staged entries; runs in a child with the validator's uid and nothing else (docs/architecture.md, rule 3).

`profiles.client.Validator` calls it, and takes from its answer only whether an entry is valid and, if not, which of
the fixed reasons it has.
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
    """Return for every entry None (valid) or the reason why it is not, a key of `REASONS`.

    `stage` is a descriptor of the directory that holds the copies, searchable by this process;
    `entries` maps entry names to the names of their files, both relative to the profile's `subdir`; `defined` are the
    policy's own profiles.
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
    except Exception:  # noqa: BLE001 - hostile bytes met a bug or a limit here: this entry is not proved
        return "validator-failed"
    return None
