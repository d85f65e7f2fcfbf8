"""What users can ask about their own jobs without root: the log of their own jobs, in place of the audit log.

It is made of the views of their jobs that run on this host, and of the reports that epilogs left in the store
(`store.reports`). Both are written by root or the store's owner for this user alone, and read with the user's rights.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from warmstart import view
from warmstart.audit import values
from warmstart.audit.events import (
    BUNDLE_COMPACTED,
    BUNDLE_PUBLISHED,
    CACHE_HARVESTED,
    CACHE_SEEDED,
    HOOK_FINISHED,
)
from warmstart.audit.line import Line, shaped
from warmstart.audit.pending import IDENTITY, event_of
from warmstart.audit.query import AuditLog, LineFilter
from warmstart.cli.audit import opened_log
from warmstart.cli.output import fail
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy.current import current_policy, hint_for
from warmstart.session import is_root
from warmstart.store import reports
from warmstart.store.maintenance import Bundle

_ELSEWHERE = "ask on a host that has the store, or in the job while it runs"
_CLOSED = "administrators: see `store.features` of `warmstart doctor`; ask in the job while it runs"
_UNKNOWN = Bundle("", "", "", "", "", 0, 0, "", 0.0, 0, 0)


class OwnLog:
    """The events of the caller's own jobs, with the interface of `AuditLog`.

    Where nobody can know of any, for want of policy or store, reading ends the command with an error.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.broken = 0

    def lines(self, only: LineFilter) -> Iterator[Line]:
        """Yield the lines that match, the oldest job's first, and for each hook that it is over."""
        seen = set[bytes]()  # a job that is just ending has a view and a report
        for text in self._texts(only.job):
            hooks: dict[tuple[object, ...], list[Line]] = {}
            for raw in text.splitlines():
                if raw not in seen and (line := event_of(raw)):
                    hooks.setdefault(tuple(line.get(key) for key in ("node", "hook", "run_id")), []).append(line)
                seen.add(raw)
            for lines in hooks.values():
                yield from filter(only.matches, map(shaped, [*lines, *_end(lines)]))

    def _texts(self, job: int | None) -> Iterator[bytes]:
        of = str(job) if job else os.environ.get("SLURM_JOB_ID", "")
        running = [*view.files(self._installation, of, view.EVENTS)] if of.isdecimal() else []
        try:
            store = current_policy(self._installation).policy.paths.store
            os.stat(store)
            with suppress(FileNotFoundError):  # no report
                yield from reports.read(store, os.geteuid(), job)
        except (OSError, PolicyError) as error:
            if not running:
                otherwise = _CLOSED if isinstance(error, PermissionError) else _ELSEWHERE
                fail(error, hint_for(error) if isinstance(error, PolicyError) else otherwise)
        yield from running


def log_for(installation: Installation, sources: Sequence[str]) -> AuditLog | OwnLog:
    """Return the given logs; else the audit log, or for who cannot read it the log of own jobs."""
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


def of_lines(lines: Iterable[Line]) -> list[Bundle]:
    """Return the bundles that a log tells of, but for those that it says are merged. What it does not tell is empty."""
    found: dict[str, Bundle] = {}
    for line in lines:
        at = datetime.fromisoformat(str(line["ts"]).replace("Z", "+00:00")).timestamp()
        for old in values.texts(line, "replaces"):
            found.pop(old, None)
        names = values.texts(line, "bundle_ids") if line["event"] == CACHE_SEEDED else []
        if line["event"] in (CACHE_HARVESTED, BUNDLE_PUBLISHED, BUNDLE_COMPACTED):
            names = [name for name in [values.text(line, "bundle")] if name]
        for name in names:
            bundle = found.get(name, _UNKNOWN)._replace(
                bundle=name,
                profile=values.text(line, "profile"),
                namespace=values.text(line, "namespace"),
                used=at,
            )
            if line["event"] != CACHE_SEEDED:
                bundle = bundle._replace(
                    scope=values.text(line, "scope"),
                    user=values.text(line, "user"),
                    size=values.count(line, "size") or bundle.size,
                    entries=values.count(line, "entries") or bundle.entries,
                )
            found[name] = bundle
    return [*found.values()]


def _end(lines: list[Line]) -> list[Line]:
    """Return the end of a hook's events: both places are written just before it is over."""
    if HOOK_FINISHED in (line["event"] for line in lines):
        return []
    first, last = (datetime.fromisoformat(str(line["ts"]).replace("Z", "+00:00")) for line in (lines[0], lines[-1]))
    whose = {name: lines[-1][name] for name in IDENTITY if name in lines[-1]}
    return [
        {
            **whose,
            "event": HOOK_FINISHED,
            "ts": lines[-1]["ts"],
            "outcome": "ok",
            "duration_ms": (last - first) / timedelta(milliseconds=1),
        }
    ]
