"""A program that has loaded Numba, and runs scripts in forks of itself: loading it takes longer than most scripts.

Each line of stdin is JSON: a script and its arguments, its environment, and files for its stdout and stderr. A line on
stdout is its wait status.
"""

# mypy: disable-error-code="call-arg,no-untyped-call"
from __future__ import annotations

import json
import os
import runpy
import sys

import numba
from numba.core import config

numba.njit(lambda: None)()  # loads what the first function to compile needs
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
    config.reload_config()
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)  # what the job printed is flushed
