"""Which containers of a machine are one: by their process 1, since all of them have the machine's boot id."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import warmstart.run

HOOKS = Path(warmstart.run.__file__).parents[2]
CONTAINER = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc"]
TWICE = [  # process 1, and a child of it, as a hook is one of supervisord's
    "/bin/sh",
    "-c",
    '"$@" && "$@"',
    "sh",
    *(sys.executable, "-c", "from warmstart.run import state; print(state.incarnation(), state.uptime_s())"),
]


def told(*inside: str) -> tuple[set[str], float]:
    """Return the incarnations that two processes behind the words `inside` are told, and the longest uptime."""
    done = subprocess.run([*inside, *TWICE], env={"PYTHONPATH": str(HOOKS)}, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name for name, _ in lines}, max(float(seconds) for _, seconds in lines)


def test_a_replaced_container_is_not_the_one_before() -> None:
    """All processes of one are told the same, and how long that one is up."""
    host, first, second = told(), told(*CONTAINER), told(*CONTAINER)
    assert [len(names) for names, _ in (host, first, second)] == [1, 1, 1]
    assert len(host[0] | first[0] | second[0]) == 3
    assert max(first[1], second[1]) < 60 < host[1]


def test_without_a_container_it_is_the_boot() -> None:
    """So the runs that an earlier release wrote are this boot's after an upgrade."""
    assert told()[0] == {Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
