"""The audit log, as one run of one program writes it: a line when it begins, one with its whole result when it ends.

What a program does on the way it adds to its result (`put`, `add`, `failed`, `remark`); only acts that somebody looks
for by themselves have lines of their own (`emit`). Each line is one write(2) at the end of the file, so lines of
several programs do not mix, and the file is opened for each: logrotate may move it at any time.

The log has to be root's alone: a regular file with one name, in a directory that nobody else can write. What cannot be
written there goes to the host's syslog, once, and to stderr, which slurmd logs only if a hook fails. Nothing here
raises: an audit that cannot be written fails no job. Hot path.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from warmstart.audit.line import HARVEST_FINISHED, HOOK_FINISHED, HOOK_STARTED, Event, Line, encoded, shaped, timestamp
from warmstart.errors import WarmstartError
from warmstart.host.files import DIRECTORY, Untrusted, ensure_path, weakness, write_all
from warmstart.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_JOB = ("cluster", "job_id", "uid", "user", "partition", "account")
_DOER = ("hook", "job_id", "uid", "user")
# What a job's own user may read of a hook's last line: nothing of the node, of the policy, or of other users' jobs.
_SHOWN = frozenset(
    {
        "outcome", "duration_ms", "head", "asked", "excluded", "granted", "of", "facts", "steps", "images", "caches",
        "failures", "remarks", "notices", "told", "died_ms", "look", "at_end",
    }
)  # fmt: skip
_HIDDEN = ("node", "policy")  # kinds of failures that a job's user does not read


class Log:
    """One program's lines. Logs that `bind` returns have the same result, one that `for_job` returns its own."""

    def __init__(self, path: str, fields: Line, *, syslog: bool = False) -> None:
        """`fields` go into every line: hook, run_id, node, and the job's. `syslog`: each line goes there, too.

        `path` is "" where no policy is in force to say it: then lines go to syslog alone.
        """
        self._path, self._syslog = path, syslog
        self._fields = fields
        self._begun: Line = {}
        self._result: Line = {}
        self._failures: list[tuple[WarmstartError, Line]] = []
        self._last = HOOK_FINISHED

    def bind(self, **fields: object) -> Log:
        """Return a log with the same file and result, and more fields in its own lines."""
        return self._copy(_fields={**self._fields, **fields})

    def correct(self, **fields: object) -> None:
        """Have other fields in every line from now on."""
        self._fields = {**self._fields, **fields}

    def for_job(self, **job: object) -> Log:
        """Return a log for what this program does for another job, to be finished by itself.

        `job` has what is known of that job's job_id, uid, user and cluster, and takes the place of the program's own.
        The field `done_by` has the program, and its own job if it has one.
        """
        own = {name: self._fields[name] for name in _DOER if name in self._fields}
        rest = {name: value for name, value in self._fields.items() if name not in _JOB}
        fields = {"done_by": own, **rest, **job}
        return self._copy(_fields=fields, _begun={}, _result={}, _failures=[], _last=HARVEST_FINISHED)

    def begin(self) -> None:
        """Write the first line."""
        self._begun.update(self.emit(HOOK_STARTED))

    def emit(self, event: Event, **fields: object) -> Line:
        """Write one line at once; return it."""
        line = shaped({"ts": timestamp(time.time()), "event": event, **self._fields, **fields})
        self._write(line)
        return line

    def say(self, **fields: object) -> None:
        """Have fields in the last line. Here and below, a field without a value is left out."""
        self._result.update(_valued(fields))

    def put(self, part: str, key: str, **fields: object) -> None:
        """Have fields in `result[part][key]`, beside those that are there."""
        self._part(part).setdefault(key, {}).update(_valued(fields))

    def add(self, part: str, **fields: object) -> None:
        """Add an object to the list `result[part]`."""
        items: Any = self._result.setdefault(part, [])
        items.append(_valued(fields))

    def failed(self, error: WarmstartError, step: str = "", **fields: object) -> None:
        """Add a failure to the result, or fields to one that is there. Without a step it is that of this log."""
        for known, item in self._failures:
            if known is error:
                item.update(fields)
                return
        self.add("failures", **self._step(step), **error.as_audit(), **fields)
        items: Any = self._result["failures"]
        self._failures.append((error, items[-1]))

    def remark(self, text: str, about: str = "", **fields: object) -> None:
        """Add a sentence that explains the result, and is no failure."""
        self.add("remarks", **self._step(""), **({"about": about} if about else {}), text=text, **fields)

    def took(self, step: str, started: float) -> None:
        """Note how long a step took that began at `started`, in seconds of `time.monotonic()`."""
        self._part("steps")[step] = round((time.monotonic() - started) * 1000, 3)

    def shown(self, **fields: object) -> str:
        """Return the first and the last line so far, as the job's own user may read them. `fields` as in `finish`."""
        own = {name: value for name, value in self._fields.items() if name != "step"}
        result = {name: value for name, value in {**self._result, **fields}.items() if name in _SHOWN}
        if isinstance(failures := result.get("failures"), list):
            result["failures"] = [failure for failure in failures if failure.get("kind") not in _HIDDEN]
        last = {"ts": timestamp(time.time()), "event": self._last, **own, **result}
        return "".join(f"{encoded(line)}\n" for line in (self._begun, shaped(last)) if line)

    def finish(self, **fields: object) -> None:
        """Write the last line, with the whole result; `fields` have the outcome. Of nothing done for a job, none."""
        if self._last == HOOK_FINISHED or self._result:
            self.emit(self._last, **{**fields, **self._result, **fields})

    def _copy(self, **attributes: object) -> Log:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **attributes)
        return copy

    def _part(self, part: str) -> Any:  # noqa: ANN401 - an object of JSON
        return self._result.setdefault(part, {})

    def _step(self, step: str) -> Line:
        step = step or str(self._fields.get("step", ""))
        return {"step": step} if step else {}

    def _rendered(self, line: Line) -> str:
        return encoded(line)

    def _write(self, line: Line) -> None:
        text = self._rendered(line)
        problem = _append(self._path, text.encode() + b"\n") if self._path else "no policy says where it is"
        if problem or self._syslog:
            from warmstart.audit import syslog

            syslog.send(syslog.level(line), text)
            if problem:
                syslog.complain(f"audit log {self._path}: {problem}: {text}")


def _valued(fields: Line) -> Line:
    return {name: value for name, value in fields.items() if value is not None and value not in ("", [], {}, ())}


def _append(path: str, line: bytes) -> str:
    """Append a line to the log; return why not, "" if it is whole there."""
    try:
        fd, size = _opened(path)
        try:
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # a full disk, or a kill, has cut the last line short
            write_all(fd, line)
        finally:
            os.close(fd)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def refusal(path: str) -> str:
    """Return why a log takes no lines, "" if it does. Makes a missing one."""
    try:
        os.close(_opened(path)[0])
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _opened(path: str) -> tuple[int, int]:
    """Open the log, or make it; return its size, too. Raises `OSError`, also for one that others can change."""
    parent, name = os.path.split(path)
    try:
        directory = os.open(parent, DIRECTORY & ~os.O_NOFOLLOW)  # /var/log may be a link
    except FileNotFoundError:
        ensure_path(parent, 0o750)
        directory = os.open(parent, DIRECTORY)
    try:
        if problem := weakness(os.fstat(directory), {0, os.geteuid()}):
            raise Untrusted(errno.EPERM, f"its directory {problem}", path)
        try:
            fd = os.open(name, _OPEN, dir_fd=directory)
        except FileNotFoundError:
            fd = os.open(name, _OPEN | os.O_CREAT, 0o640, dir_fd=directory)
            os.fchmod(fd, 0o640)
    finally:
        os.close(directory)
    status = os.fstat(fd)
    problem = weakness(status, {os.geteuid()})
    if problem or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise Untrusted(errno.EPERM, problem or "is no regular file with one name", path)
    return fd, status.st_size
