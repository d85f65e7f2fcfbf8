"""What a check says, and how the checks of a group are run.

A check is a function of its group's subject that yields findings. What it could not find out is `unknown`,
never a guess: a hang of the store is `wrong`, a directory that a user may not read is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from warmstart.errors import WarmstartError
from warmstart.host.identity import WorkerSilent

OK, ADVICE, WRONG, CRITICAL, UNKNOWN = "ok", "advice", "wrong", "critical", "unknown"
BAD = (WRONG, CRITICAL)
AS_ROOT = "run it as root"

_Subject = TypeVar("_Subject")


class Finding(NamedTuple):
    """One sentence of what was found, and one of what to change; "" where nothing is to be."""

    status: str
    found: str
    change: str = ""


class Result(NamedTuple):
    """A finding with the name of its check."""

    check: str
    status: str
    found: str
    change: str


def run(checks: Mapping[str, Callable[[_Subject], Iterable[Finding]]], subject: _Subject) -> list[Result]:
    """Run a group's checks; one that fails itself is `unknown`, one that gets no answer is `wrong`."""
    return [Result(name, *finding) for name, check in checks.items() for finding in _findings(check, subject)]


def undone(checks: Iterable[str], why: str, change: str) -> list[Result]:
    """Return a group's checks as not done."""
    return [Result(name, UNKNOWN, why, change) for name in checks]


def _findings(check: Callable[[_Subject], Iterable[Finding]], subject: _Subject) -> list[Finding]:
    try:
        return list(check(subject))
    except WorkerSilent as error:
        return [Finding(WRONG, str(error), error.hint)]
    except PermissionError as error:
        return [Finding(UNKNOWN, f"{error.filename}: {error.strerror}", AS_ROOT)]
    except OSError as error:
        return [Finding(UNKNOWN, f"{error.filename or 'a system call'}: {error.strerror}")]
    except WarmstartError as error:
        return [Finding(UNKNOWN, str(error), error.hint)]
