"""Client for operations of the validator, the account that parses what jobs and other clusters wrote. Runs as root.

The validator gets an open descriptor and nothing else (docs/architecture.md, rule 3; docs/threats.md, row 7). It is
a child of its own, without network or new privileges, with bounded memory. The child's answer is checked, because
the author of the bytes may control the child.
"""

from __future__ import annotations

import time
from itertools import islice

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerAnswerMalformed
from warmstart.host.worker import Worker
from warmstart.lean import TYPE_CHECKING, Iterator, Mapping, Sequence, suppress
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.judge import Verdicts

FAILED = "validator-failed"
_QUICK = 0.1  # seconds; after a quicker answer twice as many entries are asked for at once


class Validator:
    """Operations that run as the validator."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def judge(
        self,
        profile: str,
        stage: int,
        entries: Mapping[str, Sequence[str]],
        *,
        defined: Sequence[Profile],
        deadline: Deadline,
    ) -> Iterator[tuple[str, str | None]]:
        """Yield each staged entry, in order, with None (valid) or the reason why it is invalid, a key of `REASONS`.

        `stage` is a descriptor of the directory with the copies. `entries` maps entry names to the names of their
        files, both relative to the profile's directory. `defined` are the policy's own profiles. An entry for which the
        child's answer is missing or malformed is invalid. Raises `ProfileUnknown`, and `WorkerSilent` at the deadline:
        what was yielded until then stands.
        """
        from warmstart.profiles import judge

        names = {entry: list(files) for entry, files in entries.items()}
        waiting, some = iter(names), 1
        with Worker(
            self._identity, f"the check of {profile}'s entries", rooms=(judge.__name__,), keep=(stage,), confine=True
        ) as worker:
            while batch := {entry: names[entry] for entry in islice(waiting, some)}:
                asked = time.monotonic()
                answer: Verdicts = {}  # so no entry is valid if it is malformed
                with suppress(WorkerAnswerMalformed):
                    answer = worker.run(deadline, judge.judge, profile, stage, batch, defined)
                for entry in batch:
                    yield entry, _reason(answer, entry)
                some = 2 * some if time.monotonic() - asked < _QUICK else 1


def _reason(answer: Verdicts, entry: str) -> str | None:
    from warmstart.profiles.entry_files import REASONS

    reason = answer.get(entry, FAILED)
    return reason if reason is None or reason in REASONS else FAILED
