"""Judge staged entries; runs in a child with the validator's uid and nothing else (design, rule 3).

The parent calls it through `host.worker.Worker(..., keep={stage}, confine=True)` and takes from its
answer only whether an entry is valid and, if not, which of the fixed reasons it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.defined import DefinedProfile
from warmstart.profiles.entry_files import REASONS, EntryFiles, EntryInvalid

Verdicts = dict[str, "str | None"]


def judge(
    profile_name: str, stage: int, entries: dict[str, list[str]], defined: Sequence[Sequence[Any]] = ()
) -> Verdicts:
    """Return for every entry None (valid) or the reason why it is not, a key of `REASONS`.

    `stage` is a descriptor of the directory that holds the copies, searchable by this process;
    `entries` maps entry names to the names of their files, both relative to the profile's `subdir`; `defined` are the
    profiles of the policy (a tuple of each is a list by then).
    """
    profile = registry.get(profile_name, [DefinedProfile(*fields) for fields in defined])
    return {entry: _reason(profile, stage, entry, names) for entry, names in entries.items()}


def believed(answer: object, entries: dict[str, list[str]]) -> Verdicts:
    """Return the child's answer, checked by the parent: what it did not answer in form is invalid."""
    answers = answer if isinstance(answer, dict) else {}
    return {entry: answers[entry] if _in_form(answers.get(entry, "")) else "validator-failed" for entry in entries}


def _in_form(reason: object) -> bool:
    return reason is None or (isinstance(reason, str) and reason in REASONS)


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
