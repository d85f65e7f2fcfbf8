"""What one run of a program costs: system calls by strace(1), peak memory by wait4(2), time."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Left out: how often a process asks for memory, or looks whether another has ended, depends on the moment.
_UNCOUNTED = "brk mmap munmap mremap madvise wait4 waitid select pselect6 poll futex restart_syscall clock_nanosleep"
# A process begins with the peak memory of the one that started it, so that has to be small.
_LAUNCHER = """\
import os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss, time.perf_counter() - began)
"""
_CALL = re.compile(r"^\d+ +(\w+)\(")


class Cost(NamedTuple):
    """The cost of a program with all of its children; `calls` and `on_store` are system calls."""

    calls: int
    on_store: int  # those that name a path in the store, or a descriptor of it
    rss_mib: float  # of the largest process
    ms: float


def timed(argv: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Run a program once, without counting calls. Raises RuntimeError if it fails."""
    launcher = ["/usr/bin/python3", "-I", "-S", "-c", _LAUNCHER]
    done = subprocess.run([*launcher, *argv], env=dict(env), check=True, capture_output=True, text=True)
    status, rss_kib, seconds = done.stdout.splitlines()[-1].split()
    if status != "0":
        raise RuntimeError(f"{argv[0]} ended with status {status}: {done.stderr}")
    return Cost(0, 0, int(rss_kib) / 1024, float(seconds) * 1000)


def counted(argv: Sequence[str], env: Mapping[str, str], store: Path, log: Path) -> Cost:
    """Run a program once under strace, which counts its calls and takes its time."""
    strace = ["/usr/bin/strace", "-f", "-y", "-o", str(log)]
    subprocess.run([*strace, *argv], env=dict(env), check=True, stdout=subprocess.DEVNULL)
    in_store = re.compile(rf'["<]{re.escape(str(store))}[/>"]')
    uncounted = frozenset(_UNCOUNTED.split())
    calls = on_store = 0
    with log.open(errors="replace") as lines:
        for line in lines:
            if (match := _CALL.match(line)) and match[1] not in uncounted:
                calls += 1
                on_store += in_store.search(line) is not None
    return Cost(calls, on_store, 0.0, 0.0)


def counted_in_all(argv: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Run a program under strace; return the number of its system calls, for one that makes millions."""
    strace = ["/usr/bin/strace", "-f", "-c", "-U", "name,calls", "-o", str(log)]
    subprocess.run([*strace, *argv], env=dict(env), check=True, stdout=subprocess.DEVNULL)
    uncounted = frozenset([*_UNCOUNTED.split(), "total"])
    rows = re.findall(r"^(\w+) +(\d+)$", log.read_text(), re.MULTILINE)
    return sum(int(calls) for name, calls in rows if name not in uncounted)
