"""What users can ask about their own jobs without root: the lines of their own jobs, in place of the audit log.

They are in the views of their jobs that run on this host, and in the reports that epilogs left in the store
(`store.reports`). Both are written by root or the store's owner for this user alone, and read with the user's rights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from warmstart import view
from warmstart.audit.line import Line, decoded, escaped
from warmstart.audit.query import AuditLog, LineFilter
from warmstart.cli.audit import opened_log
from warmstart.cli.output import fail
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.session import is_root
from warmstart.store import reports

_ELSEWHERE = "ask on a host that has the store, or in the job while it runs"
_CLOSED = "administrators: see `store.features` of `warmstart doctor`; ask in the job while it runs"


class OwnLog(AuditLog):
    """The lines of the caller's own jobs.

    Where nobody can know of any, for want of policy or store, reading ends the command with an error.
    """

    def __init__(self, installation: Installation) -> None:
        super().__init__([])
        self._installation = installation

    def lines(self, only: LineFilter) -> Iterator[Line]:
        """Yield the lines that match, the oldest job's first."""
        seen = set[bytes]()  # a job that is just ending has a view and a report
        for text in self._texts(only.job):
            for raw in text.splitlines():
                line = None if raw in seen else decoded(raw)
                seen.add(raw)
                if line and only.matches(line):
                    yield escaped(line)

    def _texts(self, job: int | None) -> Iterator[bytes]:
        of = str(job) if job else os.environ.get("SLURM_JOB_ID", "")
        running = view.read(self._installation.view, of, view.EVENTS) if of.isdecimal() else None
        try:
            store = current_policy(self._installation).policy.paths.store
            os.stat(store)
            with suppress(FileNotFoundError):  # no report
                yield from reports.read(store, os.geteuid(), job)
        except (OSError, PolicyError) as error:
            if running is None:
                otherwise = _CLOSED if isinstance(error, PermissionError) else _ELSEWHERE
                fail(error, error.hint if isinstance(error, PolicyError) else otherwise)
        if running is not None:
            yield running


def log_for(installation: Installation, sources: Sequence[str]) -> AuditLog:
    """Return the given logs; else the audit log, or for who cannot read it the lines of own jobs."""
    if not sources and has_only_own(installation):
        return OwnLog(installation)
    return opened_log(installation, sources)


def has_only_own(installation: Installation) -> bool:
    """Return whether the caller is told of own jobs alone: everybody who cannot read the audit log."""
    if is_root():
        return False
    try:
        return not os.access(current_policy(installation).policy.paths.audit, os.R_OK)
    except PolicyError:
        return True
