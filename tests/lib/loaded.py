"""Scripts that run in forks of one Python that has loaded what they need: loading takes longer than most of them."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[[list[str], dict[str, str]], subprocess.CompletedProcess[str]]


@contextmanager
def loaded(load: str, in_each: str = "") -> Iterator[Run]:
    """Start a Python that executes `load`; yield what runs a script with arguments and an environment.

    Args:
        load: Python code, for all scripts.
        in_each: Python code that is executed when a script's environment is in place.
    """
    argv, pipe = [sys.executable, __file__, load, in_each], subprocess.PIPE
    with TemporaryDirectory() as top, subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin
        assert server.stdout
        calls, statuses = server.stdin, server.stdout
        outputs = [Path(top, name) for name in ("stdout", "stderr")]

        def run(script: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
            calls.write(json.dumps([script, environment, *map(str, outputs)]) + "\n")
            calls.flush()
            status = os.waitstatus_to_exitcode(int(statuses.readline()))
            return subprocess.CompletedProcess(script, status, *(path.read_text() for path in outputs))

        yield run


def _serve(load: str, in_each: str) -> None:
    names: dict[str, object] = {}
    exec(load, names)
    for line in sys.stdin:
        sys.argv, environment, *outputs = json.loads(line)
        if child := os.fork():
            sys.stdout.write(f"{os.waitpid(child, 0)[1]}\n")
            sys.stdout.flush()
            continue
        for fd, path in enumerate(outputs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        os.environ.clear()
        os.environ.update(environment)
        exec(in_each, names)
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)  # what the script printed is flushed


if __name__ == "__main__":
    _serve(*sys.argv[1:])
