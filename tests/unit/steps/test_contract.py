"""Every module of steps/ has the shape of a step, and the plan runs it."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import pytest

from warmstart import plan, steps
from warmstart.steps.contract import Context, Outcome

MODULES = sorted(module.name for module in iter_modules(steps.__path__) if module.name != "contract")


@pytest.fixture(params=MODULES)
def step(request: pytest.FixtureRequest) -> ModuleType:
    """Return each step's module."""
    return import_module(f"warmstart.steps.{request.param}")


def test_a_step_has_the_shape_of_one(step: ModuleType) -> None:
    assert step.__name__.rpartition(".")[2].replace("_", "-") == step.NAME
    run = inspect.signature(step.run, eval_str=True)
    assert [parameter.annotation for parameter in run.parameters.values()] == [Context, step.Options]
    assert run.return_annotation is Outcome
    assert issubclass(step.Options, tuple)
    assert (step.__doc__ or "").startswith(f"Step `{step.NAME}`:")


def test_the_plan_runs_every_step() -> None:
    """`plan` imports each of them and its docstring names them in order; a step that no plan has never runs."""
    tree = ast.parse(inspect.getsource(plan))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "warmstart.steps"]
    assert {alias.name for node in froms for alias in node.names} == {*MODULES}
    assert all(import_module(f"warmstart.steps.{name}").NAME in (plan.__doc__ or "") for name in MODULES)


def test_a_step_neither_prints_nor_exits_nor_reads_the_environment(step: ModuleType) -> None:
    forbidden = {"print", "input", "exit", "quit", "environ", "getenv", "putenv", "_exit", "stdin", "stdout", "argv"}
    tree = ast.parse(inspect.getsource(step))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not used & forbidden
