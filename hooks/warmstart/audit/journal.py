"""Journal: the file to which one run of a hook appends its audit events.

Hot path: imports no structlog, which takes longer to load than a whole warm prolog runs (docs/adr/index.md, 3). Events
are on disk when `emit` returns. `audit.sink` moves journals into the audit log, those of killed hooks, too:
maintenance, a hook that failed, and an epilog where `is_flush_due`. Until then `audit.query` reads them here.

Emitting never raises: an unwritable audit must not fail a job. `audit.fallback` has what is done then.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.audit.events import HOOK_FINISHED, SHOWN_TO_JOB, Event
from warmstart.host.files import ensure_dir, opened_dir, read_up_to
from warmstart.lean import dumps

OPEN = ".open"
DONE = ".done"
MOST_SHOWN = 1 << 20  # bytes of a journal, in a job's view
# Maintenance flushes each half hour. Where it does not, or jobs are many, an epilog does now and then.
MOST_WAITING = 100  # journals
LONGEST_WAITING_S = 2700.0
_JOB = ("cluster", "job_id", "uid", "user")
_DOER = ("hook", "job_id", "uid", "user")


class Journal:
    """The events of one run of one hook. `bind` returns a journal with additional fields."""

    def __init__(self, directory: str, fields: dict[str, object]) -> None:
        """`fields` go into every event. They include hook, run_id, node and job_id."""
        self._fields = fields
        self._name = os.path.join(directory, f"{fields['hook']}-{fields['run_id']}-{os.getpid()}")
        self._fd = -1
        try:
            ensure_dir(directory, 0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._name + OPEN, flags, 0o600)
        except OSError as error:
            self._fall_back(error)

    def bind(self, **fields: object) -> Journal:
        """Return a journal that writes to the same file and adds `fields` to every event."""
        bound = object.__new__(Journal)
        bound._fields = {**self._fields, **fields}
        bound._name, bound._fd = self._name, self._fd
        return bound

    def correct(self, **fields: object) -> None:
        """Have other fields in every event from now on."""
        self._fields = {**self._fields, **fields}

    def for_job(self, **job: object) -> Journal:
        """Return a journal for what this hook does for another job.

        `job` has what is known of that job's job_id, uid, user and cluster, and takes the place of the hook's own. The
        field `done_by` has the hook, and its own job if it has one.
        """
        own = {name: self._fields[name] for name in _DOER if name in self._fields}
        rest = {name: value for name, value in self._fields.items() if name not in _JOB}
        bound = self.bind()
        bound._fields = {"done_by": own, **rest, **job}
        return bound

    def emit(self, event: Event, **fields: object) -> None:
        """Append one event. If that fails, it goes to the host's syslog, and to stderr."""
        line = self.line(event, **fields)
        if problem := self._append(line):
            self._fall_back(problem)
            if self._append(line):
                from warmstart.audit.fallback import ship

                ship(line)

    def line(self, event: Event, **fields: object) -> bytes:
        """Return the line of one event, without writing it."""
        return dumps({"ts": time.time(), "event": event, **self._fields, **fields}, default=str).encode() + b"\n"

    def _append(self, line: bytes) -> OSError | None:
        try:
            whole = os.write(self._fd, line) == len(line)
        except OSError as error:
            return error
        return None if whole else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _fall_back(self, error: OSError) -> None:
        from warmstart.audit.fallback import go_on

        self._fd = go_on(self._name + OPEN, self._fd, self._fields, error)

    def shown_to_job(self) -> str:
        """Return the lines so far that the job's own user may read; "" if the journal cannot be read.

        None of what the hook does for other jobs (`for_job`): that has other fields.
        """
        if self._fd < 0:
            from warmstart.audit.fallback import state_full

            return state_full(self._fields, lost=True).decode()
        try:
            fd = os.open(self._name + OPEN, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                lines = read_up_to(fd, MOST_SHOWN).splitlines(keepends=True)
            finally:
                os.close(fd)
        except OSError:
            return ""
        whole = (line for line in lines if line.endswith(b"\n") and line != b"\n")
        # `emit` begins each line with `ts` and `event`; decoding them all takes ten times as long.
        shown = (line for line in whole if line.split(b'"', 6)[5].decode() in SHOWN_TO_JOB)
        own = {name: value for name, value in self._fields.items() if name != "step"}
        ours = dumps(own, default=str)[1:-1].encode()  # quotes in a value are escaped, so no value has this in it
        return b"".join(line for line in shown if ours in line).decode()

    def debt(self, uid: int, job_id: int, *, is_head: bool) -> str:
        """Return the path of the file by which this journal owes a job's user a report (`warmstart.journals`).

        Who makes it puts what is to be told first there. Until the report is left, the journal stays where it is.
        """
        directory, name = os.path.split(self._name)
        return f"{directory}/.{name}.{uid}.{job_id}.{is_head:d}"

    def finish(self, **fields: object) -> None:
        """Append `hook.finished`, close the journal and name it as done for the next flush."""
        self.emit(HOOK_FINISHED, **fields)
        if self._fd < 0:
            return
        try:
            os.close(self._fd)
            os.rename(self._name + OPEN, self._name + DONE)
        except OSError as error:
            from warmstart.audit.fallback import complain

            complain(f"audit journal {self._name}: {error.strerror}")


def is_flush_due(directory: str) -> bool:
    """Return whether many journals wait for the audit log, or one that is finished has waited for long."""
    now = time.time()
    try:
        with opened_dir(directory) as fd:
            names = [name for name in os.listdir(fd) if not name.startswith(".")]
            times = (os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime for name in names if name.endswith(DONE))
            return len(names) >= MOST_WAITING or any(now - written > LONGEST_WAITING_S for written in times)
    except OSError:  # there are none, or another process is moving them
        return False
