"""Client for operations of the validator, the account that parses what jobs and other clusters wrote. Runs as root.

The validator gets an open descriptor and nothing else (docs/architecture.md, rule 3; docs/threats.md, row 7). It is
a child of its own, without network or new privileges, with bounded memory. The child's answer is checked, because
the author of the bytes may control the child.
"""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerAnswerMalformed, confine
from warmstart.host.worker import Worker
from warmstart.lean import Iterator, Mapping, Sequence, suppress
from warmstart.profiles.contract import Profile

FAILED = "validator-failed"


def judged(
    validator: Identity,
    profile: str,
    stage: int,
    entries: Mapping[str, Sequence[str]],
    *,
    defined: Sequence[Profile],
    deadline: Deadline,
) -> Iterator[tuple[str, str | None]]:
    """Yield each staged entry, in order, with None (valid) or the reason why it is invalid, a key of `REASONS`.

    `stage` is a descriptor of the directory with the copies. `entries` maps entry names to the names of their files,
    both relative to the profile's directory. `defined` are the policy's own profiles. An entry for which the child's
    answer is missing or malformed is invalid. Raises `ProfileUnknown`, and `WorkerSilent` at the deadline: what was
    yielded until then stands.
    """
    from warmstart.profiles import judge
    from warmstart.profiles.entry_files import REASONS

    names = {entry: list(files) for entry, files in entries.items()}
    worker = Worker(validator, f"the check of {profile}'s entries", (stage,), confine)
    with worker.stream(deadline, judge.judge, profile, stage, names, defined) as verdict:
        for entry in names:
            reason: str | None = FAILED
            with suppress(WorkerAnswerMalformed):
                name, reason = verdict(deadline)
                if name != entry or not (reason is None or reason in REASONS):
                    reason = FAILED
            yield entry, reason
