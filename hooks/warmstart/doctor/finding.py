"""Findings, checks, and the function that runs a group of checks.

A check is a function that takes its group's subject and yields findings. If it yields none, it is `ok`. What it cannot
determine is `unknown`, never a guess: a store that hangs is `wrong`; a directory that the caller may not read is
`unknown`, and so is what a bug keeps from being seen.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from warmstart.errors import WarmstartError
from warmstart.host.identity import WorkerSilent

OK, ADVICE, WRONG, CRITICAL, UNKNOWN = "ok", "advice", "wrong", "critical", "unknown"
BAD = (WRONG, CRITICAL)
OVERDUE_INTERVALS = 3  # of a timer, without a run that succeeded
AS_ROOT = "run it as root"

_Subject = TypeVar("_Subject")


class Finding(NamedTuple):
    """What was found and what to change, a sentence each; `change` is "" if there is nothing to do."""

    status: str
    found: str
    change: str = ""


SKIP = Finding("", "")  # the check prints nothing: the site does not use this, or another check says what is wrong


class Result(NamedTuple):
    """A finding with the name of its check."""

    check: str
    status: str
    found: str
    change: str


@dataclass(frozen=True)
class Check(Generic[_Subject]):
    """A check. What a `critical` one cannot see is not called good."""

    name: str
    find: Callable[[_Subject], Iterable[Finding]]
    critical: bool = False


def check(name: str, *, critical: bool = False) -> Callable[[Callable[[_Subject], Iterable[Finding]]], Check[_Subject]]:
    """Make a check of a function. `critical`: it can find something critical."""
    return lambda find: Check(name, find, critical)


def run(checks: Iterable[Check[_Subject]], subject: _Subject) -> list[Result]:
    """Run checks. What a check that raises has not told is `unknown`; a worker that is silent is `wrong`."""
    results = list[Result]()
    for each in checks:
        findings = list(_findings(each, subject)) or [Finding(OK, "")]
        results += [Result(each.name, *finding) for finding in findings if finding != SKIP]
    return results


def left_out(group: str, checks: Sequence[Check[Any]], why: str, change: str = "") -> Result:
    """Return `unknown` for a group of checks that cannot run, as one row."""
    return Result(group, UNKNOWN, f"{len(checks)} checks were not made: {why}", change)


def part(group: str, examine: Callable[..., list[Result]], *subject: object) -> list[Result]:
    """Return the results of a group, with what its checks need; a bug there is one row, and leaves other groups."""
    try:
        return examine(*subject)
    except Exception as error:  # noqa: BLE001 - a bug
        return [Result(group, *_bug(error))]


def _findings(check: Check[_Subject], subject: _Subject) -> Iterator[Finding]:
    try:
        yield from check.find(subject)
    except WorkerSilent as error:
        yield Finding(WRONG, str(error), error.hint)
    except OSError as error:
        change = AS_ROOT if isinstance(error, PermissionError) and os.geteuid() else ""
        yield Finding(UNKNOWN, f"{error.filename or 'a system call'}: {error.strerror}", change)
    except WarmstartError as error:
        yield Finding(UNKNOWN, on_one_line(error), error.hint)
    except Exception as error:  # noqa: BLE001 - a bug
        yield _bug(error)


def _bug(error: Exception) -> Finding:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    return Finding(UNKNOWN, f"a bug in this check: {error!r} ({where})", "report it")


def on_one_line(error: WarmstartError) -> str:
    """Return what an error says; that of a policy may have several lines."""
    return "; ".join(str(error).splitlines())
