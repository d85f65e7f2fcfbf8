"""What a process has its workers run, such as each question to the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from warmstart.host.deadline import Deadline
from warmstart.host.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


def answer_here(monkeypatch: pytest.MonkeyPatch, function: Callable[..., R], answer: Callable[..., R]) -> None:
    """Have `answer` called in this process, with the same arguments, whenever a worker is to run `function`."""
    run = Worker.run

    def answered(self: Worker, deadline: Deadline, asked: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return answer(*args, **kwargs) if asked is function else run(self, deadline, asked, *args, **kwargs)

    monkeypatch.setattr(Worker, "run", answered)
