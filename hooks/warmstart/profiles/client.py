"""The validator: the account that parses what jobs and other clusters wrote.

It gets an open descriptor from root and nothing else (docs/architecture.md, rule 3; docs/threats.md, row 7). Each call
runs in a child of its own, without network or new privileges, with bounded memory. The child's answer is checked:
whoever wrote the bytes may control the child by then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerAnswerMalformed
from warmstart.host.worker import Worker, WorkerBug
from warmstart.profiles import judge
from warmstart.profiles.defined import DefinedProfile
from warmstart.profiles.entry_files import REASONS
from warmstart.profiles.judge import Verdicts

if TYPE_CHECKING:
    from warmstart.host.tar import Member

FAILED = "validator-failed"


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
        defined: Sequence[DefinedProfile],
        deadline: Deadline,
    ) -> Verdicts:
        """Return for every staged entry None (valid) or the reason why it is not, a key of `REASONS`.

        `stage` is a descriptor of the directory that holds the copies; `entries` maps entry names to the names of
        their files, both relative to the profile's `subdir`; `defined` are the policy's own profiles. An entry that
        the child did not answer in form is invalid. `ProfileUnknown`, `WorkerSilent` at the deadline.
        """
        names = {entry: list(files) for entry, files in entries.items()}
        answer: Verdicts = {}
        with self._worker(stage) as worker, suppress(WorkerAnswerMalformed):  # no entry is proved then
            answer = worker.run(deadline, judge.judge, profile, stage, names, defined)
        return {entry: _reason(answer, entry) for entry in names}

    def tar_members(self, fd: int, deadline: Deadline) -> dict[str, Member]:
        """Return the regular files of a tar file; all of them lie inside of it.

        `OSError` for what can't be read as a tar file, `WorkerSilent` at the deadline.
        """
        from warmstart.host import tar

        with self._worker(fd) as worker:
            try:
                found = worker.run(deadline, tar.members, fd)
            except (WorkerAnswerMalformed, WorkerBug) as error:  # what it stumbles over is the file's fault
                raise OSError(errno.EINVAL, "not a tar file that can be read") from error
        end = os.fstat(fd).st_size
        return {name: member for name, member in found.items() if 0 <= member.offset <= sum(member) <= end}

    def _worker(self, fd: int) -> Worker:
        return Worker(self._identity, keep=(fd,), confine=True)


def _reason(answer: Verdicts, entry: str) -> str | None:
    reason = answer.get(entry, FAILED)
    return reason if reason is None or reason in REASONS else FAILED
