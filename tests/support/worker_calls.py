"""What a process has its workers run, such as each question to the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from warmstart.host.deadline import Deadline
from warmstart.host.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


def noted_calls() -> list[str]:
    """Return a list that grows by the name of each function that a worker of this process runs, to its end.

    For a process that was forked for a test: nothing takes it back.
    """
    names: list[str] = []
    run = Worker.run

    def noting(self: Worker, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        names.append(function.__qualname__)
        return run(self, deadline, function, *args, **kwargs)

    Worker.run = noting  # type: ignore[method-assign]
    return names
