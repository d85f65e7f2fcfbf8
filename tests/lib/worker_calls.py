"""What a process has its workers run, such as each question to the store."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, TypeVar

import pytest

from warmstart.host.deadline import Deadline
from warmstart.host.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


def put_in_place(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, function: Callable[..., object]
) -> None:
    """Have a test's `function` run in place of a module's, in workers, too: it passes for one of that module."""
    monkeypatch.setattr(function, "__module__", module.__name__)
    monkeypatch.setattr(function, "__qualname__", name)
    monkeypatch.setattr(module, name, function)


def answer_here(monkeypatch: pytest.MonkeyPatch, function: Callable[..., R], answer: Callable[..., R]) -> None:
    """Have `answer` called in this process, with the same arguments, whenever a worker is to run `function`."""
    run = Worker.run

    def answered(self: Worker, deadline: Deadline, asked: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return answer(*args, **kwargs) if asked is function else run(self, deadline, asked, *args, **kwargs)

    monkeypatch.setattr(Worker, "run", answered)
