"""Give each parser of foreign bytes random ones for so long: `python -m tools.fuzz SECONDS [NAME...]`, `make fuzz`.

Bytes that a parser neither takes nor refuses are shrunk and kept in tests/faults/corpus; the unit tests read them from
then on.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import time
import traceback
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.lib.fuzz.inputs import CORPUS, inputs
from tests.lib.fuzz.parsers import PARSERS, Parser, check

ROUND = 100  # examples between two looks at the clock


class Fuzzed(NamedTuple):
    """What one parser was given."""

    parser: str
    seconds: int
    inputs: int
    found: int  # failures
    longest_ms: int  # of CPU time, for one input
    memory: int  # most MiB of the process, so far


class _Failed(Exception):
    """An input that is neither taken nor refused."""


def fuzz(name: str, parser: Parser, seconds: float) -> Fuzzed:
    """Give a parser inputs for so many seconds, or until one fails; keep that one."""
    started, count, last, longest = time.monotonic(), 0, b"", 0.0

    def given_one(data: bytes) -> None:
        nonlocal count, last, longest
        count, last, since = count + 1, data, time.process_time()
        try:
            check(parser, data)
        except Exception as error:
            raise _Failed from error
        longest = max(longest, time.process_time() - since)

    rounds = found = 0
    wanted = inputs(parser.samples) if parser.made is None else parser.made | inputs(parser.samples)
    while time.monotonic() - started < seconds and not found:
        rounds += 1
        quiet = settings(
            max_examples=ROUND, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck), print_blob=False, report_multiple_bugs=False,
        )  # fmt: skip
        try:
            seed(rounds)(quiet(given(wanted)(given_one)))()
        except _Failed as failed:
            found = 1
            traceback.print_exception(failed.__cause__)
            _keep(name, last)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return Fuzzed(name, round(time.monotonic() - started), count, found, round(longest * 1000), memory)


def _keep(name: str, data: bytes) -> None:
    path = CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    print(f"{name}: {data[:200]!r} is in {path}", file=sys.stderr)  # noqa: T201 - a program's message


def main(arguments: list[str]) -> int:
    """Fuzz the named parsers, all without names. Return 1 if one failed."""
    names = arguments[1:] or [*PARSERS]
    done = []
    for name in names:
        done.append(fuzz(name, PARSERS[name], float(arguments[0])))
        print(*done[-1], flush=True)  # noqa: T201 - a program's output
    return int(any(one.found for one in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
